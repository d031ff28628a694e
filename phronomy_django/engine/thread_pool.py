"""The offload pool of threads."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from phronomy_django.engine.jobs import Job
from phronomy_django.engine.pools import BoundedPool

if TYPE_CHECKING:
    from phronomy_django.engine.scheduling import Scheduler, WorkerHandle
    from phronomy_django.engine.timers import Timers

__all__ = ["ThreadPool"]

Around = Callable[[Callable[[], Any]], Any]


class ThreadPool(BoundedPool):
    """At most ``size`` threads, started as they are needed.

    ``around(body)`` wraps every body and has to return what it returns (connection hygiene is injected from
    above); ``on_thread_end`` is called last on each of the pool's threads.
    """

    def __init__(
        self,
        name: str,
        *,
        size: int,
        queue_size: int,
        scheduler: Scheduler,
        around: Around | None = None,
        on_thread_end: Callable[[], object] | None = None,
        timers: Timers | None = None,
    ) -> None:
        super().__init__(name, size=size, queue_size=queue_size, scheduler=scheduler, timers=timers)
        self._around = around
        self._on_thread_end = on_thread_end
        self._arrived = threading.Condition(self._lock)
        self._idle = 0
        self._workers: list[WorkerHandle] = []

    def _launch(self) -> None:
        with self._lock:
            if self._idle >= len(self._ready):
                self._arrived.notify()
            elif len(self._workers) < self._size:
                worker = _PoolThread(self, f"{self.name}-{len(self._workers) + 1}")
                self._workers.append(self._scheduler.start(worker))
                self._idle += self._scheduler.inline

    def _close_workers(self) -> None:
        with self._lock:
            self._arrived.notify_all()

    def _workers_ended(self, deadline: float) -> bool:
        clock = self._scheduler.clock
        return all(worker.join(max(0.0, deadline - clock.monotonic())) for worker in list(self._workers))

    def _next_job(self) -> Job | None:
        """On a thread of the pool: wait for a job; None when the pool is closed."""
        while (job := self._take()) is None:
            with self._lock:
                if self._closed:
                    return None
                if not self._ready:
                    self._idle += 1
                    self._arrived.wait()
                    self._idle -= 1
        return job

    def _run_one(self) -> bool:
        job = self._next_job()
        if job is not None:
            self._run(job)
        return job is not None

    def _run_one_inline(self) -> bool:
        """In the caller's thread, where an idle worker is one without a step on the stack."""
        job = self._take()
        if job is None:
            return False
        self._idle -= 1
        try:
            error = self._run(job)
        finally:
            self._idle += 1
        if error is not None and not isinstance(error, Exception):
            raise error
        return True

    def _run(self, job: Job) -> BaseException | None:
        try:
            value = job.operation() if self._around is None else self._around(job.operation)
        except BaseException as error:  # noqa: BLE001 - it becomes the result
            self._ended(job, None, error)
            return error
        self._ended(job, value, None)
        return None


class _PoolThread:
    """One thread of a pool."""

    def __init__(self, pool: ThreadPool, name: str) -> None:
        self._pool = pool
        self.name = name

    def run_step(self, *, block: bool) -> bool:
        return self._pool._run_one() if block else self._pool._run_one_inline()

    def runnable(self) -> bool:
        return bool(self._pool._ready)

    def finished(self) -> bool:
        return self._pool._closed and not self._pool._ready

    def thread_ended(self) -> None:
        if self._pool._on_thread_end is not None:
            self._pool._on_thread_end()
