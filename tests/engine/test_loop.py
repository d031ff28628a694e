"""The event loop, sentence by sentence of DESIGN §4."""

from __future__ import annotations

import logging
import threading
from typing import Any

import pytest

from phronomy_django.engine import (
    EventLoop,
    EventLoopReentrancyError,
    LoopState,
    RegistrationError,
    Runtime,
    RuntimeShutdownError,
    SessionEndedError,
    SessionEvent,
    TaskResult,
    current_event_loop,
)
from phronomy_django.engine.loop_parts import BACKLOG
from phronomy_django.testing.scheduler import DeterministicScheduler
from tests.engine.support import Recorder, counting_session


def stop(loop: EventLoop, scheduler: DeterministicScheduler, seconds: float = 5.0) -> bool:
    return loop.stop(scheduler.clock.monotonic() + seconds).stopped


# --- thread, order, states ----------------------------------------------------------------------------------


def test_the_loop_runs_on_one_daemon_thread_of_its_name(threads: Runtime) -> None:
    seen: list[threading.Thread] = []
    done: TaskResult[None] = TaskResult()
    receiver = Recorder(threads.loop)
    threads.loop.register_receiver("recorder", receiver)
    threads.loop.post_execution(receiver, lambda: seen.append(threading.current_thread()))
    threads.loop.post_execution(receiver, lambda: seen.append(threading.current_thread()))
    threads.loop.post_execution(receiver, lambda: done.set_result(None))
    done.wait_result(5)
    assert seen[0] is seen[1]
    assert seen[0].daemon and seen[0].name == "phronomy"


def test_deliveries_and_events_are_dispatched_first_in_first_out(
    loop: EventLoop, receiver: Recorder, scheduler: DeterministicScheduler
) -> None:
    order: list[Any] = []
    session = counting_session(lambda _, commands: order.extend(commands))
    loop.register(session, receiver=receiver)
    for number in range(20):
        if number % 3:
            loop.post(SessionEvent(session.fsm_session_id, "count", number))
        else:
            loop.post_execution(receiver, lambda number=number: order.append(number))
    scheduler.run_until_idle()
    assert order == list(range(20))


def test_many_producers_lose_nothing_and_keep_their_own_order(threads: Runtime) -> None:
    seen: list[tuple[int, int]] = []
    session = counting_session(lambda _, commands: seen.extend(commands))
    done: TaskResult[Any] = TaskResult()
    threads.loop.register(session, done)

    def produce(producer: int) -> None:
        for number in range(2_000):
            assert threads.loop.post(SessionEvent(session.fsm_session_id, "count", (producer, number)))

    producers = [threading.Thread(target=produce, args=(n,)) for n in range(4)]
    for thread in producers:
        thread.start()
    for thread in producers:
        thread.join()
    session.post("finish")
    assert done.wait_result(10).data == 8_000
    for producer in range(4):
        assert [n for p, n in seen if p == producer] == list(range(2_000))


def test_the_states_follow_running_draining_stopping_terminated(
    loop: EventLoop, receiver: Recorder, scheduler: DeterministicScheduler
) -> None:
    states = [loop.state]
    loop.post_execution(receiver, lambda: states.append(loop.state))
    loop.begin_draining()
    states.append(loop.state)
    receiver.on_shutdown = lambda: states.append(loop.state)
    assert stop(loop, scheduler)
    states.append(loop.state)
    assert [state.value for state in states] == ["running", "draining", "stopping", "stopping", "terminated"]


def test_a_loop_that_never_started_stops(loop: EventLoop, scheduler: DeterministicScheduler) -> None:
    assert stop(loop, scheduler)
    assert loop.state is LoopState.TERMINATED


