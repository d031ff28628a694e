"""Several jobs side by side, joined in input order; and one-off blocking work."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from phronomy_django.engine.cancellation import CancellationToken
from phronomy_django.engine.errors import TaskCancelledError, TaskTimeoutError
from phronomy_django.engine.results import Outcome, TaskResult, TaskStatus

if TYPE_CHECKING:
    from phronomy_django.engine.scheduling import Scheduler
    from phronomy_django.engine.timers import Timers

__all__ = ["Execution"]

T = TypeVar("T")
I_ = TypeVar("I_")


class Execution:
    """Runs a batch of jobs; holds nothing between calls."""

    @staticmethod
    def run_async(
        items: Iterable[I_],
        start: Callable[[I_, CancellationToken], TaskResult[T]],
        *,
        timeout: float | None = None,
        cancellation_token: CancellationToken | None = None,
        timers: Timers | None = None,
        scheduler: Scheduler | None = None,
    ) -> TaskResult[list[Outcome[T]]]:
        """Start one job for each item, in order, and complete with their outcomes in input order.

        ``start(item, token)`` gives the job's task; one that raises is that job's failure and stops no other.
        When ``timeout`` seconds are over or ``cancellation_token`` is cancelled, the outcomes are frozen
        first, jobs without one as ``timed_out`` or ``cancelled``; then the token that the jobs were given is
        cancelled. Jobs that were not started by then are not started. The result never fails.
        """
        if timeout is not None and timers is None:
            raise ValueError("A timeout needs the timers that keep it: pass timers=runtime.timers.")
        batch: _Batch[T] = _Batch(list(items), start, scheduler)
        if timeout is not None and timers is not None:
            handle = timers.call_later(timeout, batch.time_out)
            batch.joined.on_complete(lambda _: handle.cancel())
        if cancellation_token is not None:
            undo = cancellation_token.on_cancel(lambda: batch.cancel(cancellation_token.reason))
            batch.joined.on_complete(lambda _: undo())
        batch.start_all()
        return batch.joined


class _Batch(Generic[T]):
    def __init__(
        self,
        items: list[Any],
        start: Callable[[Any, CancellationToken], TaskResult[T]],
        scheduler: Scheduler | None,
    ) -> None:
        self._items = items
        self._start = start
        self._lock = threading.Lock()
        self._outcomes: list[Outcome[T] | None] = [None] * len(items)
        self._left = len(items)
        self._frozen = False
        self._token = CancellationToken()
        self.joined: TaskResult[list[Outcome[T]]] = TaskResult(scheduler)

    def start_all(self) -> None:
        if not self._items:
            self.joined.set_result([])
        for index, item in enumerate(self._items):
            if self._frozen:
                return
            try:
                task = self._start(item, self._token)
            except Exception as error:  # noqa: BLE001 - it is this job's outcome
                self._ended(Outcome(index, TaskStatus.FAILED, None, error))
            else:
                task.on_complete(partial(self._task_ended, index))

    def _task_ended(self, index: int, task: TaskResult[T]) -> None:
        self._ended(task.outcome(index))

    def _ended(self, outcome: Outcome[T]) -> None:
        with self._lock:
            if self._frozen:
                return
            self._outcomes[outcome.index] = outcome
            self._left -= 1
            self._frozen = self._left == 0
            last = self._frozen
        if last:
            self._complete()

    def time_out(self) -> None:
        self._freeze(TaskStatus.TIMED_OUT, TaskTimeoutError("The time for these jobs ran out."), "timeout")

    def cancel(self, reason: str | None) -> None:
        self._freeze(TaskStatus.CANCELLED, TaskCancelledError(reason), reason)

    def _freeze(self, status: TaskStatus, error: BaseException, reason: str | None) -> None:
        with self._lock:
            if self._frozen:
                return
            self._frozen = True
            for index, outcome in enumerate(self._outcomes):
                if outcome is None:
                    self._outcomes[index] = Outcome(index, status, None, error)
        self._token.cancel(reason)
        self._complete()

    def _complete(self) -> None:
        self.joined.set_result([outcome for outcome in self._outcomes if outcome is not None])
