"""The pool of coroutines, on its thread and inline."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from phronomy_django.engine import (
    CancellationToken,
    RuntimeShutdownError,
    TaskCancelledError,
    TaskTimeoutError,
    ThreadScheduler,
)
from phronomy_django.offload.asyncio_pool import AsyncioPool
from phronomy_django.testing.scheduler import DeterministicScheduler


@pytest.fixture
def pool() -> Iterator[AsyncioPool]:
    scheduler = ThreadScheduler()
    made = AsyncioPool("coroutines", size=2, queue_size=4, scheduler=scheduler)
    yield made
    made.begin_close()
    assert made.wait_closed(scheduler.clock.monotonic() + 5)


async def answer() -> int:
    await asyncio.sleep(0)
    return 42


async def fail() -> None:
    raise LookupError("inside")


def test_coroutine_functions_and_plain_functions_give_results(pool: AsyncioPool) -> None:
    assert pool.submit(answer).wait_result(5) == 42
    assert pool.submit(lambda: answer()).wait_result(5) == 42
    assert pool.submit(lambda: "plain").wait_result(5) == "plain"
    with pytest.raises(LookupError, match="inside"):
        pool.submit(fail).wait_result(5)


def test_bodies_overlap_on_one_thread_within_the_size(pool: AsyncioPool) -> None:
    inside: list[int] = []
    peak: list[int] = []
    threads: set[int] = set()

    async def body() -> None:
        threads.add(threading.get_ident())
        inside.append(1)
        peak.append(len(inside))
        for _ in range(5):
            await asyncio.sleep(0)
        inside.pop()

    for task in [pool.submit(body) for _ in range(6)]:
        task.wait_result(5)
    assert max(peak) == 2
    assert len(threads) == 1 and threading.get_ident() not in threads


@pytest.mark.parametrize("how", ["timeout", "token"])
def test_a_timeout_and_a_token_really_cancel_the_task(pool: AsyncioPool, how: str) -> None:
    entered, ended = threading.Event(), threading.Event()
    interrupted: list[bool] = []
    token = CancellationToken()

    async def body() -> None:
        entered.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            interrupted.append(True)
            raise

    task = pool.submit(
        body,
        timeout=0.05 if how == "timeout" else None,
        cancellation_token=token,
        on_physical_end=ended.set,
    )
    assert entered.wait(5)
    if how == "token":
        token.cancel()
    with pytest.raises(TaskTimeoutError if how == "timeout" else TaskCancelledError):
        task.wait_result(5)
    assert ended.wait(5)
    assert interrupted == [True]
    assert pool.metrics().active == 0


def test_a_body_that_resists_is_abandoned_until_it_ends(pool: AsyncioPool) -> None:
    entered, ended, resisting = threading.Event(), threading.Event(), threading.Event()
    token = CancellationToken()
    release: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    async def body() -> None:
        may_end = asyncio.Event()
        release.append((asyncio.get_running_loop(), may_end))
        entered.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            resisting.set()
            await may_end.wait()

    task = pool.submit(body, cancellation_token=token, on_physical_end=ended.set)
    assert entered.wait(5)
    token.cancel()
    assert task.cancelled
    assert resisting.wait(5)
    assert (pool.metrics().abandoned, ended.is_set()) == (1, False)
    aio, may_end = release[0]
    aio.call_soon_threadsafe(may_end.set)
    assert ended.wait(5)
    assert pool.metrics().abandoned == 0


def test_closing_waits_for_what_runs_and_fails_what_waits() -> None:
    scheduler = ThreadScheduler()
    ends: list[str] = []
    pool = AsyncioPool(
        "closing", size=1, queue_size=2, scheduler=scheduler, on_thread_end=lambda: ends.append("thread")
    )
    entered = threading.Event()
    release: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    async def body() -> str:
        may_end = asyncio.Event()
        release.append((asyncio.get_running_loop(), may_end))
        entered.set()
        await may_end.wait()
        return "ended"

    running, queued = pool.submit(body), pool.submit(answer)
    assert entered.wait(5)
    pool.begin_close()
    assert isinstance(queued.error, RuntimeShutdownError)
    assert not pool.wait_closed(scheduler.clock.monotonic())
    aio, may_end = release[0]
    aio.call_soon_threadsafe(may_end.set)
    assert running.wait_result(5) == "ended"
    assert pool.wait_closed(scheduler.clock.monotonic() + 5)
    assert ends == ["thread"]


def test_a_pool_that_was_never_used_closes(scheduler: DeterministicScheduler) -> None:
    for one in (scheduler, ThreadScheduler()):
        pool = AsyncioPool("unused", size=1, queue_size=1, scheduler=one)
        pool.begin_close()
        assert pool.wait_closed(one.clock.monotonic() + 1)


# --- inline -------------------------------------------------------------------------------------------------


@pytest.fixture
def inline(scheduler: DeterministicScheduler) -> AsyncioPool:
    return AsyncioPool("inline", size=3, queue_size=4, scheduler=scheduler)


def test_inline_a_body_runs_to_completion_in_the_calling_thread(inline: AsyncioPool) -> None:
    async def body() -> int:
        await asyncio.sleep(0)
        return threading.get_ident()

    assert inline.submit(body).wait_result() == threading.get_ident()
    with pytest.raises(LookupError):
        inline.submit(fail).wait_result()


def test_inline_a_body_runs_although_the_calling_thread_has_an_asyncio_loop(inline: AsyncioPool) -> None:
    async def body() -> int:
        await asyncio.sleep(0)
        return threading.get_ident()

    async def main() -> int:
        return await inline.submit(body)

    assert asyncio.run(main()) != threading.get_ident()


def test_inline_a_body_may_wait_for_another_body(inline: AsyncioPool) -> None:
    async def outer() -> int:
        return 1 + await inline.submit(answer)

    async def main() -> int:
        return await inline.submit(outer)

    assert inline.submit(outer).wait_result() == 43
    assert asyncio.run(main()) == 43


def test_inline_in_real_time_a_timeout_interrupts_the_body() -> None:
    scheduler = DeterministicScheduler(real_time=True)
    pool = AsyncioPool("real", size=1, queue_size=1, scheduler=scheduler)
    interrupted: list[bool] = []

    async def body() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            interrupted.append(True)
            raise

    with pytest.raises(TaskTimeoutError):
        pool.submit(body, timeout=0.01).wait_result()
    assert interrupted == [True]
    with pytest.raises(TimeoutError, match="own"):
        pool.submit(own_timeout, timeout=30).wait_result()


async def own_timeout() -> None:
    raise TimeoutError("own")


def test_inline_the_pool_closes(inline: AsyncioPool, scheduler: DeterministicScheduler) -> None:
    assert inline.submit(answer).wait_result() == 42
    inline.begin_close()
    assert inline.wait_closed(scheduler.clock.monotonic() + 1)
    with pytest.raises(RuntimeShutdownError):
        inline.submit(answer)