def test_after_the_close_the_queue_refuses_and_what_it_held_is_dispatched(
    loop: EventLoop, receiver: Recorder, scheduler: DeterministicScheduler
) -> None:
    refused: list[bool] = []
    late: TaskResult[None] = TaskResult()

    def post_while_stopping() -> None:
        refused.append(loop.post_execution(receiver, "late", completion=late))
        refused.append(loop.post(SessionEvent(session.fsm_session_id, "count")))

    session = counting_session()
    loop.register(session, receiver=receiver)
    loop.post_execution(receiver, post_while_stopping)
    loop.post_execution(receiver, "queued before")
    assert stop(loop, scheduler)
    assert refused == [False, False]
    assert receiver.messages[-1] == "queued before"
    assert isinstance(late.error, RuntimeShutdownError)
    assert not loop.post(SessionEvent(session.fsm_session_id, "count"))
    assert loop.metrics().queue_depth == 0


def test_an_event_that_races_with_the_close_is_dispatched_or_refused_never_lost(threads: Runtime) -> None:
    seen: list[int] = []
    session = counting_session(lambda _, commands: seen.extend(commands))
    threads.loop.register(session, TaskResult())
    accepted: list[int] = []
    running = threading.Event()

    def produce() -> None:
        number = 0
        while threads.loop.post(SessionEvent(session.fsm_session_id, "count", number)):
            accepted.append(number)
            number += 1
            running.set()

    producer = threading.Thread(target=produce)
    producer.start()
    assert running.wait(5)
    assert threads.loop.stop(threads.scheduler.clock.monotonic() + 10).stopped
    producer.join(5)
    assert seen == accepted
    assert threads.loop.metrics().queue_depth == 0


# --- receivers ----------------------------------------------------------------------------------------------


def test_a_receiver_is_found_by_its_key_and_never_created(loop: EventLoop, receiver: Recorder) -> None:
    assert loop.receiver("recorder") is receiver
    assert loop.receiver("other") is None
    assert loop.receiver("other") is None


def test_a_receiver_registers_once_and_only_with_its_own_loop(
    loop: EventLoop, receiver: Recorder, scheduler: DeterministicScheduler
) -> None:
    other = EventLoop("other", scheduler=scheduler)
    for key, candidate in [("recorder", Recorder(loop)), ("again", receiver), ("foreign", Recorder(other))]:
        with pytest.raises(RegistrationError):
            loop.register_receiver(key, candidate)
    with pytest.raises(RegistrationError):
        loop.post_execution(Recorder(loop), "unregistered")
    with pytest.raises(RegistrationError):
        loop.register(counting_session(), receiver=Recorder(other))


def test_a_receiver_registers_only_while_the_loop_runs(loop: EventLoop) -> None:
    loop.begin_draining()
    with pytest.raises(RuntimeShutdownError):
        loop.register_receiver("late", Recorder(loop))


# --- admission and draining ---------------------------------------------------------------------------------


def test_draining_refuses_admissions_and_takes_continuations(
    loop: EventLoop, receiver: Recorder, scheduler: DeterministicScheduler
) -> None:
    loop.begin_draining()
    completion: TaskResult[None] = TaskResult()
    assert not loop.post_execution(receiver, "admission", admission=True, completion=completion)
    assert loop.post_execution(receiver, "continuation")
    scheduler.run_until_idle()
    assert receiver.messages == ["continuation"]
    assert isinstance(completion.error, RuntimeShutdownError)


def test_a_delivery_is_pending_until_its_dispatch_has_ended(
    loop: EventLoop, receiver: Recorder, scheduler: DeterministicScheduler
) -> None:
    inside: list[bool] = []
    assert loop.idle()
    loop.post_execution(receiver, lambda: inside.append(loop.idle()), admission=True)
    assert not loop.idle()
    scheduler.run_until_idle()
    assert inside == [False]
    assert loop.idle()


def test_an_admission_accepted_before_the_drain_is_admitted_while_draining(
    loop: EventLoop, receiver: Recorder, scheduler: DeterministicScheduler
) -> None:
    admitted: list[str] = []

    def admit(name: str) -> None:
        try:
            with loop.admit_execution(receiver):
                admitted.append(name)
        except RuntimeShutdownError:
            admitted.append(f"not {name}")

    other = Recorder(loop)
    loop.register_receiver("other", other)
    loop.post_execution(receiver, lambda: admit("running"), admission=True)
    scheduler.run_until_idle()
    loop.post_execution(receiver, lambda: admit("accepted before"), admission=True)
    loop.post_execution(other, lambda: admit("of another receiver"), admission=True)
    loop.post_execution(receiver, lambda: admit("continuation"))
    loop.begin_draining()
    scheduler.run_until_idle()
    assert admitted == ["running", "accepted before", "not of another receiver", "not continuation"]


