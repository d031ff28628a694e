"""The Runtime: parts, shutdown, the default one, Blocking, snapshots."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from phronomy_django.engine import (
    BackpressureError,
    Blocking,
    EventLoop,
    EventLoopReentrancyError,
    PhronomyError,
    RegistrationError,
    Runtime,
    RuntimeDiagnostics,
    RuntimeMetrics,
    RuntimeShutdownError,
    ShutdownResult,
    TaskResult,
    ThreadPool,
    Timers,
    diagnostics_snapshot,
    metrics_snapshot,
)
from phronomy_django.testing.scheduler import DeterministicScheduler
from tests.engine.support import Recorder, counting_session


class World:
    """A runtime in virtual time with two participants, two pools and a receiver that log what happens."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.scheduler = DeterministicScheduler()
        timers = Timers(scheduler=self.scheduler)
        self.pools = [LoggingPool(name, self.log, self.scheduler, timers) for name in ("default", "second")]
        self.runtime = Runtime(
            scheduler=self.scheduler, pools={pool.name: pool for pool in self.pools}, timers=timers
        )
        self.loop = self.runtime.loop
        self.receiver = Recorder(self.loop)
        self.receiver.on_shutdown = lambda: self.log.append("receiver told")
        self.loop.register_receiver("recorder", self.receiver)
        self.participants = [Participant(name, self.log) for name in ("one", "two")]
        for participant in self.participants:
            self.runtime.add_participant(participant)


class LoggingPool(ThreadPool):
    def __init__(self, name: str, log: list[str], scheduler: DeterministicScheduler, timers: Timers) -> None:
        super().__init__(name, size=1, queue_size=1, scheduler=scheduler, timers=timers)
        self.log = log
        self.fails = False

    def begin_close(self) -> None:
        self.log.append(f"{self.name} closed")
        super().begin_close()
        if self.fails:
            raise OSError("pool")

    def wait_closed(self, deadline: float) -> bool:
        self.log.append(f"{self.name} waited for")
        return super().wait_closed(deadline)


class Participant:
    def __init__(self, name: str, log: list[str]) -> None:
        self.name, self.log = name, log
        self.idle: Callable[[float], bool] = lambda deadline: True
        self.begin: Callable[[], None] = lambda: None
        self.after: Callable[[], None] = lambda: None

    def begin_draining(self) -> None:
        self.log.append(f"{self.name} begins")
        self.begin()

    def wait_until_idle(self, deadline: float) -> bool:
        self.log.append(f"{self.name} waited for")
        return self.idle(deadline)

    def after_runtime_shutdown(self) -> None:
        self.log.append(f"{self.name} after")
        self.after()


@pytest.fixture
def world() -> World:
    return World()


def explode(*_: object) -> bool:
    raise OSError("broken")


# --- shutdown ---------------------------------------------------------------------------------------------


def test_a_shutdown_visits_everyone_in_order(world: World) -> None:
    result = world.runtime.shutdown()
    assert result == ShutdownResult(drained=True, stopped=True, pools_closed=True, cleanup_complete=True)
    assert world.log == [
        "one begins",
        "two begins",
        "one waited for",
        "two waited for",
        "receiver told",
        "default closed",
        "second closed",
        "default waited for",
        "second waited for",
        "one after",
        "two after",
    ]


def test_admission_is_closed_everywhere_before_anything_is_waited_for(world: World) -> None:
    seen: list[object] = []

    def idle(deadline: float) -> bool:
        if seen:
            return True
        seen.append(world.loop.post_execution(world.receiver, "late", admission=True))
        seen.append(world.loop.post_execution(world.receiver, "continuation"))
        for refused in (world.runtime.add_participant, world.runtime.add_pool):
            with pytest.raises(RuntimeShutdownError):
                refused(world.participants[0])  # type: ignore[operator]
            seen.append("refused")
        return True

    world.participants[0].idle = idle
    assert world.runtime.shutdown().cleanup_complete
    assert seen == [False, True, "refused", "refused"]
    assert world.receiver.messages.count("late") == 0


