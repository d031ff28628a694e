"""TaskResult: the one handle for something that ends later."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from phronomy_django.engine.current import refuse_on_loop_thread
from phronomy_django.engine.errors import TaskCancelledError, TaskPendingError, TaskTimeoutError
from phronomy_django.engine.scheduling import wait_in_thread

if TYPE_CHECKING:
    from phronomy_django.engine.scheduling import Scheduler

__all__ = ["Outcome", "TaskResult", "TaskStatus"]

logger = logging.getLogger("phronomy_django.engine")

T = TypeVar("T")
U = TypeVar("U")
T_co = TypeVar("T_co", covariant=True)

#: One lock for all results: it is held for a few instructions and never around a call to other code, so that
#: a result costs no lock of its own.
_lock = threading.Lock()


class TaskStatus(StrEnum):
    PENDING = "pending"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    TIMED_OUT = "timed_out"


_PENDING, _COMPLETED, _FAILED = TaskStatus.PENDING, TaskStatus.COMPLETED, TaskStatus.FAILED
_CANCELLED = TaskStatus.CANCELLED


@dataclass(frozen=True, slots=True)
class Outcome(Generic[T_co]):
    """How one of several jobs ended; ``value`` if it completed, ``error`` otherwise."""

    index: int
    status: TaskStatus
    value: T_co | None = None
    error: BaseException | None = None


class TaskResult(Generic[T]):
    """Pending, then once completed, failed or cancelled; the first ``set_…`` wins and never changes again.

    Producers call ``set_result``, ``set_error`` or ``set_cancelled``. Consumers wait, await, or register
    callbacks. Waiting is not owning (DESIGN §3, rule 8): a wait that runs out and a cancelled awaiter cancel
    nothing. Waiting on a pending one from an event loop's thread raises ``EventLoopReentrancyError``.
    """

    __slots__ = ("__weakref__", "_callbacks", "_scheduler", "_status", "_value")

    def __init__(self, scheduler: Scheduler | None = None) -> None:
        self._scheduler = scheduler
        self._status: TaskStatus = _PENDING
        self._value: Any = None
        self._callbacks: list[Callable[[Any], object]] | None = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._status.value} at {id(self):#x}>"

    # --- made settled -----------------------------------------------------------------------------------

    @staticmethod
    def completed(value: U, scheduler: Scheduler | None = None) -> TaskResult[U]:
        """A result that has ``value`` already."""
        task: TaskResult[U] = TaskResult(scheduler)
        task.set_result(value)
        return task

    @staticmethod
    def failed(error: BaseException, scheduler: Scheduler | None = None) -> TaskResult[Any]:
        """A result that has failed with ``error`` already."""
        task: TaskResult[Any] = TaskResult(scheduler)
        task.set_error(error)
        return task

    @staticmethod
    def all_settled(tasks: Iterable[TaskResult[U]]) -> TaskResult[list[Outcome[U]]]:
        """Completes, and never fails, once all of ``tasks`` are done; outcomes in the given order."""
        children = list(tasks)
        scheduler = next((task._scheduler for task in children if task._scheduler is not None), None)
        joined: TaskResult[list[Outcome[U]]] = TaskResult(scheduler)
        if not children:
            joined.set_result([])
            return joined
        left = [len(children)]

        def one_done(_: TaskResult[U]) -> None:
            with _lock:
                left[0] -= 1
                last = not left[0]
            if last:
                joined.set_result([task.outcome(index) for index, task in enumerate(children)])

        for task in children:
            task.on_complete(one_done)
        return joined

    # --- producer ---------------------------------------------------------------------------------------

    def set_result(self, value: T) -> bool:
        """Complete with ``value``; True if this settled the task, False if it was settled before."""
        return self._settle(_COMPLETED, value)

    def set_error(self, error: BaseException) -> bool:
        """Fail with ``error``; True if this settled the task."""
        return self._settle(_FAILED, error)

    def set_cancelled(self, reason: str | None = None) -> bool:
        """Settle as cancelled; consumers get a ``TaskCancelledError``. True if this did it."""
        return self._settle(_CANCELLED, TaskCancelledError(reason))

    def _settle_cancelled(self, error: TaskCancelledError) -> bool:
        return self._settle(_CANCELLED, error)

    def _settle(self, status: TaskStatus, value: Any) -> bool:
        with _lock:
            if self._status is not _PENDING:
                return False
            self._value = value
            self._status = status
            callbacks, self._callbacks = self._callbacks, None
        if callbacks is not None:
            for callback in callbacks:
                self._call(callback)
        return True

    def _call(self, callback: Callable[[Any], object]) -> None:
        try:
            callback(self)
        except Exception:
            logger.exception("A callback of %r failed; the others are still called", self)

    # --- consumer ---------------------------------------------------------------------------------------

    @property
    def status(self) -> TaskStatus:
        return self._status

    @property
    def done(self) -> bool:
        return self._status is not _PENDING

    @property
    def cancelled(self) -> bool:
        return self._status is _CANCELLED

    @property
    def error(self) -> BaseException | None:
        """Why there is no value: the failure, or a ``TaskCancelledError``; None if completed or pending."""
        if self._status is _PENDING or self._status is _COMPLETED:
            return None
        return cast("BaseException", self._value)

    def exception(self) -> BaseException | None:
        """The same as ``error``."""
        return self.error

    def result(self) -> T:
        """The value; raises the failure, ``TaskCancelledError``, or while pending ``TaskPendingError``."""
        if self._status is _COMPLETED:
            return cast("T", self._value)
        if self._status is _PENDING:
            raise TaskPendingError
        raise self._value

    def outcome(self, index: int = 0) -> Outcome[T]:
        """How it ended (or that it is pending), as a value."""
        status = self._status
        if status is _COMPLETED:
            return Outcome(index, status, self._value)
        return Outcome(index, status, None, self.error)

    def wait_result(self, timeout: float | None = None) -> T:
        """Wait for the end and return the value, or raise as ``result`` does.

        Raises ``TaskTimeoutError`` when ``timeout`` seconds are over; that cancels nothing.
        """
        if self._status is _PENDING:
            refuse_on_loop_thread("Waiting for a pending result")
            if self._scheduler is None:
                wait_in_thread(self._subscribe, timeout)
            else:
                self._scheduler.wait_completion(self._subscribe, self._is_done, timeout)
            if self._status is _PENDING:
                raise TaskTimeoutError(
                    f"No result within {timeout} s; the work goes on and was not cancelled."
                )
        return self.result()

    def _is_done(self) -> bool:
        return self._status is not _PENDING

    def _subscribe(self, notify: Callable[[], None]) -> Callable[[], None]:
        def told(_: object) -> None:
            notify()

        self.on_complete(told)
        return lambda: self._discard(told)

    def _discard(self, callback: Callable[[Any], object]) -> None:
        with _lock:
            if self._callbacks is not None and callback in self._callbacks:
                self._callbacks.remove(callback)

    def on_complete(self, callback: Callable[[TaskResult[T]], object]) -> None:
        """Call ``callback(self)`` once at the end, in order of registration; at once if it is done already.

        It runs on the thread that settles the task (or on this one): keep it short. One that raises is
        logged and stops no other.
        """
        with _lock:
            if self._status is _PENDING:
                if self._callbacks is None:
                    self._callbacks = [callback]
                else:
                    self._callbacks.append(callback)
                return
        self._call(callback)

    def map(self, function: Callable[[T], U]) -> TaskResult[U]:
        """The result of ``function(value)``; a failure or cancellation passes through."""
        mapped: TaskResult[U] = TaskResult(self._scheduler)

        def ended(task: TaskResult[T]) -> None:
            if task._status is not _COMPLETED:
                mapped._settle(task._status, task._value)
                return
            try:
                value = function(task._value)
            except Exception as error:  # noqa: BLE001 - whatever it is becomes the mapped result
                mapped.set_error(error)
            else:
                mapped.set_result(value)

        self.on_complete(ended)
        return mapped

    def flat_map(self, function: Callable[[T], TaskResult[U]]) -> TaskResult[U]:
        """As ``map`` for a function that itself returns a task: the result of that task."""
        flat: TaskResult[U] = TaskResult(self._scheduler)

        def inner_ended(task: TaskResult[U]) -> None:
            flat._settle(task._status, task._value)

        def outer_ended(task: TaskResult[TaskResult[U]]) -> None:
            if task._status is _COMPLETED:
                task._value.on_complete(inner_ended)
            else:
                flat._settle(task._status, task._value)

        self.map(function).on_complete(outer_ended)
        return flat

    def __await__(self) -> Generator[Any, None, T]:
        """Await from any asyncio loop; a cancelled awaiter cancels nothing.

        With an inline scheduler the awaiting thread itself runs the work.
        """
        if self._status is _PENDING:
            if self._scheduler is not None and self._scheduler.inline:
                self._scheduler.wait_completion(self._subscribe, self._is_done)
            else:
                yield from self._await_future()
        return self.result()

    def _await_future(self) -> Generator[Any, None, None]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()

        def arrive() -> None:
            if not future.done():
                future.set_result(None)

        def notify() -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(arrive)

        undo = self._subscribe(notify)
        try:
            yield from future
        finally:
            undo()