def test_an_execution_is_admitted_on_the_loops_thread_only(loop: EventLoop, receiver: Recorder) -> None:
    with pytest.raises(RegistrationError), loop.admit_execution(receiver):
        pass


def test_feature_state_and_the_idle_decision_share_one_lock(threads: Runtime) -> None:
    receiver = Recorder(threads.loop)
    threads.loop.register_receiver("recorder", receiver)
    asked, answers = threading.Event(), []

    def ask() -> None:
        asked.set()
        answers.append(threads.loop.idle())

    with threads.loop.synchronize_execution_state():
        thread = threading.Thread(target=ask)
        thread.start()
        assert asked.wait(5)
        receiver.busy = True
        assert answers == []
    thread.join(5)
    assert answers == [False]
    receiver.busy = False


# --- sessions on the loop -----------------------------------------------------------------------------------


def test_an_event_for_a_session_that_is_not_live_is_refused_or_dropped(
    loop: EventLoop, receiver: Recorder, scheduler: DeterministicScheduler
) -> None:
    session = counting_session()
    assert not session.post("count")
    loop.register(session, receiver=receiver)
    assert session.post("finish")
    assert session.post("count", "late")
    scheduler.run_until_idle()
    assert session.data == 0
    assert not session.post("count")
    assert loop.post(SessionEvent(session.fsm_session_id, "count"))
    scheduler.run_until_idle()
    assert loop.metrics().dropped == 2


def test_an_identity_is_resolved_and_its_event_queued_under_one_lock(
    loop: EventLoop, receiver: Recorder, scheduler: DeterministicScheduler
) -> None:
    session = counting_session()
    loop.register(session, receiver=receiver)
    seen_by_others: list[bool] = []

    def lookup() -> SessionEvent:
        lock = loop.synchronize_execution_state()
        thread = threading.Thread(target=lambda: seen_by_others.append(lock.acquire(blocking=False)))  # type: ignore[attr-defined]
        thread.start()
        thread.join()
        return SessionEvent(session.fsm_session_id, "count")

    assert loop.route_execution_event(receiver, lookup)
    assert seen_by_others == [False]
    assert not loop.route_execution_event(receiver, lambda: None)
    assert not loop.route_execution_event(receiver, lambda: SessionEvent("unknown", "count"))
    scheduler.run_until_idle()
    assert session.data == 1


@pytest.mark.parametrize(
    ("event", "ending"),
    [("finish", "finished"), ("halt", "halted"), ("break", "error"), ("doubt", "recovery_required")],
)
def test_each_ending_is_told_to_the_receiver_and_settles_the_completion(
    loop: EventLoop, receiver: Recorder, scheduler: DeterministicScheduler, event: str, ending: str
) -> None:
    session, completion = counting_session(), TaskResult[Any](scheduler)
    loop.register(session, completion, receiver)
    session.post(event)
    scheduler.run_until_idle()
    assert receiver.retired == [(session.fsm_session_id, ending)]
    if ending in ("finished", "halted"):
        assert completion.result().ending == ending
    else:
        assert isinstance(completion.error, SessionEndedError)
        assert completion.error.ending == ending
    assert loop.metrics().sessions == 0


def test_an_action_that_raises_ends_the_session_in_error_and_not_the_loop(
    loop: EventLoop, receiver: Recorder, scheduler: DeterministicScheduler
) -> None:
    session, completion = counting_session(), TaskResult[Any](scheduler)
    loop.register(session, completion, receiver)
    session.post("fail")
    scheduler.run_until_idle()
    assert isinstance(completion.error, ValueError)
    assert receiver.retired == [(session.fsm_session_id, "error")]
    assert loop.state is LoopState.RUNNING


