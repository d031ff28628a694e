"""Offload pools: bounds, reservations, timeouts, cancellation, physical ends, closing."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from phronomy_django.engine import (
    BackpressureError,
    CancellationToken,
    EventLoop,
    EventLoopReentrancyError,
    Reservation,
    Runtime,
    RuntimeShutdownError,
    TaskCancelledError,
    TaskResult,
    TaskTimeoutError,
    ThreadPool,
    ThreadScheduler,
)
from phronomy_django.testing.scheduler import DeterministicScheduler
from tests.engine.support import Recorder


@pytest.fixture
def pool(scheduler: DeterministicScheduler) -> ThreadPool:
    return ThreadPool("tested", size=1, queue_size=1, scheduler=scheduler)


class Gate:
    """A body that runs until it is opened, on a real thread."""

    def __init__(self) -> None:
        self.entered, self.open = threading.Event(), threading.Event()

    def __call__(self) -> str:
        self.entered.set()
        assert self.open.wait(10)
        return "through"


@pytest.fixture
def gate() -> Iterator[Gate]:
    made = Gate()
    yield made
    made.open.set()


def lasting(scheduler: DeterministicScheduler, seconds: float, value: Any = "done") -> Callable[[], Any]:
    def body() -> Any:
        scheduler.wait(lambda: False, seconds)
        return value

    return body


# --- bounds -------------------------------------------------------------------------------------------------


def test_values_and_exceptions_come_back_as_results(pool: ThreadPool) -> None:
    assert pool.submit(lambda: 42).wait_result() == 42
    with pytest.raises(ZeroDivisionError):
        pool.submit(lambda: 1 // 0).wait_result()
    assert pool.size == 1


def test_no_more_bodies_run_at_once_than_there_are_slots(threads: Runtime) -> None:
    gates = [Gate() for _ in range(3)]
    pool = threads.pool("default")
    tasks = [pool.submit(gate) for gate in gates]
    assert gates[0].entered.wait(5) and gates[1].entered.wait(5)
    assert (pool.metrics().active, pool.metrics().queued) == (2, 1)
    assert not gates[2].entered.is_set()
    gates[0].open.set()
    assert gates[2].entered.wait(5)
    gates[1].open.set()
    gates[2].open.set()
    assert [task.wait_result(5) for task in tasks] == ["through"] * 3


def test_threads_start_as_they_are_needed_and_are_used_again(threads: Runtime) -> None:
    pool = ThreadPool("lazy", size=2, queue_size=4, scheduler=threads.scheduler)
    threads.add_pool(pool)

    def count() -> int:
        return sum(thread.name.startswith("lazy-") for thread in threading.enumerate())

    assert count() == 0
    first = pool.submit(threading.get_ident).wait_result(5)
    assert count() == 1
    threads.scheduler.wait(lambda: pool._idle == 1, 5)
    assert pool.submit(threading.get_ident).wait_result(5) == first
    assert count() == 1


def test_a_full_queue_raises_and_starts_nothing(pool: ThreadPool) -> None:
    ran: list[str] = []
    first, second = pool.submit(lambda: ran.append("a")), pool.submit(lambda: ran.append("b"))
    with pytest.raises(BackpressureError, match="tested"):
        pool.submit(lambda: ran.append("refused"))
    first.wait_result()
    second.wait_result()
    assert ran == ["a", "b"]
    assert pool.metrics().refused == 1


def test_waiting_for_room_gets_it(pool: ThreadPool, scheduler: DeterministicScheduler) -> None:
    for _ in range(2):
        pool.submit(lasting(scheduler, 1))
    assert pool.submit(lambda: "came in", on_full="wait").wait_result() == "came in"


def test_waiting_for_room_ends_with_the_timeout_and_the_work_never_runs(
    pool: ThreadPool, scheduler: DeterministicScheduler
) -> None:
    ran, ended = list[int](), list[str]()
    for _ in range(2):
        pool.submit(lasting(scheduler, 10))
    task = pool.submit(
        lambda: ran.append(1), timeout=2, on_full="wait", on_physical_end=lambda: ended.append("end")
    )
    assert isinstance(task.error, TaskTimeoutError)
    scheduler.advance(100)
    assert ran == [] and ended == ["end"]


def test_waiting_for_room_ends_with_a_cancelled_token(
    pool: ThreadPool, scheduler: DeterministicScheduler
) -> None:
    token = CancellationToken()
    token.timeout_after(1, pool._timers)
    for _ in range(2):
        pool.submit(lasting(scheduler, 10))
    assert pool.submit(lambda: 1, on_full="wait", cancellation_token=token).cancelled


def test_waiting_for_room_on_the_loops_thread_is_refused_before_anything_is_created(
    pool: ThreadPool, loop: EventLoop, receiver: Recorder, scheduler: DeterministicScheduler
) -> None:
    refused: list[BaseException] = []

    def submit() -> None:
        try:
            pool.submit(lambda: None, on_full="wait")
        except EventLoopReentrancyError as error:
            refused.append(error)

    loop.post_execution(receiver, submit)
    scheduler.run_until_idle()
    assert len(refused) == 1
    assert pool.metrics().started == 0


def test_a_pool_needs_a_slot() -> None:
    with pytest.raises(ValueError, match="'none'"):
        ThreadPool("none", size=0, queue_size=1, scheduler=DeterministicScheduler())


# --- timeout and cancellation -------------------------------------------------------------------------------


def test_a_timeout_before_the_start_means_that_the_work_never_runs(
    pool: ThreadPool, scheduler: DeterministicScheduler
) -> None:
    order: list[tuple[str, float]] = []

    def note(what: str) -> None:
        order.append((what, scheduler.clock.monotonic()))

    pool.submit(lasting(scheduler, 10))
    task = pool.submit(lambda: note("ran"), timeout=3, on_physical_end=lambda: note("physical end"))
    task.on_complete(lambda _: note("settled"))
    with pytest.raises(TaskTimeoutError):
        task.wait_result()
    assert pool.metrics().queued == 0
    scheduler.advance(20)
    assert order == [("physical end", 3.0), ("settled", 3.0)]


def test_a_timeout_after_the_start_settles_at_once_and_the_work_is_abandoned_until_it_ends(
    pool: ThreadPool, scheduler: DeterministicScheduler
) -> None:
    order: list[tuple[str, float]] = []

    def note(what: str) -> None:
        order.append((what, scheduler.clock.monotonic()))

    task = pool.submit(lasting(scheduler, 8), timeout=3, on_physical_end=lambda: note("physical end"))
    task.on_complete(lambda done: note(type(done.error).__name__))
    seen: list[tuple[int, int]] = []
    pool._timers.call_later(5, lambda: seen.append((pool.metrics().active, pool.metrics().abandoned)))
    queued = pool.submit(lambda: note("next body"))
    queued.wait_result()
    assert order == [("TaskTimeoutError", 3.0), ("physical end", 8.0), ("next body", 8.0)]
    assert seen == [(1, 1)]
    assert pool.metrics().abandoned == 0


def test_work_that_ends_by_itself_is_physically_over_before_it_is_settled(pool: ThreadPool) -> None:
    order: list[str] = []
    for body in (lambda: 1, lambda: 1 // 0):
        task = pool.submit(body, on_physical_end=lambda: order.append("physical end"))
        task.on_complete(lambda _: order.append("settled"))
        pool._scheduler.wait(lambda task=task: task.done)
    assert order == ["physical end", "settled"] * 2


def test_a_token_withdraws_what_waits_and_abandons_what_runs(
    pool: ThreadPool, scheduler: DeterministicScheduler
) -> None:
    tokens = [CancellationToken(), CancellationToken()]
    ran: list[int] = []
    running = pool.submit(lasting(scheduler, 5), cancellation_token=tokens[0])
    waiting = pool.submit(lambda: ran.append(1), cancellation_token=tokens[1])

    def cancel() -> None:
        for token in tokens:
            token.cancel("stop")

    abandoned: list[tuple[float, int]] = []
    waiting.on_complete(lambda _: abandoned.append((scheduler.clock.monotonic(), pool.metrics().abandoned)))
    pool._timers.call_later(1, cancel)
    scheduler.wait(lambda: waiting.done)
    assert running.cancelled and waiting.cancelled
    with pytest.raises(TaskCancelledError, match="stop"):
        running.result()
    assert abandoned == [(1.0, 1)]
    scheduler.advance(10)
    assert ran == [] and pool.metrics().abandoned == 0


def test_work_given_a_cancelled_token_never_runs(pool: ThreadPool, scheduler: DeterministicScheduler) -> None:
    token, ran = CancellationToken(), list[int]()
    token.cancel()
    assert pool.submit(lambda: ran.append(1), cancellation_token=token).cancelled
    scheduler.run_until_idle()
    assert ran == [] and pool.metrics().active == 0


def test_the_timer_and_the_subscription_of_finished_work_are_taken_back(pool: ThreadPool) -> None:
    token = CancellationToken()
    pool.submit(lambda: 1, timeout=100, cancellation_token=token).wait_result()
    assert pool._timers.pending == 0
    assert not token._callbacks


def test_a_callback_for_the_physical_end_that_raises_harms_nothing(pool: ThreadPool) -> None:
    assert pool.submit(lambda: 5, on_physical_end=lambda: 1 / 0).wait_result() == 5
    assert pool.submit(lambda: 6).wait_result() == 6


# --- reservations -------------------------------------------------------------------------------------------


def test_a_reservation_holds_a_slot_until_it_is_released(
    pool: ThreadPool, scheduler: DeterministicScheduler
) -> None:
    held = pool.try_reserve()
    assert held is not None
    assert pool.try_reserve() is None
    task = pool.submit(lambda: "after the release")
    scheduler.run_until_idle()
    assert not task.done
    held.release()
    held.release()
    assert task.wait_result() == "after the release"
    assert pool.metrics().reserved == 0


def test_a_reservation_is_used_once_and_never_queues(
    pool: ThreadPool, scheduler: DeterministicScheduler
) -> None:
    held = pool.try_reserve()
    waiting = pool.submit(lambda: "second")
    with pytest.raises(BackpressureError):
        pool.submit(lambda: "no room")
    order: list[str] = []
    first = pool.submit(lambda: "first", reservation=held)
    for task in (waiting, first):
        task.on_complete(lambda done: order.append(done.result()))
    waiting.wait_result()
    assert order == ["first", "second"]
    with pytest.raises(ValueError, match="reservation"):
        pool.submit(lambda: "again", reservation=held)
    assert held is not None
    held.release()
    assert pool.metrics().reserved == 0


def test_a_later_reservation_is_granted_in_turn_with_queued_work(
    scheduler: DeterministicScheduler,
) -> None:
    pool = ThreadPool("tested", size=1, queue_size=3, scheduler=scheduler)
    order: list[str] = []

    def granted(name: str) -> Callable[[Reservation | BaseException], None]:
        def use(slot: Reservation | BaseException) -> None:
            assert isinstance(slot, Reservation)
            pool.submit(lambda: order.append(name), reservation=slot)

        return use

    pool.submit(lambda: order.append("running"))
    pool.reserve_later(granted("first request"))
    pool.submit(lambda: order.append("queued work"))
    pool.reserve_later(granted("second request"))
    with pytest.raises(BackpressureError):
        pool.reserve_later(granted("no room"))
    scheduler.run_until_idle()
    assert order == ["running", "first request", "queued work", "second request"]


def test_a_later_reservation_is_granted_at_once_if_a_slot_is_free(pool: ThreadPool) -> None:
    slots: list[Any] = []
    request = pool.reserve_later(slots.append)
    assert isinstance(slots[0], Reservation)
    assert not request.cancel()
    slots[0].release()


def test_a_cancelled_request_is_never_granted(pool: ThreadPool) -> None:
    held, slots = pool.try_reserve(), list[Any]()
    request = pool.reserve_later(slots.append)
    assert request.cancel()
    assert not request.cancel()
    assert held is not None
    held.release()
    assert slots == []
    assert pool.metrics().queued == 0


def test_a_callback_that_fails_gives_its_slot_back(pool: ThreadPool) -> None:
    pool.reserve_later(lambda slot: 1 / 0)
    assert pool.metrics().reserved == 0
    assert pool.try_reserve() is not None


# --- around, threads, closing -------------------------------------------------------------------------------


def test_around_wraps_every_body_and_sees_its_failure(scheduler: DeterministicScheduler) -> None:
    order: list[str] = []

    def around(body: Callable[[], Any]) -> Any:
        order.append("before")
        try:
            return body()
        finally:
            order.append("after")

    pool = ThreadPool("wrapped", size=1, queue_size=1, scheduler=scheduler, around=around)
    assert pool.submit(lambda: order.append("body") or 3).wait_result() == 3
    with pytest.raises(ZeroDivisionError):
        pool.submit(lambda: 1 // 0).wait_result()
    assert order == ["before", "body", "after", "before", "after"]


def test_the_end_of_a_thread_is_told_on_that_thread(threads: Runtime) -> None:
    ends: list[int] = []
    pool = ThreadPool(
        "ending",
        size=1,
        queue_size=1,
        scheduler=threads.scheduler,
        on_thread_end=lambda: ends.append(threading.get_ident()),
    )
    ident = pool.submit(threading.get_ident).wait_result(5)
    pool.begin_close()
    assert pool.wait_closed(threads.scheduler.clock.monotonic() + 5)
    assert ends == [ident]


def test_a_closing_pool_fails_what_has_not_started_and_waits_for_what_runs(gate: Gate) -> None:
    scheduler = ThreadScheduler()
    pool = ThreadPool("closing", size=1, queue_size=3, scheduler=scheduler)
    running = pool.submit(gate)
    assert gate.entered.wait(5)
    ended: list[str] = []
    queued = pool.submit(lambda: 1, on_physical_end=lambda: ended.append("queued"))
    answers: list[Any] = []
    pool.reserve_later(answers.append)
    pool.begin_close()
    pool.begin_close()
    assert isinstance(queued.error, RuntimeShutdownError) and ended == ["queued"]
    assert isinstance(answers[0], RuntimeShutdownError) and len(answers) == 1
    for refused in (pool.submit, pool.reserve_later):
        with pytest.raises(RuntimeShutdownError):
            refused(lambda *_: None)
    assert pool.try_reserve() is None
    assert not pool.wait_closed(scheduler.clock.monotonic())
    gate.open.set()
    assert running.wait_result(5) == "through"
    assert pool.wait_closed(scheduler.clock.monotonic() + 5)


def test_a_reservation_held_at_the_close_is_released_when_it_is_used(pool: ThreadPool) -> None:
    held = pool.try_reserve()
    pool.begin_close()
    with pytest.raises(RuntimeShutdownError):
        pool.submit(lambda: 1, reservation=held)
    assert pool.metrics().reserved == 0


def test_a_body_that_ends_its_process_ends_only_itself_on_a_thread(threads: Runtime) -> None:
    def leave() -> None:
        raise SystemExit(3)

    pool = threads.pool("default")
    with pytest.raises(SystemExit):
        pool.submit(leave).wait_result(5)
    assert pool.submit(lambda: "still here").wait_result(5) == "still here"


def test_inline_a_body_that_ends_the_process_goes_on_up(
    pool: ThreadPool, scheduler: DeterministicScheduler
) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    task = pool.submit(interrupt)
    with pytest.raises(KeyboardInterrupt):
        scheduler.run_until_idle()
    assert isinstance(task.error, KeyboardInterrupt)
    assert pool.submit(lambda: 1).wait_result() == 1


def test_many_threads_share_a_pool_and_every_job_ends_once(threads: Runtime) -> None:
    pool = threads.pool("default")
    ends: list[int] = []
    results: list[TaskResult[int]] = []

    def produce(start: int) -> None:
        for number in range(start, start + 200):
            results.append(
                pool.submit(
                    lambda number=number: number,
                    on_full="wait",
                    on_physical_end=lambda number=number: ends.append(number),
                )
            )

    producers = [threading.Thread(target=produce, args=(n * 1_000,)) for n in range(3)]
    for producer in producers:
        producer.start()
    for producer in producers:
        producer.join(20)
    values = sorted(task.wait_result(10) for task in results)
    assert values == sorted(ends) == sorted(n * 1_000 + i for n in range(3) for i in range(200))