def test_executions_are_waited_for_before_the_participants(world: World) -> None:
    world.receiver.busy = True

    def end() -> None:
        world.log.append("execution ended")
        world.receiver.busy = False

    world.runtime.timers.call_later(4, end)
    assert world.runtime.shutdown(10, 10).drained
    assert (
        world.log.index("two begins") < world.log.index("execution ended") < world.log.index("one waited for")
    )


def test_work_that_a_participant_posts_while_it_drains_is_dispatched(world: World) -> None:
    def idle(deadline: float) -> bool:
        if not world.receiver.messages:
            world.loop.post_execution(world.receiver, "commit answered")
        return True

    world.participants[0].idle = idle
    assert world.runtime.shutdown().drained
    assert world.receiver.messages == ["commit answered"]


def test_a_drain_that_runs_out_is_reported_and_runs_no_last_hook(world: World) -> None:
    world.receiver.busy = True
    result = world.runtime.shutdown(5, 5)
    assert world.scheduler.clock.monotonic() == 5
    assert (result.drained, result.stopped, result.cleanup_complete) == (False, True, True)
    assert not [entry for entry in world.log if entry.endswith("after")]


def test_one_monotonic_deadline_is_shared_by_all(world: World) -> None:
    deadlines: list[float] = []

    def idle(deadline: float) -> bool:
        deadlines.append(deadline)
        return world.scheduler.wait(lambda: False, deadline - world.scheduler.clock.monotonic())

    for participant in world.participants:
        participant.idle = idle
    never: TaskResult[None] = TaskResult(world.scheduler)
    result = world.runtime.shutdown(7, 3)
    assert deadlines == [7, 7]
    assert world.scheduler.clock.monotonic() == 7
    assert not result.cleanup_complete
    assert not never.done


@pytest.mark.parametrize("hook", ["begin", "idle"])
def test_a_failing_participant_stops_no_other_and_makes_the_cleanup_incomplete(
    world: World, hook: str
) -> None:
    setattr(world.participants[0], hook, explode)
    result = world.runtime.shutdown()
    assert not result.cleanup_complete
    assert [type(error) for error in result.errors] == [OSError]
    assert {"two begins", "two waited for", "receiver told", "second closed"} <= set(world.log)
    assert "two after" not in world.log


def test_a_failing_pool_stops_no_other(world: World) -> None:
    world.pools[0].fails = True
    result = world.runtime.shutdown()
    assert not result.pools_closed and not result.cleanup_complete
    assert {"second closed", "default waited for", "second waited for"} <= set(world.log)


def test_a_failing_receiver_makes_the_cleanup_incomplete(world: World) -> None:
    world.receiver.on_shutdown = explode
    result = world.runtime.shutdown()
    assert result.stopped and not result.cleanup_complete
    assert "one after" not in world.log


def test_a_failing_last_hook_marks_the_cleanup_and_skips_no_later_one(world: World) -> None:
    world.participants[0].after = explode
    result = world.runtime.shutdown()
    assert not result.cleanup_complete and len(result.errors) == 1
    assert world.log[-2:] == ["one after", "two after"]


def test_a_participant_without_the_last_hook_is_fine(world: World) -> None:
    class Plain:
        def begin_draining(self) -> None: ...

        def wait_until_idle(self, deadline: float) -> bool:
            return True

    world.runtime.add_participant(Plain())
    assert world.runtime.shutdown().cleanup_complete


def test_the_second_shutdown_returns_the_first_result_and_runs_no_hook_again(world: World) -> None:
    first = world.runtime.shutdown()
    log = list(world.log)
    assert world.runtime.shutdown(0, 0) is first
    assert world.runtime.shutdown_result is first
    assert world.log == log