def test_commands_that_cannot_be_carried_out_end_the_session_in_error(
    loop: EventLoop, receiver: Recorder, scheduler: DeterministicScheduler
) -> None:
    def execute(session: Any, commands: Any) -> None:
        raise OSError("no")

    session = counting_session(execute)
    loop.register(session, receiver=receiver)
    session.post("count", "command")
    scheduler.run_until_idle()
    assert isinstance(session.error, OSError)
    assert receiver.retired == [(session.fsm_session_id, "error")]


def test_a_registration_without_completion_waits_for_the_end(
    loop: EventLoop, scheduler: DeterministicScheduler
) -> None:
    session = counting_session()
    loop.post(SessionEvent(session.fsm_session_id, "finish"))
    end = loop.register(session)
    assert end is not None and end.ending == "finished"


def test_a_registration_that_would_block_is_refused_on_the_loops_thread(
    loop: EventLoop, receiver: Recorder, scheduler: DeterministicScheduler
) -> None:
    refused: list[BaseException] = []
    session = counting_session()

    def register() -> None:
        try:
            loop.register(session)
        except EventLoopReentrancyError as error:
            refused.append(error)
        loop.register(session, receiver=receiver)

    loop.post_execution(receiver, register)
    scheduler.run_until_idle()
    assert len(refused) == 1
    assert loop.live_sessions() == {session.fsm_session_id: "open"}


def test_a_session_is_registered_once(loop: EventLoop, receiver: Recorder) -> None:
    session = counting_session()
    loop.register(session, receiver=receiver)
    with pytest.raises(RegistrationError):
        loop.register(session, receiver=receiver)


def test_a_draining_loop_takes_sessions_only_on_its_own_thread(
    loop: EventLoop, receiver: Recorder, scheduler: DeterministicScheduler
) -> None:
    inside = counting_session()
    loop.post_execution(receiver, lambda: loop.register(inside, receiver=receiver), admission=True)
    loop.begin_draining()
    scheduler.run_until_idle()
    assert inside.fsm_session_id in loop.live_sessions()
    with pytest.raises(RuntimeShutdownError):
        loop.register(counting_session(), TaskResult())


def test_a_session_that_nobody_owns_keeps_the_loop_busy_and_an_owned_one_does_not(
    loop: EventLoop, receiver: Recorder, scheduler: DeterministicScheduler
) -> None:
    owned, unowned = counting_session(), counting_session()
    loop.register(owned, receiver=receiver)
    assert loop.idle()
    loop.register(unowned, TaskResult())
    assert not loop.idle()
    unowned.post("finish")
    scheduler.run_until_idle()
    assert loop.idle()


# --- the end ------------------------------------------------------------------------------------------------


def test_after_a_clean_stop_receivers_are_told_once_the_thread_has_ended(threads: Runtime) -> None:
    receiver = Recorder(threads.loop)
    threads.loop.register_receiver("recorder", receiver)
    thread: list[threading.Thread] = []
    alive: list[bool] = []
    threads.loop.post_execution(receiver, lambda: thread.append(threading.current_thread()))
    receiver.on_shutdown = lambda: alive.append(thread[0].is_alive())
    assert threads.loop.stop(threads.scheduler.clock.monotonic() + 5).stopped
    assert alive == [False]
    assert receiver.shutdowns == [None]
    threads.loop.stop(threads.scheduler.clock.monotonic() + 5)
    assert receiver.shutdowns == [None]


