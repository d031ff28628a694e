"""TaskResult and Execution."""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import Any

import pytest

from phronomy_django.engine import (
    CancellationToken,
    Execution,
    Runtime,
    TaskCancelledError,
    TaskPendingError,
    TaskResult,
    TaskStatus,
    TaskTimeoutError,
    Timers,
)
from phronomy_django.testing.scheduler import DeterministicScheduler


def test_a_result_is_settled_once_and_the_first_wins() -> None:
    task: TaskResult[int] = TaskResult()
    assert (task.status, task.done, task.error) == (TaskStatus.PENDING, False, None)
    assert task.set_result(1)
    assert not task.set_result(2)
    assert not task.set_error(ValueError())
    assert not task.set_cancelled()
    assert (task.status, task.done, task.result()) == (TaskStatus.COMPLETED, True, 1)


def test_a_pending_a_failed_and_a_cancelled_result_raise() -> None:
    task: TaskResult[int] = TaskResult()
    with pytest.raises(TaskPendingError):
        task.result()
    error = ValueError("no")
    failed = TaskResult.failed(error)
    with pytest.raises(ValueError, match="no"):
        failed.result()
    assert failed.exception() is error
    task.set_cancelled("by hand")
    with pytest.raises(TaskCancelledError, match="by hand"):
        task.result()
    assert task.cancelled and isinstance(task.error, TaskCancelledError)