def test_a_shutdown_that_is_asked_for_meanwhile_waits_for_the_first(threads: Runtime) -> None:
    entered, leave = threading.Event(), threading.Event()

    class Slow:
        def begin_draining(self) -> None: ...

        def wait_until_idle(self, deadline: float) -> bool:
            entered.set()
            return leave.wait(10)

    threads.add_participant(Slow())
    results: list[ShutdownResult] = []
    callers = [threading.Thread(target=lambda: results.append(threads.shutdown(5, 5))) for _ in range(3)]
    callers[0].start()
    assert entered.wait(5)
    for caller in callers[1:]:
        caller.start()
    assert results == []
    leave.set()
    for caller in callers:
        caller.join(10)
    assert len(results) == 3 and len({id(result) for result in results}) == 1


def test_a_shutdown_on_the_loops_thread_is_refused(world: World) -> None:
    refused: list[BaseException] = []

    def attempt() -> None:
        try:
            world.runtime.shutdown()
        except EventLoopReentrancyError as error:
            refused.append(error)

    world.loop.post_execution(world.receiver, attempt)
    world.scheduler.run_until_idle()
    assert len(refused) == 1
    assert not world.runtime.shutting_down


def test_draining_begins_under_the_lifecycle_lock_and_waits_outside_it(world: World) -> None:
    held: list[bool] = []
    lock = world.runtime._lifecycle
    world.participants[0].begin = lambda: held.append(lock.locked())
    world.participants[0].idle = lambda deadline: held.append(lock.locked()) or True
    world.runtime.shutdown()
    assert held == [True, False]


def test_a_failed_loop_is_shut_down_and_its_error_is_reported(world: World) -> None:
    world.loop.post_execution(world.receiver, explode)
    world.scheduler.run_until_idle()
    result = world.runtime.shutdown()
    assert result.stopped and not result.drained and not result.cleanup_complete
    assert result.errors == (world.loop.error,)
    assert world.receiver.shutdowns == [world.loop.error]


def test_a_loop_that_hangs_leaves_the_cleanup_incomplete_and_its_receivers_untold(threads: Runtime) -> None:
    receiver = Recorder(threads.loop)
    threads.loop.register_receiver("recorder", receiver)
    entered, leave = threading.Event(), threading.Event()

    def hang() -> None:
        entered.set()
        leave.wait(10)

    threads.loop.post_execution(receiver, hang)
    assert entered.wait(5)
    result = threads.shutdown(0, 0)
    assert (result.stopped, result.cleanup_complete, receiver.shutdowns) == (False, False, [])
    assert threads.pool("default").metrics().queued == 0
    leave.set()
    assert threads.loop.stop(threads.scheduler.clock.monotonic() + 5).stopped
    object.__setattr__(result, "stopped", True)


def test_a_body_that_still_runs_leaves_the_cleanup_incomplete(threads: Runtime) -> None:
    entered, leave = threading.Event(), threading.Event()

    def hang() -> None:
        entered.set()
        leave.wait(10)

    threads.pool("default").submit(hang)
    assert entered.wait(5)
    result = threads.shutdown(0, 0)
    leave.set()
    assert (result.stopped, result.pools_closed, result.cleanup_complete) == (True, False, False)


def test_a_live_but_idle_session_does_not_prolong_a_shutdown(world: World) -> None:
    world.loop.register(counting_session(), receiver=world.receiver)
    assert world.runtime.shutdown(100, 1).drained
    assert world.scheduler.clock.monotonic() == 0


# --- parts and the default one ------------------------------------------------------------------------------


def test_parts_are_registered_once_and_found_by_name(world: World) -> None:
    extra = world.runtime.add_pool(ThreadPool("extra", size=1, queue_size=0, scheduler=world.scheduler))
    assert world.runtime.pool("extra") is extra
    assert set(world.runtime.pools) == {"default", "second", "extra"}
    with pytest.raises(RegistrationError):
        world.runtime.add_pool(extra)
    with pytest.raises(RegistrationError):
        world.runtime.add_participant(world.participants[0])
    with pytest.raises(LookupError, match="default, extra, second"):
        world.runtime.pool("unknown")