def test_when_dispatch_raises_its_completion_and_the_loop_fail_with_that_error(
    loop: EventLoop, receiver: Recorder, scheduler: DeterministicScheduler
) -> None:
    error = KeyError("dispatch")
    on_loop: list[EventLoop | None] = []
    receiver.on_shutdown = lambda: on_loop.append(current_event_loop())

    def explode() -> None:
        raise error

    failing, queued, session_end = TaskResult[None](), TaskResult[None](), TaskResult[Any]()
    loop.register(counting_session(), session_end)
    loop.post_execution(receiver, explode, completion=failing)
    loop.post_execution(receiver, "never", completion=queued)
    scheduler.run_until_idle()
    assert loop.state is LoopState.FAILED and loop.error is error
    assert receiver.shutdowns == [error]
    assert on_loop == [loop]
    assert [failing.error, queued.error, session_end.error] == [error, error, error]
    late: TaskResult[None] = TaskResult()
    assert not loop.post_execution(receiver, "late", completion=late)
    assert late.error is error
    assert not loop.post(SessionEvent("any", "count"))
    with pytest.raises(KeyError):
        loop.register(counting_session(), TaskResult())
    assert stop(loop, scheduler)
    assert receiver.shutdowns == [error]
    assert loop.state is LoopState.FAILED


def test_a_receiver_that_fails_at_a_retirement_fails_the_loop_and_leaves_nobody_waiting(
    loop: EventLoop, scheduler: DeterministicScheduler
) -> None:
    class Broken(Recorder):
        def session_retired(self, session_id: str, reason: str) -> None:
            raise OSError("broken")

    broken = Broken(loop)
    loop.register_receiver("broken", broken)
    completion: TaskResult[Any] = TaskResult()
    session = counting_session()
    loop.register(session, completion, broken)
    session.post("finish")
    scheduler.run_until_idle()
    assert loop.state is LoopState.FAILED
    assert isinstance(completion.error, OSError)


def test_a_receiver_that_raises_stops_no_other_and_is_reported(
    loop: EventLoop, receiver: Recorder, scheduler: DeterministicScheduler
) -> None:
    second = Recorder(loop)
    loop.register_receiver("second", second)
    error = OSError("cleanup")

    def explode() -> None:
        raise error

    receiver.on_shutdown = explode
    result = loop.stop(scheduler.clock.monotonic() + 1)
    assert result.stopped and result.errors == (error,)
    assert second.shutdowns == [None]


def test_a_loop_that_is_still_alive_at_the_deadline_is_not_invalidated(threads: Runtime) -> None:
    receiver = Recorder(threads.loop)
    threads.loop.register_receiver("recorder", receiver)
    entered, leave = threading.Event(), threading.Event()

    def hang() -> None:
        entered.set()
        leave.wait(10)

    threads.loop.post_execution(receiver, hang)
    assert entered.wait(5)
    assert not threads.loop.stop(threads.scheduler.clock.monotonic()).stopped
    assert threads.loop.state is LoopState.STOPPING
    assert receiver.shutdowns == []
    leave.set()
    assert threads.loop.stop(threads.scheduler.clock.monotonic() + 5).stopped
    assert receiver.shutdowns == [None]


def test_a_session_live_at_the_stop_leaves_nobody_waiting(
    loop: EventLoop, scheduler: DeterministicScheduler
) -> None:
    completion: TaskResult[Any] = TaskResult()
    loop.register(counting_session(), completion)
    assert stop(loop, scheduler)
    assert isinstance(completion.error, RuntimeShutdownError)


def test_waiting_for_idle_ends_with_the_deadline(
    loop: EventLoop, receiver: Recorder, scheduler: DeterministicScheduler
) -> None:
    receiver.busy = True
    assert not loop.wait_until_idle(scheduler.clock.monotonic() + 3)
    assert scheduler.clock.monotonic() == 3
    receiver.busy = False
    assert loop.wait_until_idle(scheduler.clock.monotonic() + 3)


# --- guards and readings ------------------------------------------------------------------------------------


def test_blocking_calls_are_refused_on_the_loops_thread(
    loop: EventLoop, receiver: Recorder, scheduler: DeterministicScheduler
) -> None:
    refused: list[str] = []
    pending: TaskResult[None] = TaskResult()
    calls = {
        "wait_result": lambda: pending.wait_result(1),
        "scheduler wait": lambda: scheduler.wait(lambda: True),
        "stop": lambda: loop.stop(0),
    }

    def attempt() -> None:
        assert EventLoop.on_loop_thread()
        for name, call in calls.items():
            try:
                call()
            except EventLoopReentrancyError:
                refused.append(name)

    loop.post_execution(receiver, attempt)
    scheduler.run_until_idle()
    assert refused == list(calls)
    assert not EventLoop.on_loop_thread()
    assert current_event_loop() is None


