"""Workers, and where they run: on threads of their own here, in one thread by ``deterministic``.

A worker is anything that would own a thread: the event loop, a pool's thread, the timers, a durable writer.
It says what one step is; the scheduler decides when and where a step happens. So the engine runs unchanged
on real threads and in virtual time.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Protocol, runtime_checkable

from phronomy_django.engine.clock import Clock, SystemClock
from phronomy_django.engine.current import refuse_on_loop_thread

__all__ = ["Scheduler", "ThreadScheduler", "TimedWorker", "Worker", "WorkerHandle", "wait_in_thread"]

logger = logging.getLogger("phronomy_django.engine")

#: Seconds after which a predicate is looked at again although nobody called ``wake``.
RECHECK = 0.1


class Worker(Protocol):
    """One unit of concurrency. ``name`` becomes the name of its thread."""

    name: str

    def run_step(self, *, block: bool) -> bool:
        """Do one piece of work and return True.

        With ``block`` it may wait for work; without, it returns False at once when there is none. False
        with ``block`` means: closed and drained. It must not raise.
        """

    def runnable(self) -> bool:
        """Whether a step that does not block would do something now."""

    def finished(self) -> bool:
        """Closed and drained: no step will ever do anything again."""


@runtime_checkable
class TimedWorker(Protocol):
    """A worker that becomes runnable by time alone."""

    def next_deadline(self) -> float | None:
        """The monotonic time at which it becomes runnable, or None."""


@runtime_checkable
class ThreadBoundWorker(Protocol):
    """A worker that keeps something for each thread, such as database connections."""

    def thread_ended(self) -> None:
        """Called last on the worker's own thread; never when it shared the caller's thread."""


class WorkerHandle(Protocol):
    """A started worker."""

    @property
    def alive(self) -> bool:
        """Whether it may still do something."""

    def join(self, timeout: float | None = None) -> bool:
        """Wait until it has ended; False when ``timeout`` seconds were over first."""


class Scheduler(Protocol):
    """Where workers run and how callers wait. ``inline``: waiting is what makes the workers run."""

    @property
    def clock(self) -> Clock: ...

    @property
    def inline(self) -> bool: ...

    def start(self, worker: Worker) -> WorkerHandle:
        """Let ``worker`` run until it is finished."""

    def wait(self, predicate: Callable[[], bool], timeout: float | None = None) -> bool:
        """Wait until ``predicate()`` holds; its last value when ``timeout`` seconds are over.

        Whoever changes what a predicate reads calls ``wake`` afterwards. Raises
        ``EventLoopReentrancyError`` on an event loop's thread.
        """

    def wait_completion(
        self,
        subscribe: Callable[[Callable[[], None]], Callable[[], None]],
        done: Callable[[], bool],
        timeout: float | None = None,
    ) -> bool:
        """As ``wait`` for ``done``; ``subscribe(fn)`` has ``fn`` called at the end and gives its undo."""

    def wake(self) -> None:
        """Something changed that a waiter's predicate may read. Cheap when nobody waits."""


class _ThreadHandle:
    def __init__(self, thread: threading.Thread) -> None:
        self._thread = thread

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def join(self, timeout: float | None = None) -> bool:
        if self._thread is threading.current_thread():
            return False
        self._thread.join(timeout if timeout is None else max(0.0, timeout))
        return not self._thread.is_alive()


def wait_in_thread(
    subscribe: Callable[[Callable[[], None]], Callable[[], None]], timeout: float | None = None
) -> None:
    """Block this thread until the subscribed call comes or ``timeout`` seconds are over."""
    arrived = threading.Event()
    undo = subscribe(arrived.set)
    if not arrived.wait(timeout if timeout is None else max(0.0, timeout)):
        undo()


class ThreadScheduler:
    """Every worker on a daemon thread of its own, by the machine's clock."""

    inline = False

    def __init__(self, clock: Clock | None = None) -> None:
        self.clock: Clock = clock if clock is not None else SystemClock()
        self._changed = threading.Condition(threading.Lock())
        self._waiters = 0

    def start(self, worker: Worker) -> WorkerHandle:
        thread = threading.Thread(target=self._run, args=(worker,), name=worker.name, daemon=True)
        thread.start()
        return _ThreadHandle(thread)

    def _run(self, worker: Worker) -> None:
        try:
            while not worker.finished():
                worker.run_step(block=True)
        except Exception:
            logger.exception("The worker %s failed and its thread ends", worker.name)
            raise
        finally:
            if isinstance(worker, ThreadBoundWorker):
                worker.thread_ended()
            self.wake()

    def wait(self, predicate: Callable[[], bool], timeout: float | None = None) -> bool:
        refuse_on_loop_thread("This wait")
        deadline = None if timeout is None else self.clock.monotonic() + timeout
        with self._changed:
            self._waiters += 1
        try:
            while True:
                with self._changed:
                    if predicate():
                        return True
                    left = RECHECK if deadline is None else min(RECHECK, deadline - self.clock.monotonic())
                    if left <= 0:
                        return False
                    self._changed.wait(left)
        finally:
            with self._changed:
                self._waiters -= 1

    def wait_completion(
        self,
        subscribe: Callable[[Callable[[], None]], Callable[[], None]],
        done: Callable[[], bool],
        timeout: float | None = None,
    ) -> bool:
        refuse_on_loop_thread("This wait")
        wait_in_thread(subscribe, timeout)
        return done()

    def wake(self) -> None:
        if self._waiters:
            with self._changed:
                self._changed.notify_all()