@pytest.fixture
def no_default() -> Iterator[None]:
    before = Runtime.default()
    Runtime.forget_default()
    yield
    Runtime.forget_default()
    Runtime.set_default(before)


@pytest.mark.usefixtures("no_default")
def test_the_default_runtime_is_replaced_only_after_a_complete_cleanup() -> None:
    first, second = World(), World()
    assert Runtime.default() is None
    assert Runtime.set_default(first.runtime) is None
    assert Runtime.set_default(first.runtime) is first.runtime
    with pytest.raises(PhronomyError, match="not shut down"):
        Runtime.set_default(second.runtime)
    first.runtime.shutdown()
    assert Runtime.set_default(second.runtime) is first.runtime
    second.receiver.on_shutdown = explode
    second.runtime.shutdown()
    for successor in (World().runtime, None):
        with pytest.raises(PhronomyError, match="incomplete"):
            Runtime.set_default(successor)
    assert Runtime.default() is second.runtime


# --- Blocking and snapshots ---------------------------------------------------------------------------------


def test_blocking_work_runs_in_the_default_pool(world: World) -> None:
    task = Blocking.call_async(lambda: 5, runtime=world.runtime)
    assert task.wait_result() == 5
    assert world.pools[0].metrics().started == 1


def test_a_refused_admission_of_blocking_work_is_a_failed_result_and_never_waits(world: World) -> None:
    results: list[TaskResult[int]] = []

    def call() -> None:
        results.extend(Blocking.call_async(lambda: 1, runtime=world.runtime) for _ in range(3))

    world.loop.post_execution(world.receiver, call)
    world.scheduler.wait(lambda: len(results) == 3)
    assert isinstance(results[2].error, BackpressureError)
    world.runtime.shutdown()
    assert isinstance(Blocking.call_async(lambda: 1, runtime=world.runtime).error, RuntimeShutdownError)


@pytest.mark.usefixtures("no_default")
def test_blocking_work_without_a_runtime_is_a_failed_result() -> None:
    assert isinstance(Blocking.call_async(lambda: 1).error, RuntimeShutdownError)
    world = World()
    Runtime.set_default(world.runtime)
    assert Blocking.call_async(lambda: 2).wait_result() == 2


@pytest.mark.usefixtures("no_default")
def test_snapshots_of_nothing_read_zero_and_create_nothing() -> None:
    assert metrics_snapshot() == RuntimeMetrics()
    assert metrics_snapshot().loop.dispatched == 0
    assert diagnostics_snapshot() == RuntimeDiagnostics()
    assert Runtime.default() is None


@pytest.mark.usefixtures("no_default")
def test_snapshots_observe_and_reopen_nothing(world: World) -> None:
    Runtime.set_default(world.runtime)
    session = counting_session()
    world.loop.register(session, receiver=world.receiver)
    world.loop.post_execution(world.receiver, "one")
    world.runtime.timers.call_later(10, lambda: None)
    metrics, seen = metrics_snapshot(), diagnostics_snapshot()
    assert (metrics.loop.queue_depth, metrics.loop.sessions, metrics.pending_timers) == (1, 1, 1)
    assert metrics.pools["second"].size == 1
    assert (seen.loop_state, seen.idle, seen.sessions) == (
        "running",
        False,
        {session.fsm_session_id: "open"},
    )
    assert (seen.receivers, seen.participants) == ({"recorder": True}, ("Participant", "Participant"))
    world.runtime.shutdown()
    after = diagnostics_snapshot()
    assert (after.loop_state, after.shutting_down, after.sessions) == ("terminated", True, {})
    assert world.runtime.loop.state.value == "terminated"


def test_a_runtime_makes_its_own_loop_and_timers() -> None:
    runtime = Runtime(scheduler=DeterministicScheduler())
    assert isinstance(runtime.loop, EventLoop)
    assert runtime.shutdown().cleanup_complete
