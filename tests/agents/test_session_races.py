"""The session table against a world in random order: late, doubled and foreign facts, stops at any moment.

Each seed is one order. The same checks are run against tables with one rule broken: each has to be noticed.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from phronomy_django.agents import steps
from phronomy_django.agents.commands import (
    PREPARATION,
    Abandon,
    CancelWork,
    Command,
    Commit,
    EventName,
    Fail,
    Finish,
    Hold,
    LLMEnded,
    Prepare,
    Prepared,
    StartLLM,
    StartTools,
    State,
    Suspend,
    ToolEnded,
)
from phronomy_django.agents.run import ApprovalNeed, Run
from phronomy_django.agents.session import TABLE
from phronomy_django.domain.errors import ConflictError, OutcomeUnknownError, StorageError
from phronomy_django.engine import Rule, SessionTable
from tests.agents.table import ANSWER, BOOM, FAILED, LIMITS, WRONG, World, asks_for, stop_of, tool_done

SEEDS = 3000
Fact = Callable[[], None]


class Race(World):
    """A world whose facts wait in a bag and come in random order; it checks what no order may break."""

    def __init__(self, seed: int, table: SessionTable[Run, Command] = TABLE) -> None:
        self.random = random.Random(seed)
        self.bag: list[Fact] = []
        self.in_flight: str | None = None
        self.ends = 0
        self.limits = replace(
            LIMITS,
            model_count=self.random.choice((1, 2)),
            separate_end=self.random.random() < 0.3,
            exceeded=self.random.choice(("", "", "", "cost")),
        )
        self.failing = self.random.random() < 0.15
        self.over: set[str] = set()
        self.reported: set[str] = set()
        super().__init__(prepared=self.random.random() < 0.7, table=table)
        if self.random.random() < 0.6:
            for _ in range(self.random.choice((1, 1, 2))):
                self.bag.append(lambda: self.fact(EventName.STOP, stop_of()))

    def send(self, name: EventName, payload: object = None) -> tuple[Command, ...]:
        ending = self.run.ending
        running = self.run.running
        commands = super().send(name, payload)
        assert self.state in (State.ERROR, State.RECOVERY_REQUIRED) or ending in (None, self.run.ending), (
            "another end"
        )
        for command in commands:
            self.obey(command, running)
        return commands

    def fact(self, name: EventName, payload: object) -> None:
        self.send(name, payload)
        if self.random.random() < 0.2:
            self.send(name, payload)  # doubled

    def obey(self, command: Command, running: frozenset[str]) -> None:
        match command:
            case Commit(barrier, _):
                assert self.in_flight is None, "two commits of one root in flight"
                assert self.ends == 0, "a commit after the end"
                if barrier in ("b6", "b3_b6"):
                    assert not self.run.running, "an end while work runs (rule 9)"
                    assert self.run.ending is not None
                if barrier == "b5_b2":
                    assert all(tool.outcome is not None for tool in self.run.tools), "an unanswered call"
                assert not (self.run.stop_accepted and barrier not in ("b6", "unresolved")), (
                    "work after an accepted stop"
                )
                self.in_flight = barrier
                self.bag.append(lambda: self.answer(barrier))
            case Prepare():
                self.bag.append(self.preparation)
            case StartLLM():
                assert self.run.stop is None, "a provider call although a stop waits"
                self.bag.append(self.provider(self.call_id, self.call_work))
            case StartTools():
                assert self.run.stop is None, "tools although a stop waits"
                for index, tool in enumerate(self.run.tools):
                    if tool.work is not None:
                        self.bag.append(self.body(index, tool.tool_invocation_id, tool.work.operation_id))
            case CancelWork():
                for operation_id in sorted(self.run.running - self.reported - {PREPARATION}):
                    self.bag.append(lambda operation_id=operation_id: self.gone(operation_id))  # type: ignore[misc]
            case Finish() | Fail() | Abandon() | Suspend() | Hold():
                self.ends += 1

    def answer(self, barrier: str) -> None:
        self.in_flight = None
        if self.failing and self.random.random() < 0.4:
            error = self.random.choice(
                (StorageError("full"), ConflictError("token"), OutcomeUnknownError("lost"))
            )
            name = EventName.UNKNOWN if isinstance(error, OutcomeUnknownError) else EventName.REFUSED
            self.send(name, error)
            return
        refused = 0 if barrier != "b3_b4" or self.run.outcome is None else self.random.randint(0, 1)
        self.commit(barrier, refused=refused)

    def preparation(self) -> None:
        failure = BOOM if self.random.random() < 0.2 else None
        self.fact(EventName.PREPARED, Prepared({}, failure))
        self.send(EventName.WORK_ENDED, PREPARATION)

    def provider(self, call_id: str, operation_id: str) -> Fact:
        def ended() -> None:
            if operation_id in self.over:
                return
            tools = asks_for(self.random.randint(1, 3))
            held = replace(tools, needs=(ApprovalNeed(shown="{}", facts="{}"),) * len(tools.plans))
            outcome = self.random.choice((ANSWER, ANSWER, WRONG, FAILED, tools, tools, held))
            if self.random.random() < 0.2:
                self.send(EventName.LLM_ENDED, LLMEnded("foreign", ANSWER, self.limits, ""))
            self.report(
                operation_id,
                lambda over: (EventName.LLM_ENDED, LLMEnded(call_id, outcome, self.limits, over)),
            )

        return ended

    def body(self, index: int, invocation_id: str, operation_id: str) -> Fact:
        def ended() -> None:
            if operation_id in self.over:
                return
            if self.random.random() < 0.2:
                self.send(EventName.TOOL_ENDED, ToolEnded("foreign", tool_done(), ""))
            outcome = tool_done(f"{index}")
            self.report(
                operation_id, lambda over: (EventName.TOOL_ENDED, ToolEnded(invocation_id, outcome, over))
            )

        return ended

    def report(self, operation_id: str, event: Callable[[str], tuple[EventName, object]]) -> None:
        """The answer; its body may go on for a while (it was given up)."""
        self.reported.add(operation_id)
        if self.random.random() < 0.25:
            self.fact(*event(""))
            self.bag.append(lambda: self.gone(operation_id))
        else:
            self.over.add(operation_id)
            self.fact(*event(operation_id))

    def gone(self, operation_id: str) -> None:
        if operation_id not in self.over:
            self.over.add(operation_id)
            self.fact(EventName.WORK_ENDED, operation_id)

    def play(self) -> None:
        for _ in range(500):
            if not self.bag:
                break
            self.bag.pop(self.random.randrange(len(self.bag)))()
        assert self.ends == 1, f"{self.ends} ends in state {self.state}"
        assert self.table.endings.get(self.state), f"it stays in {self.state} for ever"


def test_in_every_order_a_run_ends_once_and_breaks_no_rule() -> None:
    for seed in range(SEEDS):
        try:
            Race(seed).play()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error


# --- tables with one fault ---------------------------------------------------------------------------------


def without_guard(guard: Callable[..., bool]) -> Callable[[Rule[Run, Command]], Rule[Run, Command] | None]:
    """The rules with ``guard`` are gone."""
    return lambda rule: None if rule.guard is guard else rule


def always(
    state: State, event: EventName, guard: Callable[..., bool]
) -> Callable[..., Rule[Run, Command] | None]:
    """The rule with ``guard`` is taken without it; those behind it are gone."""

    def change(rule: Rule[Run, Command]) -> Rule[Run, Command] | None:
        if (rule.state, rule.event) != (state, event):
            return rule
        return replace(rule, guard=None) if rule.guard is guard else None

    return change


def dropped(state: State, event: EventName) -> Callable[[Rule[Run, Command]], Rule[Run, Command] | None]:
    return lambda rule: None if (rule.state, rule.event) == (state, event) else rule


FAULTS = {
    "an accepted stop that does not wait": always(State.ACCEPTING_STOP, EventName.COMMITTED, steps.quiet),
    "an end that does not wait for work": without_guard(steps.ends_in_steps),
    "a stop that is forgotten during a commit": without_guard(steps.stop_wanted),
    "a batch that goes on with the first result": always(
        State.RUNNING_TOOLS, EventName.TOOL_ENDED, steps.last_tool
    ),
    "a batch of refused calls that nobody answers": without_guard(steps.nothing_to_run),
    "the end of work that nobody hears": dropped(State.QUIESCING, EventName.WORK_ENDED),
    "a lost answer that is not told": dropped(State.DISPATCHING, EventName.UNKNOWN),
    "foreign answers that count": without_guard(steps.foreign),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_table_with_a_fault_is_noticed(fault: str) -> None:
    rules = [changed for rule in TABLE.rules if (changed := FAULTS[fault](rule)) is not None]
    table = SessionTable(initial=TABLE.initial, rules=rules, endings=TABLE.endings)
    for seed in range(SEEDS):
        try:
            Race(seed, table).play()
        except (AssertionError, AttributeError, KeyError):
            return
    raise AssertionError(f"{SEEDS} seeds did not notice: {fault}")
