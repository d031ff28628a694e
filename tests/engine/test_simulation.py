"""The whole engine in virtual time: thousands of seeded interleavings, and mutants that each turn it red."""

from __future__ import annotations

import logging
import random
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from phronomy_django.engine import (
    BackpressureError,
    CancellationToken,
    DeadlockError,
    EventLoop,
    ExecutionReceiver,
    FSMSession,
    Reservation,
    Rule,
    Runtime,
    RuntimeShutdownError,
    SessionEvent,
    SessionTable,
    TaskResult,
    TaskStatus,
    ThreadPool,
    Timers,
)
from phronomy_django.engine.jobs import Job
from phronomy_django.engine.loop_parts import LiveSession, Receivers
from phronomy_django.engine.pools import BoundedPool
from phronomy_django.testing.scheduler import DeterministicScheduler

SEEDS = 4_000
CHUNKS = 8
MUTANT_SEEDS = 60


class Violation(AssertionError):  # noqa: N818
    """The simulation found the engine breaking a promise."""


def _tick(data: int, event: SessionEvent) -> tuple[int, tuple[Any, ...]]:
    return data + 1, (("seen", event),)


def _ask(data: int, event: SessionEvent) -> tuple[int, tuple[Any, ...]]:
    return data + 1, (("seen", event), ("work", event.payload))


def _seen(data: int, event: SessionEvent) -> tuple[int, tuple[Any, ...]]:
    return data, (("seen", event),)


TABLE: SessionTable[int, Any] = SessionTable(
    initial="open",
    rules=[
        Rule(state="open", event="tick", target="open", action=_tick),
        Rule(state="open", event="ask", target="waiting", action=_ask),
        Rule(state="waiting", event="tick", target="waiting", action=_tick),
        Rule(state="waiting", event="answer", target="open", action=_seen),
        Rule(state="open", event="end", target="ended", action=_seen),
        Rule(state="waiting", event="end", target="halted", action=_seen),
        Rule(state="open", event="doubt", target="doubtful", action=_seen),
    ],
    endings={"ended": "finished", "halted": "halted", "doubtful": "recovery_required"},
)


class Feature(ExecutionReceiver):
    """A receiver that admits runs and gives their sessions work in the pool and on the timers."""

    def __init__(self, world: World) -> None:
        super().__init__(world.runtime.loop)
        self.world = world
        self.live: dict[str, FSMSession[int, Any]] = {}
        self.retired: set[str] = set()
        self.shutdowns = 0
        self.last_number: dict[tuple[str, str], int] = {}
        self.sessions: list[str] = []

    def deliver(self, message: Any) -> None:
        self.world.check(EventLoop.on_loop_thread(), "a delivery ran off the loop")
        kind, completion = message
        if kind == "note":
            return
        try:
            with self.loop.admit_execution(self):
                session: FSMSession[int, Any] = FSMSession(table=TABLE, data=0, execute=self.execute)
                self.live[session.fsm_session_id] = session
        except RuntimeShutdownError as error:
            completion.set_error(error)
            return
        self.loop.register(session, receiver=self)
        self.sessions.append(session.fsm_session_id)
        completion.set_result(session.fsm_session_id)

    def execute(self, session: FSMSession[int, Any], commands: Sequence[Any]) -> None:
        for kind, value in commands:
            if kind == "seen":
                self._saw(session, value)
            else:
                self.world.work_for(session.fsm_session_id, value)

    def _saw(self, session: FSMSession[int, Any], event: SessionEvent) -> None:
        key = session.fsm_session_id
        self.world.check(key not in self.retired, f"{event.name} reached {key} after its retirement")
        if event.name in ("tick", "ask"):
            sender, number = event.payload
            last = self.last_number.get((key, sender), -1)
            self.world.check(number > last, f"{key} saw {number} of {sender} after {last}")
            self.last_number[key, sender] = number

    def idle(self) -> bool:
        return not self.live

    def session_retired(self, session_id: str, reason: str) -> None:
        self.world.check(session_id not in self.retired, f"{session_id} was retired twice")
        self.world.check(session_id in self.live, f"{session_id} was retired but never live")
        self.retired.add(session_id)
        del self.live[session_id]

    def shutdown(self, error: BaseException | None = None) -> None:
        self.shutdowns += 1
        self.live.clear()


