"""The pieces that a pool accounts for: jobs, reservations, and requests for one."""

from __future__ import annotations

import logging
from collections.abc import Callable
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, Protocol

from phronomy_django.engine.errors import TaskCancelledError
from phronomy_django.engine.results import TaskResult

if TYPE_CHECKING:
    from phronomy_django.engine.pools import BoundedPool

__all__ = ["Cancelable", "Job", "JobState", "Reservation", "WaitingReservation"]

logger = logging.getLogger("phronomy_django.engine")


class Cancelable(Protocol):
    """Something requested that can be taken back."""

    def cancel(self) -> bool:
        """True if what was requested will not happen; False if it has happened or is happening."""


class JobState(Enum):
    WAITING = auto()
    READY = auto()
    RUNNING = auto()
    ABANDONED = auto()
    WITHDRAWN = auto()
    OVER = auto()


class Job:
    """One piece of submitted work. Its state changes under the pool's lock only."""

    __slots__ = ("_on_physical_end", "_undo", "deadline", "extra", "operation", "result", "state")

    def __init__(
        self,
        operation: Callable[[], Any],
        result: TaskResult[Any],
        on_physical_end: Callable[[], object] | None,
    ) -> None:
        self.operation = operation
        self.result = result
        self.state = JobState.WAITING
        self.deadline: float | None = None
        self.extra: Any = None
        self._on_physical_end = on_physical_end
        self._undo: list[Callable[[], object]] = []

    def watch(self, undo: Callable[[], object]) -> None:
        """Remember how to take back a timer or a subscription; taken back at once if it comes too late."""
        self._undo.append(undo)
        if self.state in (JobState.OVER, JobState.WITHDRAWN, JobState.ABANDONED):
            self.unwatch()

    def unwatch(self) -> None:
        while True:
            try:
                undo = self._undo.pop()
            except IndexError:  # another thread may take the last one
                return
            undo()

    def end(self) -> None:
        """The work is over for good: tell it, once."""
        tell, self._on_physical_end = self._on_physical_end, None
        if tell is not None:
            try:
                tell()
            except Exception:
                logger.exception("A callback for the physical end of work failed")

    def settle(self, error: BaseException | None, value: Any = None) -> None:
        """Settle the caller, if that has not happened yet."""
        if error is None:
            self.result.set_result(value)
        elif isinstance(error, TaskCancelledError):
            self.result._settle_cancelled(error)
        else:
            self.result.set_error(error)


class Reservation:
    """A slot that is held for somebody; give it to ``submit(reservation=…)`` or release it."""

    __slots__ = ("held", "pool")

    def __init__(self, pool: BoundedPool) -> None:
        self.pool = pool
        self.held = True

    def release(self) -> None:
        """Give the slot back. Idempotent, and without effect once it was used."""
        self.pool.release_reservation(self)


class WaitingReservation:
    """A request that waits for its slot in the pool's queue."""

    __slots__ = ("_callback", "_pool")

    def __init__(self, pool: BoundedPool, callback: Callable[[Reservation | BaseException], object]) -> None:
        self._pool = pool
        self._callback = callback

    def cancel(self) -> bool:
        return self._pool.withdraw_request(self)

    def answer(self, answer: Reservation | BaseException) -> None:
        try:
            self._callback(answer)
        except Exception:
            logger.exception("A callback for a reserved slot of the pool %s failed", self._pool.name)
            if isinstance(answer, Reservation):
                answer.release()
