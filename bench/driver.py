"""Keeps a number of runs in flight for a bounded time, and counts: the same for everything that is compared."""

from __future__ import annotations

import asyncio
import statistics
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

__all__ = ["Sample", "Watch", "drive_async", "drive_threads"]

Sample = dict[str, float]


class Watch:
    """The latencies of one cell, and when it is over: after ``seconds`` or ``runs``, whichever is first."""

    def __init__(self, seconds: float, runs: int) -> None:
        self._lock = threading.Lock()
        self._left = runs
        self.latencies: list[float] = []
        self.failure: BaseException | None = None
        self._started = self._last = time.perf_counter()
        self._cpu = time.process_time()
        self._until = self._started + seconds

    def more(self) -> bool:
        """Whether one more run may start; it is taken from the budget."""
        with self._lock:
            if self._left <= 0 or self.failure is not None or time.perf_counter() >= self._until:
                return False
            self._left -= 1
            return True

    def ended(self, sent: float) -> None:
        """A run that was sent at ``sent`` has ended now."""
        self._last = now = time.perf_counter()
        self.latencies.append(now - sent)

    def failed(self, error: BaseException) -> None:
        self.failure = self.failure or error

    def sample(self) -> Sample:
        """Rate, percentiles in milliseconds, CPU of this process in microseconds a run."""
        if self.failure is not None:
            raise self.failure
        count, took = len(self.latencies), self._last - self._started
        cuts = statistics.quantiles(self.latencies, n=20, method="inclusive") if count > 1 else []
        return {
            "runs": count,
            "rate": count / took,
            "p50_ms": 1000 * statistics.median(self.latencies),
            "p95_ms": 1000 * (cuts[-1] if cuts else self.latencies[0]),
            "cpu_us": 1_000_000 * (time.process_time() - self._cpu) / count,
        }


def drive_threads(work: Callable[[int], Any], slots: int, seconds: float, runs: int) -> Sample:
    """``slots`` threads; each calls ``work(slot)`` again and again. One call before the clock starts."""
    ready = threading.Barrier(slots + 1)
    go = threading.Event()
    watches: list[Watch] = []
    broken: list[BaseException] = []

    def live(slot: int) -> None:
        try:
            work(slot)
        except BaseException as error:
            broken.append(error)
        ready.wait()
        go.wait()
        watch = watches[0]
        while watch.more():
            sent = time.perf_counter()
            try:
                work(slot)
            except BaseException as error:
                watch.failed(error)
                return
            watch.ended(sent)

    threads = [threading.Thread(target=live, args=(slot,), daemon=True) for slot in range(slots)]
    for thread in threads:
        thread.start()
    ready.wait()
    watches.append(Watch(0 if broken else seconds, runs))
    go.set()
    for thread in threads:
        thread.join()
    if broken:
        raise broken[0]
    return watches[0].sample()


async def drive_async(work: Callable[[int], Awaitable[Any]], slots: int, seconds: float, runs: int) -> Sample:
    """``slots`` tasks of this event loop; each awaits ``work(slot)`` again and again."""
    await asyncio.gather(*(work(slot) for slot in range(slots)))
    watch = Watch(seconds, runs)

    async def live(slot: int) -> None:
        while watch.more():
            sent = time.perf_counter()
            await work(slot)
            watch.ended(sent)

    await asyncio.gather(*(live(slot) for slot in range(slots)))
    return watch.sample()
