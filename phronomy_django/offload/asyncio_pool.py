"""The offload pool of coroutines: one thread, one asyncio loop, as many bodies at once as it has slots."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from inspect import isawaitable
from typing import Any

from phronomy_django.engine.deterministic import DeterministicScheduler
from phronomy_django.engine.errors import TaskCancelledError
from phronomy_django.engine.jobs import Job, JobState
from phronomy_django.engine.pools import BoundedPool
from phronomy_django.engine.scheduling import Scheduler, WorkerHandle
from phronomy_django.engine.timers import Timers

__all__ = ["AsyncioPool"]


class AsyncioPool(BoundedPool):
    """Bodies are coroutine functions, or short functions (one that returns an awaitable has it awaited).

    A timeout and a cancelled token really cancel the body's asyncio task; like everywhere, the caller is
    settled at once and the slot is free when the task has really ended. ``on_thread_end`` is called last on
    the pool's thread.

    Under the deterministic scheduler a body runs to completion in one step, on the calling thread, or in a
    helper thread that is waited for when the calling thread runs an asyncio loop of its own.
    """

    def __init__(
        self,
        name: str,
        *,
        size: int,
        queue_size: int,
        scheduler: Scheduler,
        on_thread_end: Callable[[], object] | None = None,
        timers: Timers | None = None,
    ) -> None:
        super().__init__(name, size=size, queue_size=queue_size, scheduler=scheduler, timers=timers)
        self._on_thread_end = on_thread_end
        self._aio: asyncio.AbstractEventLoop | None = None
        self._woken: asyncio.Event | None = None
        self._workers: list[WorkerHandle] = []
        self._stepping = 0
        self._wake_sent = False
        self._state_lock = threading.Lock()

    # --- how the pool reaches its thread --------------------------------------------------------------------

    def _launch(self) -> None:
        with self._state_lock:
            if self._scheduler.inline:
                if len(self._workers) - self._stepping < len(self._ready):
                    name = f"{self.name}-{len(self._workers) + 1}"
                    self._workers.append(self._scheduler.start(_AsyncioThread(self, name)))
                return
            if not self._workers:
                self._workers.append(self._scheduler.start(_AsyncioThread(self, self.name)))
                return
            if self._wake_sent:  # a wake is on its way: the thread looks at the queue after it
                return
            self._wake_sent = True
        self._call_in_thread(self._wake_main)

    def _call_in_thread(self, function: Callable[..., object], *arguments: Any) -> None:
        with self._state_lock:
            if self._aio is not None:
                self._aio.call_soon_threadsafe(function, *arguments)

    def _wake_main(self) -> None:
        if self._woken is not None:
            self._woken.set()

    def _interrupt(self, job: Job) -> None:
        self._call_in_thread(_cancel, job)

    def _close_workers(self) -> None:
        self._call_in_thread(self._wake_main)

    def _workers_ended(self, deadline: float) -> bool:
        clock = self._scheduler.clock
        return all(worker.join(max(0.0, deadline - clock.monotonic())) for worker in list(self._workers))

    # --- on the pool's thread -----------------------------------------------------------------------------

    async def _main(self) -> None:
        running: set[asyncio.Task[None]] = set()
        woken = asyncio.Event()
        with self._state_lock:
            self._woken = woken
            self._aio = asyncio.get_running_loop()
        try:
            while True:
                woken.clear()
                self._wake_sent = False
                while (job := self._take()) is not None:
                    task = asyncio.create_task(self._run(job))
                    job.extra = task
                    running.add(task)
                    task.add_done_callback(running.discard)
                if self._closed and not self._ready and not running:
                    return
                if self._closed and running:
                    await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                else:
                    await woken.wait()
        finally:
            with self._state_lock:
                self._aio = self._woken = None
                self._wake_sent = False

    async def _run(self, job: Job) -> None:
        error: BaseException | None = None
        value: Any = None
        try:
            if job.state is JobState.ABANDONED:
                raise asyncio.CancelledError
            value = await _body(job.operation)
        except asyncio.CancelledError:
            error = TaskCancelledError("The body was cancelled.")
        except BaseException as raised:  # noqa: BLE001 - whatever ends the body becomes its result
            error = raised
        self._ended(job, value, error)

    # --- in the caller's thread ---------------------------------------------------------------------------

    def _run_inline(self) -> bool:
        job = self._take()
        if job is None:
            return False
        self._stepping += 1
        try:
            if _has_running_loop() and isinstance(self._scheduler, DeterministicScheduler):
                value = self._scheduler.run_in_helper(lambda: asyncio.run(self._timed(job)))
            else:
                value = asyncio.run(self._timed(job))
        except asyncio.CancelledError:
            self._ended(job, None, TaskCancelledError("The body was cancelled."))
        except BaseException as error:
            self._ended(job, None, error)
            if not isinstance(error, Exception):
                raise
        else:
            self._ended(job, value, None)
        finally:
            self._stepping -= 1
        return True

    async def _timed(self, job: Job) -> Any:
        """In real time a timeout has to be kept inside the step, since no timer can run meanwhile."""
        job.extra = asyncio.current_task()
        scheduler = self._scheduler
        if job.deadline is None or not (
            isinstance(scheduler, DeterministicScheduler) and scheduler.real_time
        ):
            return await _body(job.operation)
        timeout = asyncio.timeout(max(0.0, job.deadline - scheduler.clock.monotonic()))
        try:
            async with timeout:
                return await _body(job.operation)
        except TimeoutError:
            if timeout.expired():
                raise self._timeout_error() from None
            raise


class _AsyncioThread:
    """The pool's thread; inline, one of several that may have a step on the stack."""

    def __init__(self, pool: AsyncioPool, name: str) -> None:
        self._pool = pool
        self.name = name
        self._ran = False

    def run_step(self, *, block: bool) -> bool:
        if not block:
            return self._pool._run_inline()
        asyncio.run(self._pool._main())
        self._ran = True
        return False

    def runnable(self) -> bool:
        return bool(self._pool._ready)

    def finished(self) -> bool:
        return self._ran or (self._pool._closed and not self._pool._ready)

    def thread_ended(self) -> None:
        if self._pool._on_thread_end is not None:
            self._pool._on_thread_end()


async def _body(operation: Callable[[], Any]) -> Any:
    value = operation()
    return await _awaited(value) if isawaitable(value) else value


async def _awaited(value: Awaitable[Any]) -> Any:
    return await value


def _cancel(job: Job) -> None:
    if job.extra is not None and job.state is JobState.ABANDONED:
        job.extra.cancel()


def _has_running_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
