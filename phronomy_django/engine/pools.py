"""Offload pools: the named, bounded places for blocking work, and the accounting that all kinds share."""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, TypeVar

from phronomy_django.engine.current import refuse_on_loop_thread
from phronomy_django.engine.errors import (
    BackpressureError,
    RuntimeShutdownError,
    TaskCancelledError,
    TaskTimeoutError,
)
from phronomy_django.engine.jobs import Cancelable, Job, JobState, Reservation, WaitingReservation
from phronomy_django.engine.metrics import PoolMetrics
from phronomy_django.engine.results import TaskResult
from phronomy_django.engine.timers import Timers

if TYPE_CHECKING:
    from phronomy_django.engine.cancellation import CancellationToken
    from phronomy_django.engine.scheduling import Scheduler

__all__ = ["BoundedPool", "OffloadPool", "OnFull"]

logger = logging.getLogger("phronomy_django.engine")

T = TypeVar("T")
OnFull: TypeAlias = Literal["raise", "wait"]
_Entry: TypeAlias = "Job | WaitingReservation"


class OffloadPool(Protocol):
    """A bounded number of slots for work and a bounded queue for what waits for one."""

    name: str

    @property
    def size(self) -> int: ...

    def submit(
        self,
        operation: Callable[[], Any],
        *,
        timeout: float | None = None,
        cancellation_token: CancellationToken | None = None,
        on_full: OnFull = "raise",
        reservation: Reservation | None = None,
        on_physical_end: Callable[[], object] | None = None,
    ) -> TaskResult[Any]:
        """Run ``operation`` in a slot of its own; its value or exception becomes the result.

        ``timeout`` seconds count from here. Running out, or a cancelled token, before the start means that
        the work never runs; after the start the caller is settled at once and the work is abandoned: it keeps
        its slot and is counted until it really ends.

        ``on_physical_end`` is called once, when the work is over for good (DESIGN §3, rule 9): before the
        result is settled where the work ended by itself or never started, afterwards if it was abandoned.

        A full queue raises ``BackpressureError``; ``on_full="wait"`` waits for room and is refused
        on the loop's thread. With a ``reservation`` it takes that slot, never queues. A closed pool
        raises ``RuntimeShutdownError``. When ``submit`` raises, nothing was created and a reservation that
        it was given is released.
        """

    def try_reserve(self) -> Reservation | None:
        """A free slot, held until it is released or used by ``submit``; None if there is none."""

    def reserve_later(self, callback: Callable[[Reservation | BaseException], object]) -> Cancelable:
        """Call ``callback`` once with a slot as soon as it is this request's turn, at once if one is free.

        First come, first served, together with queued work. It runs on any thread: keep it short. It gets a
        ``RuntimeShutdownError`` if the pool closes first. A full queue raises ``BackpressureError``.
        """

    def begin_close(self) -> None:
        """Take nothing more; fail what has not started; let what runs end. Idempotent, does not wait."""

    def wait_closed(self, deadline: float) -> bool:
        """Whether everything has physically ended by ``deadline`` (monotonic seconds)."""

    def metrics(self) -> PoolMetrics: ...


