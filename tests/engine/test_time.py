"""Clocks, timers, cancellation tokens, and the two schedulers."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta

import pytest

from phronomy_django.engine import (
    CancellationToken,
    Runtime,
    RuntimeShutdownError,
    SystemClock,
    TaskCancelledError,
    TaskResult,
    ThreadPool,
    Timers,
)
from phronomy_django.testing.scheduler import DeadlockError, DeterministicScheduler, VirtualClock


def test_the_system_clock_is_aware_and_monotonic() -> None:
    clock = SystemClock()
    assert clock.now().tzinfo is UTC
    assert clock.monotonic() <= clock.monotonic()


def test_the_virtual_clock_moves_both_readings_and_never_back() -> None:
    clock = VirtualClock(datetime(2030, 5, 1, tzinfo=UTC))
    clock.advance(90)
    clock.advance_to(10)
    assert clock.monotonic() == 90
    assert clock.now() == datetime(2030, 5, 1, tzinfo=UTC) + timedelta(seconds=90)


# --- timers -------------------------------------------------------------------------------------------------


def test_timers_fire_in_order_of_time_then_of_request(scheduler: DeterministicScheduler) -> None:
    timers = Timers(scheduler=scheduler)
    fired: list[tuple[str, float]] = []
    for name, delay in [("late", 3.0), ("first", 1.0), ("second", 1.0), ("at once", -1.0)]:
        timers.call_later(delay, lambda name=name: fired.append((name, scheduler.clock.monotonic())))
    scheduler.advance(10)
    assert fired == [("at once", 0.0), ("first", 1.0), ("second", 1.0), ("late", 3.0)]


def test_a_cancelled_timer_never_fires_and_says_so(scheduler: DeterministicScheduler) -> None:
    timers = Timers(scheduler=scheduler)
    fired: list[int] = []
    handle = timers.call_later(1, lambda: fired.append(1))
    assert handle.pending and timers.pending == 1
    assert handle.cancel()
    assert not handle.cancel()
    assert timers.pending == 0
    done = timers.call_later(1, lambda: fired.append(2))
    scheduler.advance(2)
    assert fired == [2]
    assert not done.cancel()


def test_many_cancelled_timers_leave_the_heap(scheduler: DeterministicScheduler) -> None:
    timers = Timers(scheduler=scheduler)
    kept = timers.call_later(10_000, lambda: None)
    for _ in range(1_000):
        timers.call_later(5_000, lambda: None).cancel()
    assert len(timers._heap) < 200
    assert kept.pending and timers.pending == 1


def test_a_timer_function_that_raises_stops_no_other(scheduler: DeterministicScheduler) -> None:
    timers = Timers(scheduler=scheduler)
    fired: list[int] = []
    timers.call_later(1, lambda: 1 / 0)
    timers.call_later(2, lambda: fired.append(1))
    scheduler.advance(3)
    assert fired == [1]


def test_closed_timers_drop_what_is_pending_and_refuse(scheduler: DeterministicScheduler) -> None:
    timers = Timers(scheduler=scheduler)
    fired: list[int] = []
    handle = timers.call_later(1, lambda: fired.append(1))
    timers.close()
    timers.close()
    assert not handle.cancel()
    scheduler.advance(5)
    assert fired == []
    with pytest.raises(RuntimeShutdownError):
        timers.call_later(1, lambda: None)


def test_a_timer_set_while_the_thread_waits_for_a_later_one_fires_first(threads: Runtime) -> None:
    order: list[str] = []
    done: TaskResult[None] = TaskResult()
    far = threads.timers.call_later(3_600, lambda: order.append("far"))
    threads.timers.call_later(0.001, lambda: (order.append("near"), done.set_result(None)))
    done.wait_result(5)
    assert order == ["near"]
    assert far.cancel()


def test_the_timer_thread_starts_with_the_first_timer(threads: Runtime) -> None:
    def names() -> set[str]:
        return {thread.name for thread in threading.enumerate()}

    timers = Timers("lazy-timers", scheduler=threads.scheduler)
    assert "lazy-timers" not in names()
    timers.call_later(100, lambda: None)
    assert "lazy-timers" in names()
    timers.close()
    assert timers.wait_closed(threads.scheduler.clock.monotonic() + 5)
    assert "lazy-timers" not in names()


# --- cancellation -------------------------------------------------------------------------------------------


def test_a_token_is_cancelled_once_and_calls_back() -> None:
    token = CancellationToken()
    calls: list[str | None] = []
    token.raise_if_cancelled()
    token.on_cancel(lambda: calls.append(token.reason))
    undone = token.on_cancel(lambda: calls.append("undone"))
    undone()
    assert token.cancel("reason")
    assert not token.cancel("again")
    assert token.cancelled and token.reason == "reason"
    token.on_cancel(lambda: calls.append("late"))()
    assert calls == ["reason", "late"]
    with pytest.raises(TaskCancelledError, match="reason"):
        token.raise_if_cancelled()


def test_a_failing_cancel_callback_stops_no_other(caplog: pytest.LogCaptureFixture) -> None:
    token = CancellationToken()
    calls: list[int] = []
    token.on_cancel(lambda: 1 / 0)
    token.on_cancel(lambda: calls.append(1))
    token.cancel()
    assert calls == [1]
    assert len(caplog.records) == 1


def test_a_deadline_is_promoted_by_the_timers_and_the_earliest_wins(
    scheduler: DeterministicScheduler,
) -> None:
    timers = Timers(scheduler=scheduler)
    token = CancellationToken()
    token.timeout_after(9, timers)
    token.timeout_after(4, timers)
    token.timeout_after(2, timers).cancel()
    scheduler.clock.advance(5)  # type: ignore[attr-defined]
    assert not token.cancelled
    scheduler.run_until_idle()
    assert token.cancelled and token.reason == "timeout"
    assert timers.pending == 0
    token.timeout_after(1, timers)
    assert timers.pending == 0


# --- the deterministic scheduler ----------------------------------------------------------------------------


class Counter:
    def __init__(self, name: str, log: list[str], steps: int) -> None:
        self.name, self.log, self.left = name, log, steps

    def run_step(self, *, block: bool) -> bool:
        assert not block
        self.left -= 1
        self.log.append(self.name)
        return True

    def runnable(self) -> bool:
        return self.left > 0

    def finished(self) -> bool:
        return self.left == 0


def order(seed: int | None) -> str:
    scheduler, log = DeterministicScheduler(seed), list[str]()
    for name in "abc":
        scheduler.start(Counter(name, log, 4))
    scheduler.run_until_idle()
    return "".join(log)


def test_without_a_seed_the_workers_take_turns() -> None:
    assert order(None) == "abcabcabcabc"


def test_a_seed_gives_one_order_and_seeds_give_many() -> None:
    assert order(7) == order(7)
    assert len({order(seed) for seed in range(20)}) > 10


def test_everything_runs_in_the_calling_thread(scheduler: DeterministicScheduler) -> None:
    pool = ThreadPool("default", size=2, queue_size=2, scheduler=scheduler)
    before = threading.active_count()
    assert pool.submit(threading.get_ident).wait_result() == threading.get_ident()
    assert threading.active_count() == before


def test_time_moves_only_when_nothing_is_runnable(scheduler: DeterministicScheduler) -> None:
    log: list[str] = []
    scheduler.start(Counter("worker", log, 3))
    timers = Timers(scheduler=scheduler)
    timers.call_later(1, lambda: log.append("timer"))
    scheduler.wait(lambda: "timer" in log)
    assert log == ["worker", "worker", "worker", "timer"]


def test_a_wait_that_cannot_end_is_a_deadlock_and_names_the_workers(
    scheduler: DeterministicScheduler,
) -> None:
    pool = ThreadPool("stuck", size=1, queue_size=1, scheduler=scheduler)
    never: TaskResult[None] = TaskResult(scheduler)
    task = pool.submit(never.wait_result)
    with pytest.raises(DeadlockError, match=r"stuck-1 \(in a step that waits\)"):
        task.wait_result()


def test_a_body_that_waits_lets_the_other_workers_go_on(scheduler: DeterministicScheduler) -> None:
    pool = ThreadPool("default", size=2, queue_size=2, scheduler=scheduler)
    outer = pool.submit(lambda: pool.submit(lambda: 20).wait_result() + 1)
    assert outer.wait_result() == 21


def test_a_handle_joins_when_its_worker_has_finished(scheduler: DeterministicScheduler) -> None:
    log: list[str] = []
    handle = scheduler.start(Counter("worker", log, 2))
    assert handle.alive
    assert handle.join(1)
    assert not handle.alive and len(log) == 2


def test_in_real_time_a_timer_is_really_waited_for() -> None:
    scheduler = DeterministicScheduler(real_time=True)
    task: TaskResult[str] = TaskResult(scheduler)
    before = scheduler.clock.monotonic()
    Timers(scheduler=scheduler).call_later(0.01, lambda: task.set_result("there"))
    assert task.wait_result(10) == "there"
    assert scheduler.clock.monotonic() - before >= 0.01


def test_virtual_time_needs_a_clock_that_can_be_moved() -> None:
    with pytest.raises(ValueError, match="VirtualClock"):
        DeterministicScheduler(clock=SystemClock())


def test_two_threads_share_one_deterministic_scheduler_in_turn() -> None:
    scheduler = DeterministicScheduler()
    pool = ThreadPool("default", size=1, queue_size=100, scheduler=scheduler)
    results: list[int] = []

    def work(start: int) -> None:
        for number in range(start, start + 20):
            results.append(pool.submit(lambda number=number: number).wait_result())

    callers = [threading.Thread(target=work, args=(n * 100,)) for n in range(3)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(20)
    assert sorted(results) == sorted(n * 100 + i for n in range(3) for i in range(20))


def test_a_thread_wait_sees_what_nobody_announced(threads: Runtime) -> None:
    facts: list[int] = []
    thread = threading.Thread(target=lambda: facts.append(1))
    thread.start()
    assert threads.scheduler.wait(lambda: bool(facts), 5)
    assert not threads.scheduler.wait(lambda: False, 0.001)
    thread.join()
