"""Session tables and sessions, without a loop where none is needed."""

from __future__ import annotations

from typing import Any

import pytest

from phronomy_django.engine import (
    EventLoop,
    FSMSession,
    Rule,
    SessionEvent,
    SessionTable,
    SessionTableError,
    Step,
)
from phronomy_django.testing.scheduler import DeterministicScheduler
from tests.engine.support import COUNTING, Recorder, count, counting_session


def event(name: str, payload: Any = None) -> SessionEvent:
    return SessionEvent("session", name, payload)


def test_a_step_is_pure_and_can_be_taken_without_a_session() -> None:
    step = COUNTING.step("open", 4, event("count", "command"))
    assert step == Step("open", 5, ("command",), None)
    assert COUNTING.step("open", 4, event("finish")) == Step("finished", 4, (), COUNTING.endings["finished"])


def test_an_event_that_no_rule_takes_gives_no_step() -> None:
    assert COUNTING.step("open", 0, event("unknown")) is None
    assert COUNTING.step("finished", 0, event("count")) is None


def test_the_first_rule_whose_guard_holds_is_taken() -> None:
    table: SessionTable[int, Any] = SessionTable(
        initial="a",
        rules=[
            Rule(state="a", event="go", target="low", guard=lambda data, event: data < 3),
            Rule(state="a", event="go", target="middle", guard=lambda data, event: data < 6),
            Rule(state="a", event="go", target="high"),
        ],
        endings={"low": "finished", "middle": "halted", "high": "error"},
    )
    targets = [table.step("a", data, event("go")) for data in (0, 5, 9)]
    assert [step.state for step in targets if step] == ["low", "middle", "high"]
    assert table.states == {"a", "low", "middle", "high"}


def rule(state: str, name: str, target: str, guard: Any = None) -> Rule[int, Any]:
    return Rule(state=state, event=name, target=target, action=count, guard=guard)


@pytest.mark.parametrize(
    ("rules", "endings", "initial", "message"),
    [
        ([rule("a", "go", "nowhere")], {}, "a", "'nowhere'"),
        ([rule("a", "go", "b"), rule("c", "go", "b")], {"b": "finished"}, "a", "No event leads to: c"),
        ([rule("a", "go", "b")], {"b": "finished", "d": "error"}, "a", "No event leads to: d"),
        ([rule("a", "go", "b"), rule("a", "go", "a")], {"b": "finished"}, "a", "without a guard"),
        (
            [rule("a", "go", "b"), rule("a", "go", "a", lambda data, event: True)],
            {"b": "finished"},
            "a",
            "without a guard",
        ),
        ([rule("a", "go", "b"), rule("b", "go", "a")], {"b": "finished"}, "a", "leaves the final state"),
        ([rule("a", "go", "b")], {"b": "perhaps"}, "a", "unknown ending"),
        ([rule("a", "go", "b")], {"b": "finished"}, "z", "initial state 'z'"),
    ],
)
def test_a_table_that_contradicts_itself_is_refused_when_it_is_built(
    rules: list[Rule[int, Any]], endings: dict[str, str], initial: str, message: str
) -> None:
    with pytest.raises(SessionTableError, match=message):
        SessionTable(initial=initial, rules=rules, endings=endings)


def test_every_incarnation_has_an_id_of_its_own() -> None:
    assert len({counting_session().fsm_session_id for _ in range(1_000)}) == 1_000


def test_the_new_state_is_set_before_the_commands_are_carried_out(
    loop: EventLoop, receiver: Recorder, scheduler: DeterministicScheduler
) -> None:
    seen: list[tuple[str, int]] = []
    session = counting_session(lambda self, commands: seen.append((self.state, self.data)))
    loop.register(session, receiver=receiver)
    session.post("count", "command")
    scheduler.run_until_idle()
    assert seen == [("open", 1)]


def test_a_step_runs_to_completion_before_what_it_posted(
    loop: EventLoop, receiver: Recorder, scheduler: DeterministicScheduler
) -> None:
    order: list[str] = []

    def execute(session: Any, commands: Any) -> None:
        order.append(f"begin {commands[0]}")
        if commands[0] == "first":
            session.post("count", "posted inside")
        order.append(f"end {commands[0]}")

    session = counting_session(execute)
    loop.register(session, receiver=receiver)
    session.post("count", "first")
    session.post("count", "second")
    scheduler.run_until_idle()
    names = ("first", "second", "posted inside")
    assert order == [f"{edge} {name}" for name in names for edge in ("begin", "end")]


def test_an_unexpected_event_is_dropped_counted_and_logged(
    loop: EventLoop,
    receiver: Recorder,
    scheduler: DeterministicScheduler,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", "phronomy_django.engine")
    session = counting_session()
    loop.register(session, receiver=receiver)
    session.post("unknown")
    scheduler.run_until_idle()
    assert session.dropped == 1 and session.ending is None
    assert "unexpected event unknown" in caplog.text


def test_a_late_event_for_an_old_incarnation_does_not_reach_the_new_one(
    loop: EventLoop, receiver: Recorder, scheduler: DeterministicScheduler
) -> None:
    old, new = counting_session(), counting_session()
    loop.register(old, receiver=receiver)
    old.post("finish")
    old.post("count")
    loop.register(new, receiver=receiver)
    scheduler.run_until_idle()
    assert (old.data, new.data) == (0, 0)


def test_a_guard_that_raises_ends_the_session_in_error(
    loop: EventLoop, receiver: Recorder, scheduler: DeterministicScheduler
) -> None:
    table: SessionTable[int, Any] = SessionTable(
        initial="a",
        rules=[Rule(state="a", event="go", target="b", guard=lambda data, event: 1 / 0)],
        endings={"b": "finished"},
    )
    session: FSMSession[int, Any] = FSMSession(table=table, data=0, execute=lambda session, commands: None)
    loop.register(session, receiver=receiver)
    session.post("go")
    scheduler.run_until_idle()
    assert isinstance(session.error, ZeroDivisionError)
    assert receiver.retired[0][1] == "error"