class BoundedPool(ABC):
    """Slots, the queue for them, reservations, timeouts, closing. A kind says where bodies run."""

    def __init__(
        self, name: str, *, size: int, queue_size: int, scheduler: Scheduler, timers: Timers | None = None
    ) -> None:
        if size < 1 or queue_size < 0:
            raise ValueError(f"The pool {name!r} needs a size of at least 1 and a queue size of at least 0.")
        self.name = name
        self._size = size
        self._queue_size = queue_size
        self._scheduler = scheduler
        self._own_timers = timers is None
        self._timers = timers if timers is not None else Timers(f"{name}-timers", scheduler=scheduler)
        self._lock = threading.Lock()
        self._waiting: OrderedDict[_Entry, None] = OrderedDict()
        self._ready: deque[Job] = deque()
        self._active = 0
        self._reserved = 0
        self._abandoned = 0
        self._started = 0
        self._refused = 0
        self._closed = False

    @property
    def size(self) -> int:
        return self._size

    # --- where bodies run ---------------------------------------------------------------------------------

    @abstractmethod
    def _launch(self) -> None:
        """A job has become ready: have some worker take it. Called without the lock."""

    @abstractmethod
    def _close_workers(self) -> None:
        """Let the workers end once nothing is ready. Called without the lock."""

    @abstractmethod
    def _workers_ended(self, deadline: float) -> bool:
        """Whether all workers have ended by ``deadline``."""

    def _interrupt(self, job: Job) -> None:  # noqa: B027 - threads cannot be interrupted
        """A running body was abandoned: stop it really if this kind of pool can."""

    # --- submit -------------------------------------------------------------------------------------------

    def submit(
        self,
        operation: Callable[[], Any],
        *,
        timeout: float | None = None,
        cancellation_token: CancellationToken | None = None,
        on_full: OnFull = "raise",
        reservation: Reservation | None = None,
        on_physical_end: Callable[[], object] | None = None,
    ) -> TaskResult[Any]:
        if on_full == "wait" and reservation is None:
            refuse_on_loop_thread(f"Waiting for room in the pool {self.name!r}")
        deadline = None if timeout is None else self._scheduler.clock.monotonic() + timeout
        job = Job(operation, TaskResult(self._scheduler), on_physical_end)
        if reservation is not None:
            self._use(reservation, job)
        else:
            while not self._admit(job, wait=on_full == "wait"):
                refusal = self._wait_for_room(deadline, cancellation_token)
                if refusal is not None:
                    job.state = JobState.WITHDRAWN
                    job.end()
                    job.settle(refusal)
                    return job.result
        self._watch(job, deadline, cancellation_token)
        if job.state is JobState.READY:
            self._launch()
        return job.result

    def _use(self, reservation: Reservation, job: Job) -> None:
        with self._lock:
            if reservation.pool is not self or not reservation.held:
                raise ValueError(f"The reservation is not a held slot of the pool {self.name!r}.")
            reservation.held = False
            self._reserved -= 1
            if not self._closed:
                self._active += 1
                job.state = JobState.READY
                self._ready.append(job)
                return
        raise self._closed_error()

    def _admit(self, job: Job, *, wait: bool) -> bool:
        with self._lock:
            if self._closed:
                raise self._closed_error()
            if self._free() > 0:
                self._active += 1
                job.state = JobState.READY
                self._ready.append(job)
            elif len(self._waiting) < self._queue_size:
                self._waiting[job] = None
            elif wait:
                return False
            else:
                self._refused += 1
                raise self._full_error()
            return True

    def _wait_for_room(self, deadline: float | None, token: CancellationToken | None) -> BaseException | None:
        """None once there may be room; the reason why the work will not run otherwise."""
        undo = token.on_cancel(self._scheduler.wake) if token is not None else None
        try:
            left = None if deadline is None else deadline - self._scheduler.clock.monotonic()
            came = self._scheduler.wait(
                lambda: self._has_room() or (token is not None and token.cancelled), left
            )
        finally:
            if undo is not None:
                undo()
        if token is not None and token.cancelled:
            return TaskCancelledError(token.reason)
        return None if came else self._timeout_error()

    def _has_room(self) -> bool:
        with self._lock:
            return self._closed or self._free() > 0 or len(self._waiting) < self._queue_size

    def _free(self) -> int:
        return self._size - self._active - self._reserved

    def _watch(self, job: Job, deadline: float | None, token: CancellationToken | None) -> None:
        if deadline is not None:
            left = deadline - self._scheduler.clock.monotonic()
            if left <= 0:
                self._give_up(job, self._timeout_error())
                return
            timer = self._timers.call_later(left, lambda: self._give_up(job, self._timeout_error()))
            job.watch(timer.cancel)
            job.deadline = deadline
        if token is not None:
            job.watch(token.on_cancel(lambda: self._give_up(job, TaskCancelledError(token.reason))))

    # --- reservations -------------------------------------------------------------------------------------

    def try_reserve(self) -> Reservation | None:
        with self._lock:
            if self._closed or self._free() <= 0:
                return None
            self._reserved += 1
            return Reservation(self)

    def reserve_later(self, callback: Callable[[Reservation | BaseException], object]) -> Cancelable:
        request = WaitingReservation(self, callback)
        with self._lock:
            if self._closed:
                raise self._closed_error()
            if self._free() <= 0:
                if len(self._waiting) >= self._queue_size:
                    self._refused += 1
                    raise self._full_error()
                self._waiting[request] = None
                return request
            self._reserved += 1
        request.answer(Reservation(self))
        return request

    def release_reservation(self, reservation: Reservation) -> None:
        """For ``Reservation.release``."""
        with self._lock:
            if not reservation.held:
                return
            reservation.held = False
            self._reserved -= 1
        self._hand_out()

    def withdraw_request(self, request: WaitingReservation) -> bool:
        """For ``Cancelable.cancel``."""
        with self._lock:
            gone = request in self._waiting
            if gone:
                del self._waiting[request]
        if gone:
            self._scheduler.wake()
        return gone

    # --- slots --------------------------------------------------------------------------------------------

    def _hand_out(self) -> None:
        """Give free slots to those who wait, in their order; then tell waiters that room may have come."""
        granted: list[_Entry] = []
        with self._lock:
            while self._waiting and self._free() > 0:
                entry, _ = self._waiting.popitem(last=False)
                granted.append(entry)
                if isinstance(entry, Job):
                    self._active += 1
                    entry.state = JobState.READY
                    self._ready.append(entry)
                else:
                    self._reserved += 1
        for entry in granted:
            if isinstance(entry, Job):
                self._launch()
            else:
                entry.answer(Reservation(self))
        self._scheduler.wake()

    def _take(self) -> Job | None:
        """The next ready job, now running; None if there is none."""
        with self._lock:
            if not self._ready:
                return None
            job = self._ready.popleft()
            job.state = JobState.RUNNING
            self._started += 1
            return job

    def _ended(self, job: Job, value: Any, error: BaseException | None) -> None:
        """The body of ``job`` is physically over: give the slot on, tell, settle."""
        with self._lock:
            if job.state is JobState.ABANDONED:
                self._abandoned -= 1
            job.state = JobState.OVER
            self._active -= 1
        job.unwatch()
        job.end()
        self._hand_out()
        job.settle(error, value)

    def _give_up(self, job: Job, error: BaseException) -> None:
        """A timeout, a cancelled token or the closing pool: withdraw what waits, abandon what runs."""
        with self._lock:
            was = job.state
            if was is JobState.WAITING:
                del self._waiting[job]
            elif was is JobState.READY:
                self._ready.remove(job)
                self._active -= 1
            elif was is JobState.RUNNING:
                self._abandoned += 1
            else:
                return
            job.state = JobState.ABANDONED if was is JobState.RUNNING else JobState.WITHDRAWN
        job.unwatch()
        if job.state is JobState.WITHDRAWN:
            job.end()
            self._hand_out()
        job.settle(error)
        if was is JobState.RUNNING:
            self._interrupt(job)

    # --- closing and readings -----------------------------------------------------------------------------

    def begin_close(self) -> None:
        with self._lock:
            self._closed = True
            unstarted = list(self._ready)
            requests = []
            for entry in list(self._waiting):
                if isinstance(entry, Job):
                    unstarted.append(entry)
                else:
                    requests.append(entry)
                    del self._waiting[entry]
        error = self._closed_error()
        for job in unstarted:
            self._give_up(job, error)
        for request in requests:
            request.answer(error)
        if self._own_timers:
            self._timers.close()
        self._close_workers()
        self._scheduler.wake()

    def wait_closed(self, deadline: float) -> bool:
        left = deadline - self._scheduler.clock.monotonic()
        if not self._scheduler.wait(lambda: self._closed and not self._active, max(0.0, left)):
            return False
        ended = self._workers_ended(deadline)
        return (not self._own_timers or self._timers.wait_closed(deadline)) and ended

    def metrics(self) -> PoolMetrics:
        with self._lock:
            return PoolMetrics(
                size=self._size,
                queue_size=self._queue_size,
                active=self._active - len(self._ready),
                queued=len(self._waiting) + len(self._ready),
                reserved=self._reserved,
                abandoned=self._abandoned,
                started=self._started,
                refused=self._refused,
            )

    def _closed_error(self) -> RuntimeShutdownError:
        return RuntimeShutdownError(f"The pool {self.name!r} is closed; the work was not started.")

    def _full_error(self) -> BackpressureError:
        return BackpressureError(
            f"All {self._size} slots of the pool {self.name!r} are taken and {len(self._waiting)} wait; "
            f"nothing was started. Try again later, or make the pool or its queue larger."
        )

    def _timeout_error(self) -> TaskTimeoutError:
        return TaskTimeoutError(f"The work in the pool {self.name!r} did not end in its time.")
