"""Timers: one thread and one heap for everything that is due later."""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from phronomy_django.engine.errors import RuntimeShutdownError

if TYPE_CHECKING:
    from phronomy_django.engine.scheduling import Scheduler, WorkerHandle

__all__ = ["TimerHandle", "Timers"]

logger = logging.getLogger("phronomy_django.engine")

#: Fewer cancelled entries than this are not worth a rebuild of the heap.
_COMPACT_FROM = 64


class TimerHandle:
    """One call that is due at ``due`` on the monotonic clock."""

    __slots__ = ("_call", "_timers", "due")

    def __init__(self, timers: Timers, due: float, call: Callable[[], object]) -> None:
        self._timers = timers
        self._call: Callable[[], object] | None = call
        self.due = due

    @property
    def pending(self) -> bool:
        return self._call is not None

    def cancel(self) -> bool:
        """True if the call will never be made because of this; False if it comes too late."""
        return self._timers._cancel(self)


class Timers:
    """Calls functions at their time, in order of due time, equal ones in order of request.

    Functions run on the timer thread and have to be short: they post to a loop or settle a result. One that
    raises is logged and stops no other. The thread starts with the first timer.
    """

    def __init__(self, name: str = "phronomy-timers", *, scheduler: Scheduler) -> None:
        self.name = name
        self._scheduler = scheduler
        self._clock = scheduler.clock
        self._changed = threading.Condition(threading.Lock())
        self._heap: list[tuple[float, int, TimerHandle]] = []
        self._sequence = itertools.count()
        self._cancelled = 0
        self._closed = False
        self._handle: WorkerHandle | None = None

    def call_later(self, delay: float, function: Callable[[], object]) -> TimerHandle:
        """Call ``function`` in ``delay`` seconds, as soon as possible if that is not positive.

        Raises ``RuntimeShutdownError`` once the timers are closed.
        """
        handle = TimerHandle(self, self._clock.monotonic() + max(0.0, delay), function)
        with self._changed:
            if self._closed:
                raise RuntimeShutdownError(
                    f"The timers {self.name!r} are closed; nothing more can be scheduled."
                )
            heapq.heappush(self._heap, (handle.due, next(self._sequence), handle))
            if self._handle is None:
                self._handle = self._scheduler.start(self)
            elif self._heap[0][2] is handle:
                self._changed.notify()
        self._scheduler.wake()
        return handle

    @property
    def pending(self) -> int:
        """How many calls are still to come."""
        with self._changed:
            return len(self._heap) - self._cancelled

    def close(self) -> None:
        """Make no further calls; what is pending is dropped. Idempotent."""
        with self._changed:
            self._closed = True
            for _, _, handle in self._heap:
                handle._call = None
            self._heap.clear()
            self._cancelled = 0
            self._changed.notify_all()

    def wait_closed(self, deadline: float) -> bool:
        """Whether the timer thread has ended by ``deadline`` (monotonic seconds)."""
        handle = self._handle
        return handle is None or handle.join(max(0.0, deadline - self._clock.monotonic()))

    def _cancel(self, handle: TimerHandle) -> bool:
        with self._changed:
            if handle._call is None:
                return False
            handle._call = None
            self._cancelled += 1
            if self._cancelled > _COMPACT_FROM and self._cancelled * 2 > len(self._heap):
                self._heap = [entry for entry in self._heap if entry[2]._call is not None]
                heapq.heapify(self._heap)
                self._cancelled = 0
            return True

    # --- worker -----------------------------------------------------------------------------------------

    def run_step(self, *, block: bool) -> bool:
        with self._changed:
            call = self._take_due()
            while call is None:
                if self._closed or not block:
                    return False
                self._changed.wait(None if not self._heap else self._heap[0][0] - self._clock.monotonic())
                call = self._take_due()
        try:
            call()
        except Exception:
            logger.exception("A timer's function failed; the other timers go on")
        return True

    def _take_due(self) -> Callable[[], object] | None:
        self._drop_cancelled()
        if not self._heap or self._heap[0][0] > self._clock.monotonic():
            return None
        handle = heapq.heappop(self._heap)[2]
        call, handle._call = handle._call, None
        return call

    def _drop_cancelled(self) -> None:
        while self._heap and self._heap[0][2]._call is None:
            heapq.heappop(self._heap)
            self._cancelled -= 1

    def runnable(self) -> bool:
        due = self.next_deadline()
        return due is not None and due <= self._clock.monotonic()

    def next_deadline(self) -> float | None:
        with self._changed:
            self._drop_cancelled()
            return self._heap[0][0] if self._heap else None

    def finished(self) -> bool:
        return self._closed