def test_many_threads_settle_a_result_exactly_once() -> None:
    for _ in range(50):
        task: TaskResult[int] = TaskResult()
        calls: list[int] = []
        task.on_complete(lambda done, calls=calls: calls.append(done.result()))
        start, won = threading.Barrier(4), []

        def settle(
            number: int, task: TaskResult[int] = task, start: threading.Barrier = start, won: list[int] = won
        ) -> None:
            start.wait()
            if task.set_result(number):
                won.append(number)

        threads = [threading.Thread(target=settle, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert won == calls == [task.result()]


def test_callbacks_are_called_in_order_and_at_once_when_it_is_done() -> None:
    task: TaskResult[int] = TaskResult()
    calls: list[str] = []
    task.on_complete(lambda _: calls.append("first"))
    task.on_complete(lambda _: calls.append("second"))
    task.set_result(1)
    task.on_complete(lambda _: calls.append("late"))
    assert calls == ["first", "second", "late"]


def test_a_failing_callback_is_logged_and_stops_no_other(caplog: pytest.LogCaptureFixture) -> None:
    task: TaskResult[int] = TaskResult()
    calls: list[int] = []
    task.on_complete(lambda _: 1 / 0)
    task.on_complete(lambda done: calls.append(done.result()))
    assert task.set_result(3)
    assert calls == [3]
    assert [record.levelno for record in caplog.records] == [logging.ERROR]


def test_a_wait_that_runs_out_raises_and_cancels_nothing() -> None:
    task: TaskResult[int] = TaskResult()
    with pytest.raises(TaskTimeoutError) as raised:
        task.wait_result(0)
    assert isinstance(raised.value, TimeoutError)
    assert not task.done
    assert task.set_result(5)
    assert task.wait_result(0) == 5


def test_waits_that_ran_out_leave_no_callback_behind() -> None:
    task: TaskResult[int] = TaskResult()
    for _ in range(3):
        with pytest.raises(TaskTimeoutError):
            task.wait_result(0)
    assert not task._callbacks


def test_a_wait_ends_when_another_thread_settles(threads: Runtime) -> None:
    task: TaskResult[str] = TaskResult(threads.scheduler)
    threads.timers.call_later(0, lambda: task.set_result("there"))
    assert task.wait_result(5) == "there"


def test_a_virtual_wait_takes_no_real_time(scheduler: DeterministicScheduler) -> None:
    task: TaskResult[str] = TaskResult(scheduler)
    Timers(scheduler=scheduler).call_later(86_400, lambda: task.set_result("tomorrow"))
    with pytest.raises(TaskTimeoutError):
        task.wait_result(3_600)
    assert task.wait_result() == "tomorrow"
    assert scheduler.clock.monotonic() == 86_400


def test_map_changes_the_value_and_passes_failures_and_cancellations() -> None:
    source: TaskResult[int] = TaskResult()
    doubled = source.map(lambda value: value * 2)
    broken = source.map(lambda value: value // 0)
    source.set_result(4)
    assert doubled.result() == 8
    assert isinstance(broken.error, ZeroDivisionError)
    error = ValueError()
    assert TaskResult.failed(error).map(lambda value: value).error is error
    cancelled: TaskResult[int] = TaskResult()
    mapped = cancelled.map(lambda value: value)
    cancelled.set_cancelled()
    assert mapped.cancelled


def test_flat_map_waits_for_the_inner_result() -> None:
    source: TaskResult[int] = TaskResult()
    inner: TaskResult[str] = TaskResult()
    flat = source.flat_map(lambda value: inner)
    source.set_result(1)
    assert not flat.done
    inner.set_result("inner")
    assert flat.result() == "inner"
    error = ValueError()
    assert TaskResult.failed(error).flat_map(lambda value: inner).error is error
    assert isinstance(TaskResult.completed(0).flat_map(lambda value: value // 0).error, ZeroDivisionError)


def test_all_settled_gives_every_outcome_in_the_given_order() -> None:
    tasks: list[TaskResult[int]] = [TaskResult() for _ in range(3)]
    joined = TaskResult.all_settled(tasks)
    error = ValueError()
    tasks[2].set_error(error)
    tasks[0].set_cancelled()
    assert not joined.done
    tasks[1].set_result(7)
    outcomes = joined.result()
    assert [(o.index, o.status.value, o.value) for o in outcomes] == [
        (0, "cancelled", None),
        (1, "completed", 7),
        (2, "failed", None),
    ]
    assert outcomes[2].error is error
    assert TaskResult.all_settled([]).result() == []


def test_a_result_is_awaited_from_any_asyncio_loop(threads: Runtime) -> None:
    task: TaskResult[int] = TaskResult(threads.scheduler)

    async def main() -> list[int]:
        threads.timers.call_later(0, lambda: task.set_result(9))
        return await asyncio.gather(wait(), wait())

    async def wait() -> int:
        return await task

    assert asyncio.run(main()) == [9, 9]
    assert asyncio.run(wait()) == 9


def test_a_cancelled_awaiter_cancels_nothing() -> None:
    task: TaskResult[int] = TaskResult()

    async def main() -> None:
        async def wait() -> int:
            return await task

        waiting = asyncio.ensure_future(wait())
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    asyncio.run(main())
    assert not task.done
    assert not task._callbacks
    assert task.set_result(1)


def test_a_result_may_be_settled_after_the_awaiting_loop_was_closed() -> None:
    task: TaskResult[int] = TaskResult()
    loop = asyncio.new_event_loop()

    async def wait() -> int:
        return await task

    waiting = loop.create_task(wait())
    loop.call_soon(loop.stop)
    loop.run_forever()
    callbacks = list(task._callbacks or ())
    waiting.cancel()
    loop.run_until_complete(asyncio.gather(waiting, return_exceptions=True))
    loop.close()
    assert len(callbacks) == 1
    callbacks[0](task)
    assert task.set_result(1)


def test_an_await_under_the_deterministic_scheduler_runs_the_work_itself(
    scheduler: DeterministicScheduler,
) -> None:
    task: TaskResult[str] = TaskResult(scheduler)
    Timers(scheduler=scheduler).call_later(10, lambda: task.set_result("here"))

    async def main() -> str:
        return await task

    assert asyncio.run(main()) == "here"


# --- Execution.run_async ------------------------------------------------------------------------------------


def test_jobs_start_in_order_and_their_outcomes_come_in_input_order() -> None:
    started: list[str] = []
    tasks = {name: TaskResult[str]() for name in "abc"}

    def start(name: str, token: CancellationToken) -> TaskResult[str]:
        started.append(name)
        return tasks[name]

    joined = Execution.run_async("abc", start)
    assert started == ["a", "b", "c"]
    tasks["c"].set_result("C")
    tasks["a"].set_error(ValueError())
    assert not joined.done
    tasks["b"].set_result("B")
    assert [(o.index, o.status.value, o.value) for o in joined.result()] == [
        (0, "failed", None),
        (1, "completed", "B"),
        (2, "completed", "C"),
    ]
    assert Execution.run_async([], start).result() == []


def test_a_start_that_raises_is_that_jobs_failure() -> None:
    def start(item: int, token: CancellationToken) -> TaskResult[int]:
        if item == 1:
            raise ValueError("not this one")
        return TaskResult.completed(item)

    outcomes = Execution.run_async([0, 1, 2], start).result()
    assert [o.status.value for o in outcomes] == ["completed", "failed", "completed"]


def test_a_timeout_freezes_the_outcomes_before_it_cancels_the_children(
    scheduler: DeterministicScheduler,
) -> None:
    timers = Timers(scheduler=scheduler)
    tasks: list[TaskResult[int]] = [TaskResult(scheduler) for _ in range(3)]

    def start(index: int, token: CancellationToken) -> TaskResult[int]:
        # A child that answers its cancellation with a success would change an outcome that is not frozen.
        token.on_cancel(lambda: tasks[index].set_result(-1))
        return tasks[index]

    joined = Execution.run_async([0, 1, 2], start, timeout=5, timers=timers, scheduler=scheduler)
    tasks[1].set_result(10)
    outcomes = joined.wait_result()
    assert scheduler.clock.monotonic() == 5
    assert [(o.status.value, o.value) for o in outcomes] == [
        ("timed_out", None),
        ("completed", 10),
        ("timed_out", None),
    ]
    assert isinstance(outcomes[0].error, TaskTimeoutError)
    assert tasks[0].result() == -1


def test_a_cancellation_freezes_cancels_and_starts_no_further_job() -> None:
    token = CancellationToken()
    started: list[int] = []
    child_cancelled: list[str | None] = []

    def start(item: int, child: CancellationToken) -> TaskResult[int]:
        started.append(item)
        child.on_cancel(lambda: child_cancelled.append(child.reason))
        if item == 1:
            token.cancel("enough")
        return TaskResult()

    outcomes = Execution.run_async([0, 1, 2], start, cancellation_token=token).result()
    assert started == [0, 1]
    assert child_cancelled == ["enough", "enough"]
    assert [o.status.value for o in outcomes] == ["cancelled"] * 3


def test_a_timeout_without_timers_is_refused() -> None:
    with pytest.raises(ValueError, match="timers"):
        Execution.run_async([1], lambda item, token: TaskResult[Any](), timeout=1)


def test_the_timer_of_a_batch_that_ended_is_taken_back(scheduler: DeterministicScheduler) -> None:
    timers = Timers(scheduler=scheduler)
    Execution.run_async([1], lambda item, token: TaskResult.completed(item), timeout=9, timers=timers)
    assert timers.pending == 0