class Participant:
    """A shutdown participant that becomes idle with the next timer."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.begun = self.waited = self.after = 0

    def begin_draining(self) -> None:
        self.begun += 1

    def wait_until_idle(self, deadline: float) -> bool:
        self.waited += 1
        return self.world.scheduler.wait(lambda: True, deadline - self.world.scheduler.clock.monotonic())

    def after_runtime_shutdown(self) -> None:
        self.after += 1


class Actor:
    """A producer: a worker of its own that posts, submits, cancels and waits by chance."""

    def __init__(self, world: World, name: str, actions: int) -> None:
        self.world, self.name, self.left = world, name, actions
        self.number = 0

    def run_step(self, *, block: bool) -> bool:
        self.left -= 1
        self.world.act(self)
        return True

    def runnable(self) -> bool:
        return self.left > 0

    def finished(self) -> bool:
        return self.left <= 0


class World:
    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.random = random.Random(seed * 7919 + 1)
        self.scheduler = DeterministicScheduler(seed)
        timers = Timers(scheduler=self.scheduler)
        loop = EventLoop(scheduler=self.scheduler)
        self.pool = ThreadPool(
            "default",
            size=self.random.randint(1, 3),
            queue_size=self.random.randint(0, 4),
            scheduler=self.scheduler,
            timers=timers,
        )
        self.runtime = Runtime(
            scheduler=self.scheduler, loop=loop, pools={"default": self.pool}, timers=timers
        )
        self.features = [Feature(self), Feature(self)]
        for index, feature in enumerate(self.features):
            loop.register_receiver(f"feature-{index}", feature)
        self.participants = [Participant(self), Participant(self)]
        for participant in self.participants:
            self.runtime.add_participant(participant)
        self.actors = [Actor(self, f"actor-{n}", self.random.randint(3, 18)) for n in range(3)]
        self.violations: list[str] = []
        self.accepted = 0
        self.results: list[TaskResult[Any]] = []
        self.settled: Counter[int] = Counter()
        self.bodies: Counter[int] = Counter()
        self.physical: Counter[int] = Counter()
        self.submitted: dict[int, TaskResult[Any]] = {}
        self.answers: Counter[int] = Counter()
        self.requests = 0
        self.tokens: list[CancellationToken] = []

    def check(self, holds: bool, what: str) -> None:
        if not holds:
            self.violations.append(what)

    def watch(self, result: TaskResult[Any]) -> TaskResult[Any]:
        number = len(self.results)
        self.results.append(result)
        result.on_complete(lambda _: self.settled.update([number]))
        return result

    # --- what actors do -------------------------------------------------------------------------------------

    def act(self, actor: Actor) -> None:
        feature = self.random.choice(self.features)
        known = feature.sessions
        match self.random.randrange(10):
            case 0 | 1:
                completion: TaskResult[Any] = self.watch(TaskResult(self.scheduler))
                self.accepted += self.runtime.loop.post_execution(
                    feature, ("admit", completion), admission=True, completion=completion
                )
            case 2:
                self.accepted += self.runtime.loop.post_execution(feature, ("note", None))
            case 3 | 4 | 5 if known:
                self.send(actor, self.random.choice(known), "tick")
            case 6 if known:
                self.send(actor, self.random.choice(known), "ask")
            case 7 if known:
                name = self.random.choice(["end", "end", "doubt", "unknown"])
                self.accepted += self.runtime.loop.post(SessionEvent(self.random.choice(known), name))
            case 8 if self.tokens:
                self.random.choice(self.tokens).cancel("by chance")
            case _:
                self.work_for("", None)

    def send(self, actor: Actor, session_id: str, name: str) -> None:
        actor.number += 1
        event = SessionEvent(session_id, name, (actor.name, actor.number))
        post = self.random.choice([self.runtime.loop.post, self.runtime.loop.post_to_session])
        self.accepted += post(event)

    def answer(self, session_id: str) -> None:
        if session_id:
            self.accepted += self.runtime.loop.post(SessionEvent(session_id, "answer"))

    def work_for(self, session_id: str, payload: Any) -> None:
        """A job, a reserved job or a timer; all lead to an answer for the session."""
        kind = self.random.randrange(4)
        try:
            if kind == 0:
                self.runtime.timers.call_later(self.random.random() * 5, lambda: self.answer(session_id))
            elif kind == 1:
                self.requests += 1
                request = self.requests
                cancelable = self.pool.reserve_later(
                    lambda answer: self.reserved(request, session_id, answer)
                )
                if self.random.random() < 0.2 and cancelable.cancel():
                    self.answers[request] += 1
                    self.answer(session_id)
            else:
                self.submit(session_id, None)
        except (BackpressureError, RuntimeShutdownError):
            self.answer(session_id)

    def reserved(self, request: int, session_id: str, answer: Reservation | BaseException) -> None:
        self.answers[request] += 1
        if isinstance(answer, BaseException):
            self.answer(session_id)
        elif self.random.random() < 0.3:
            answer.release()
            answer.release()
            self.answer(session_id)
        else:
            self.submit(session_id, answer)

    def submit(self, session_id: str, reservation: Reservation | None) -> None:
        number = len(self.results)
        token = None
        if self.random.random() < 0.4:
            token = CancellationToken()
            self.tokens.append(token)
            if self.random.random() < 0.3:
                token.timeout_after(self.random.random() * 3, self.runtime.timers)
        lasts = self.random.choice([0.0, 0.0, self.random.random() * 4])
        timeout = self.random.choice([None, self.random.random() * 3])
        fails = self.random.random() < 0.2

        def body() -> int:
            self.bodies[number] += 1
            if lasts:
                self.scheduler.wait(lambda: False, lasts)
            if fails:
                raise ValueError(number)
            return number

        def physical_end() -> None:
            self.physical[number] += 1
            result = self.submitted.get(number)
            if result is not None and result.done:
                self.check(result.status is not TaskStatus.COMPLETED, "completed before its physical end")

        try:
            result = self.pool.submit(
                body,
                timeout=timeout,
                cancellation_token=token,
                reservation=reservation,
                on_physical_end=physical_end,
            )
        except (BackpressureError, RuntimeShutdownError):
            self.answer(session_id)
            return
        self.results.append(result)
        self.submitted[number] = result
        result.on_complete(lambda _: self.settled.update([number]))
        result.on_complete(lambda _: self.answer(session_id))

    # --- the run and its checks -----------------------------------------------------------------------------

    def check_idle(self) -> None:
        loop = self.runtime.loop
        pending = self.accepted - loop.metrics().dispatched
        expected = pending == 0 and not any(feature.live for feature in self.features)
        self.check(loop.idle() == expected, f"idle is {loop.idle()} with {pending} pending")
        known = {session_id for feature in self.features for session_id in feature.live}
        self.check(set(loop.live_sessions()) == known, "a session ended and its receiver does not know")

    def run(self) -> None:
        for actor in self.actors:
            self.scheduler.start(actor)
        early = self.random.random() < 0.5
        steps = self.random.randrange(1, 60)

        def settled_down() -> bool:
            self.check_idle()
            if early:
                return self.scheduler.steps >= steps or all(actor.finished() for actor in self.actors)
            return (
                all(actor.finished() for actor in self.actors)
                and self.accepted == self.runtime.loop.metrics().dispatched
                and all(result.done for result in self.results)
            )

        self.scheduler.wait(settled_down)
        if not early:
            for feature in self.features:
                for session_id in list(feature.live):
                    self.accepted += self.runtime.loop.post(SessionEvent(session_id, "end"))
        result = self.runtime.shutdown(self.random.choice([0.0, 2.0, 60.0]), 60.0)
        for actor in self.actors:
            self.scheduler.wait(actor.finished)
        self.check_end(early, result)
        self.found = self.corners(result)

    def corners(self, result: Any) -> set[str]:
        """Which of the rarer things happened in this run."""
        found = {f"{task.status} {self.bodies[number]}" for number, task in self.submitted.items()}
        found |= {"not drained"} if not result.drained else {"drained"}
        found |= {"dropped"} if self.runtime.loop.metrics().dropped else set()
        found |= {"refused for want of room"} if self.pool.metrics().refused else set()
        found |= {"refused delivery"} if any(task.error for task in self.results) else set()
        found |= {"nobody answered"} if any(not self.answers[n + 1] for n in range(self.requests)) else set()
        return found

    def check_end(self, early: bool, result: Any) -> None:
        check, metrics = self.check, self.runtime.loop.metrics()
        check(result.cleanup_complete, f"cleanup incomplete: {result}")
        check(
            metrics.dispatched == self.accepted, f"{self.accepted} accepted, {metrics.dispatched} dispatched"
        )
        for number, task in enumerate(self.results):
            check(task.done, f"result {number} was lost")
            check(self.settled[number] == 1, f"result {number} was settled {self.settled[number]} times")
        for number, task in self.submitted.items():
            check(self.physical[number] == 1, f"job {number} ended physically {self.physical[number]} times")
            check(self.bodies[number] <= 1, f"job {number} ran {self.bodies[number]} times")
            if task.status is TaskStatus.COMPLETED:
                check(self.bodies[number] == 1, f"job {number} completed without running")
        for request in range(1, self.requests + 1):
            check(self.answers[request] <= 1, f"request {request} was answered {self.answers[request]} times")
        pool = self.pool.metrics()
        check((pool.active, pool.queued, pool.reserved, pool.abandoned) == (0, 0, 0, 0), f"left over: {pool}")
        for feature in self.features:
            check(feature.shutdowns == 1, f"a receiver was told {feature.shutdowns} times")
        for participant in self.participants:
            check(participant.begun == 1, f"a participant began draining {participant.begun} times")
            check(participant.waited >= 1, "a participant was not waited for")
            check(participant.after == result.drained, "the last hook did not follow the result")
        check(self.runtime.shutdown() is result, "the second shutdown gave another result")
        check(all(feature.shutdowns == 1 for feature in self.features), "a hook ran again")


def simulate(seed: int) -> None:
    """One seeded run; raises ``Violation`` with the seed and what was broken."""
    world = World(seed)
    try:
        world.run()
    except DeadlockError as error:
        world.violations.append(f"stuck: {error}")
    if world.violations:
        raise Violation(f"seed {seed}: " + "; ".join(world.violations[:5]))


@pytest.fixture(autouse=True)
def quiet_log() -> Iterator[None]:
    logger = logging.getLogger("phronomy_django.engine")
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    yield
    logger.setLevel(level)


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_no_interleaving_breaks_a_promise(chunk: int) -> None:
    for seed in range(chunk, SEEDS, CHUNKS):
        simulate(seed)


# --- mutants ------------------------------------------------------------------------------------------------


class _LastInFirstOut(deque[Any]):
    def popleft(self) -> Any:
        return self.pop()


def _last_in_first_out(patch: pytest.MonkeyPatch) -> None:
    original = EventLoop.__init__

    def init(self: EventLoop, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        self._queue = _LastInFirstOut()

    patch.setattr(EventLoop, "__init__", init)


def _settles_twice(patch: pytest.MonkeyPatch) -> None:
    def settle(self: TaskResult[Any], status: TaskStatus, value: Any) -> bool:
        self._status, self._value = status, value
        for callback in list(self._callbacks or ()):
            self._call(callback)
        return True

    patch.setattr(TaskResult, "_settle", settle)


def _idle_forgets_the_queue(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(EventLoop, "idle", lambda self: self._receivers.all_idle())


def _idle_forgets_the_features(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Receivers, "all_idle", lambda self: True)


def _retired_sessions_stay(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(EventLoop, "_retire", lambda self, live, ending: live.retire(ending))


def _retirement_is_not_told(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LiveSession, "retire", lambda self, ending: None)


def _slots_are_not_handed_on(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(BoundedPool, "_hand_out", lambda self: None)


def _physical_end_is_not_told(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Job, "end", lambda self: None)


def _withdrawn_work_runs(patch: pytest.MonkeyPatch) -> None:
    original = BoundedPool._give_up

    def give_up(self: BoundedPool, job: Job, error: BaseException) -> None:
        state = job.state
        original(self, job, error)
        if state.name == "READY":
            job.operation()
            job.operation()

    patch.setattr(BoundedPool, "_give_up", give_up)


def _last_receiver_is_skipped(patch: pytest.MonkeyPatch) -> None:
    def tell(self: Receivers, error: BaseException | None) -> None:
        for receiver in list(self._by_key.values())[:-1]:
            receiver.shutdown(error)

    patch.setattr(Receivers, "tell", tell)


def _accepted_is_dropped(patch: pytest.MonkeyPatch) -> None:
    original = EventLoop.post

    def post(self: EventLoop, event: SessionEvent) -> bool:
        return True if event.name == "answer" else original(self, event)

    patch.setattr(EventLoop, "post", post)


MUTANTS: list[Callable[[pytest.MonkeyPatch], None]] = [
    _last_in_first_out,
    _settles_twice,
    _idle_forgets_the_queue,
    _idle_forgets_the_features,
    _retired_sessions_stay,
    _retirement_is_not_told,
    _slots_are_not_handed_on,
    _physical_end_is_not_told,
    _withdrawn_work_runs,
    _last_receiver_is_skipped,
    _accepted_is_dropped,
]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__.strip("_"))
def test_a_broken_engine_is_found(mutant: Callable[[pytest.MonkeyPatch], None]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        mutant(patch)
        with pytest.raises(Violation):
            for seed in range(MUTANT_SEEDS):
                simulate(seed)


def test_the_same_seed_gives_the_same_run() -> None:
    def trace(seed: int) -> tuple[int, int, float]:
        world = World(seed)
        world.run()
        return world.scheduler.steps, world.accepted, world.scheduler.clock.monotonic()

    assert trace(11) == trace(11)
    assert len({trace(seed) for seed in range(5)}) > 1


def test_the_simulation_reaches_the_corners() -> None:
    found: set[str] = set()
    for seed in range(300):
        world = World(seed)
        world.run()
        found |= world.found
    assert found >= {
        "completed 1",
        "failed 0",
        "failed 1",
        "cancelled 0",
        "cancelled 1",
        "drained",
        "not drained",
        "dropped",
        "refused for want of room",
        "refused delivery",
    }, found
