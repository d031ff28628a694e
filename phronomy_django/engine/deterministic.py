"""The deterministic scheduler: every worker in the calling thread, one step at a time, in a seeded order."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import TypeVar

from phronomy_django.engine.clock import Clock, SystemClock
from phronomy_django.engine.current import refuse_on_loop_thread
from phronomy_django.engine.errors import DeadlockError
from phronomy_django.engine.scheduling import TimedWorker, Worker, WorkerHandle

__all__ = ["DeterministicScheduler", "VirtualClock"]

T = TypeVar("T")

_EPOCH = datetime(2026, 1, 1, tzinfo=UTC)


class VirtualClock:
    """A clock that stands still until it is moved; the date starts at 2026-01-01 and moves with it."""

    def __init__(self, start: datetime = _EPOCH) -> None:
        self._start = start
        self._elapsed = 0.0

    def monotonic(self) -> float:
        return self._elapsed

    def now(self) -> datetime:
        return self._start + timedelta(seconds=self._elapsed)

    def advance(self, seconds: float) -> None:
        """Move on by ``seconds``, never back."""
        self.advance_to(self._elapsed + seconds)

    def advance_to(self, moment: float) -> None:
        """Move on to the monotonic time ``moment``, never back."""
        self._elapsed = max(self._elapsed, moment)


class _Baton:
    """A lock that its holder may take again, and may lend to another thread that it waits for."""

    def __init__(self) -> None:
        self._free = threading.Condition(threading.Lock())
        self._holder: int | None = None
        self._depth = 0

    @contextmanager
    def held(self) -> Iterator[None]:
        me = threading.get_ident()
        with self._free:
            while self._holder not in (None, me):
                self._free.wait()
            self._holder = me
            self._depth += 1
        try:
            yield
        finally:
            with self._free:
                self._depth -= 1
                if not self._depth:
                    self._holder = None
                    self._free.notify()

    def pass_on(self, holder: int) -> None:
        with self._free:
            if self._depth:
                self._holder = holder


class _Slot:
    """A started worker; ``busy`` while a step of it is on the stack."""

    __slots__ = ("_scheduler", "busy", "worker")

    def __init__(self, scheduler: DeterministicScheduler, worker: Worker) -> None:
        self._scheduler = scheduler
        self.worker = worker
        self.busy = False

    @property
    def alive(self) -> bool:
        return self.busy or not self.worker.finished()

    def join(self, timeout: float | None = None) -> bool:
        return self._scheduler.wait(lambda: not self.alive, timeout)


class DeterministicScheduler:
    """Runs the whole engine in the calling thread; the same seed gives the same run.

    Nothing happens by itself: ``wait`` (and everything that waits, such as ``TaskResult.wait_result``) takes
    steps of runnable workers until its predicate holds. When nothing is runnable, time moves to the next
    timer. When there is no timer either and no timeout, ``DeadlockError`` tells which workers there are.

    A body that itself waits stays on the stack meanwhile, and an outer wait returns only after it: the times
    at which things happen are right, the moment at which an outer wait returns may be later.

    ``seed`` None lets workers take turns in the order in which they were started; a number draws the next
    one at random. With ``real_time`` the machine's clock is used and waiting for a timer takes its time.
    """

    inline = True

    def __init__(
        self, seed: int | None = None, *, clock: Clock | None = None, real_time: bool = False
    ) -> None:
        if real_time and clock is None:
            clock = SystemClock()
        self.clock: Clock = clock if clock is not None else VirtualClock()
        self.real_time = real_time
        if not real_time and not isinstance(self.clock, VirtualClock):
            raise ValueError("Without real_time the clock has to be a VirtualClock, which can be moved.")
        self._random = None if seed is None else random.Random(seed)  # noqa: S311 - reproducible on purpose
        self._slots: list[_Slot] = []
        self._baton = _Baton()
        self.steps = 0

    def start(self, worker: Worker) -> WorkerHandle:
        slot = _Slot(self, worker)
        self._slots.append(slot)
        return slot

    def wake(self) -> None:
        """Nobody sleeps here: waiters run the workers themselves."""

    # --- steps ------------------------------------------------------------------------------------------

    def step(self) -> bool:
        """Take one step of one runnable worker; False if there is none."""
        refuse_on_loop_thread("Taking a step")
        with self._baton.held():
            return self._step()

    def _step(self) -> bool:
        self._slots = [slot for slot in self._slots if slot.alive]
        runnable = [slot for slot in self._slots if not slot.busy and slot.worker.runnable()]
        if not runnable:
            return False
        if self._random is not None:
            slot = self._random.choice(runnable)
        else:
            slot = runnable[0]
            self._slots.remove(slot)
            self._slots.append(slot)
        slot.busy = True
        try:
            slot.worker.run_step(block=False)
        finally:
            slot.busy = False
        self.steps += 1
        return True

    def run_until_idle(self) -> None:
        """Take steps until nothing is runnable at this moment; time does not move."""
        refuse_on_loop_thread("Running the workers")
        with self._baton.held():
            while self._step():
                pass

    def advance(self, seconds: float) -> None:
        """Let ``seconds`` pass, with everything that becomes due meanwhile."""
        self.wait(lambda: False, seconds)
        self.run_until_idle()

    # --- waiting ----------------------------------------------------------------------------------------

    def wait(self, predicate: Callable[[], bool], timeout: float | None = None) -> bool:
        refuse_on_loop_thread("This wait")
        deadline = None if timeout is None else self.clock.monotonic() + timeout
        with self._baton.held():
            while not predicate():
                if deadline is not None and self.clock.monotonic() >= deadline:
                    return False
                if not self._step():
                    self._pass_time(deadline)
            return True

    def wait_completion(
        self,
        subscribe: Callable[[Callable[[], None]], Callable[[], None]],
        done: Callable[[], bool],
        timeout: float | None = None,
    ) -> bool:
        return self.wait(done, timeout)

    def _pass_time(self, deadline: float | None) -> None:
        moments = [] if deadline is None else [deadline]
        for slot in self._slots:
            if not slot.busy and isinstance(slot.worker, TimedWorker):
                due = slot.worker.next_deadline()
                if due is not None:
                    moments.append(due)
        if not moments:
            raise DeadlockError(self._deadlock())
        if isinstance(self.clock, VirtualClock):
            self.clock.advance_to(min(moments))
        else:
            time.sleep(max(0.0, min(moments) - self.clock.monotonic()))

    def _deadlock(self) -> str:
        workers = ", ".join(
            f"{slot.worker.name} ({'in a step that waits' if slot.busy else 'nothing to do'})"
            for slot in self._slots
        )
        return (
            "What is waited for cannot happen any more: no worker is runnable and no timer is pending. "
            f"Workers: {workers or 'none'}. Look for the event that was never posted."
        )

    def run_in_helper(self, function: Callable[[], T]) -> T:
        """Run ``function`` in a thread of its own and wait for it; it may drive this scheduler meanwhile."""
        outcome: list[T] = []
        failure: list[BaseException] = []
        me = threading.get_ident()

        def body() -> None:
            self._baton.pass_on(threading.get_ident())
            try:
                outcome.append(function())
            except BaseException as error:  # noqa: BLE001 - carried over to the waiting thread
                failure.append(error)
            finally:
                self._baton.pass_on(me)

        thread = threading.Thread(target=body, name="phronomy-inline-helper", daemon=True)
        thread.start()
        thread.join()
        if failure:
            raise failure[0]
        return outcome[0]