def test_a_settled_result_may_be_read_on_the_loops_thread(
    loop: EventLoop, receiver: Recorder, scheduler: DeterministicScheduler
) -> None:
    values: list[int] = []
    loop.post_execution(receiver, lambda: values.append(TaskResult.completed(4).wait_result()))
    scheduler.run_until_idle()
    assert values == [4]


def test_the_metrics_count_depth_lag_and_dispatches(
    loop: EventLoop, receiver: Recorder, scheduler: DeterministicScheduler
) -> None:
    assert loop.metrics().dispatched == 0
    loop.post_execution(receiver, "one")
    loop.post_execution(receiver, "two")
    assert loop.metrics().queue_depth == 2
    scheduler.clock.advance(2)  # type: ignore[attr-defined]
    scheduler.run_until_idle()
    loop.post_execution(receiver, "three")
    scheduler.run_until_idle()
    metrics = loop.metrics()
    assert (metrics.queue_depth, metrics.max_queue_depth, metrics.dispatched) == (0, 2, 3)
    assert (metrics.last_lag, metrics.max_lag) == (0.0, 2.0)
    assert metrics.average_lag == pytest.approx(4 / 3)


def test_a_backlog_over_a_thousand_is_warned_of_at_most_once_a_minute(
    loop: EventLoop,
    receiver: Recorder,
    scheduler: DeterministicScheduler,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def warnings() -> int:
        return sum(record.levelno == logging.WARNING for record in caplog.records)

    for _ in range(BACKLOG):
        loop.post_execution(receiver, "work")
    assert warnings() == 0
    for _ in range(100):
        loop.post_execution(receiver, "work")
    assert warnings() == 1
    scheduler.step()
    assert warnings() == 1
    scheduler.clock.advance(61)  # type: ignore[attr-defined]
    scheduler.step()
    scheduler.step()
    assert warnings() == 2


def test_a_stuck_loop_is_warned_of_by_its_producers(
    loop: EventLoop, receiver: Recorder, caplog: pytest.LogCaptureFixture
) -> None:
    session = counting_session()
    loop.register(session, receiver=receiver)
    for _ in range(BACKLOG):
        session.post("count")
    assert not caplog.records
    session.post("count")
    assert "backlog of 1001" in caplog.text


def test_the_thread_may_be_started_before_the_first_post(threads: Runtime) -> None:
    threads.loop.start()
    threads.loop.start()
    assert [thread.name for thread in threading.enumerate()].count("phronomy") == 1


def test_what_ends_the_process_fails_the_loop_and_goes_on_up(
    loop: EventLoop, receiver: Recorder, scheduler: DeterministicScheduler
) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    loop.post_execution(receiver, interrupt)
    with pytest.raises(KeyboardInterrupt):
        scheduler.run_until_idle()
    assert loop.state is LoopState.FAILED
    assert current_event_loop() is None


def test_a_drain_that_finds_a_failed_loop_does_not_wait(
    loop: EventLoop, receiver: Recorder, scheduler: DeterministicScheduler
) -> None:
    loop.post_execution(receiver, lambda: 1 / 0)
    receiver.busy = True
    scheduler.run_until_idle()
    assert not loop.wait_until_idle(50)
    assert scheduler.clock.monotonic() == 0


def test_late_cleanup_of_a_loop_is_done_once_by_several_stops(threads: Runtime) -> None:
    receiver = Recorder(threads.loop)
    threads.loop.register_receiver("recorder", receiver)
    threads.loop.post_execution(receiver, "one")
    deadline = threads.scheduler.clock.monotonic() + 5
    stops = [threading.Thread(target=lambda: threads.loop.stop(deadline)) for _ in range(4)]
    for thread in stops:
        thread.start()
    for thread in stops:
        thread.join(10)
    assert receiver.shutdowns == [None]
    assert receiver.messages == ["one"]
