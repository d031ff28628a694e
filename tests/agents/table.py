"""The session table driven by hand: a world that answers its commands with plausible facts, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from phronomy_django.agents.commands import (
    PREPARATION,
    Command,
    Committed,
    EventName,
    Limits,
    LLMEnded,
    Prepared,
    State,
    ToolEnded,
)
from phronomy_django.agents.run import (
    Failure,
    LLMCallState,
    ProviderOutcome,
    Run,
    Stop,
    ToolOutcome,
    ToolState,
    Work,
)
from phronomy_django.agents.session import TABLE
from phronomy_django.domain.messages import LLMResponse, ToolCall, Usage
from phronomy_django.domain.statuses import StopKind, ToolInvocationStatus
from phronomy_django.engine import SessionEvent, SessionTable

__all__ = ["ANSWER", "BOOM", "FAILED", "LIMITS", "NOW", "World", "asks_for", "stop_of", "tool_done"]

NOW = datetime(2026, 1, 1, tzinfo=UTC)
LIMITS = Limits(max_iterations=3, model_count=1)
BOOM = Failure("LLMError", "boom")
ANSWER = ProviderOutcome(response=LLMResponse(text="yes", usage=Usage(3, 2)), output=b'"yes"')
WRONG = ProviderOutcome(response=LLMResponse(text="no", usage=Usage(1, 1)), output_problem="text: missing")
FAILED = ProviderOutcome(failure=BOOM)


def asks_for(count: int) -> ProviderOutcome:
    """An answer that asks for ``count`` tools."""
    calls = tuple(ToolCall(tool_call_id=f"c{number}", name="look") for number in range(count))
    response = LLMResponse(tool_calls=calls, finish_reason="tool_calls")
    return ProviderOutcome(response=response, plans=("planned",) * count)


def stop_of(kind: StopKind = StopKind.CANCEL, reason: str = "enough") -> Stop:
    return Stop(kind=kind, reason=reason, at=NOW)


def tool_done(text: str = "ok") -> ToolOutcome:
    return ToolOutcome(status=ToolInvocationStatus.SUCCEEDED, text=text)


class World:
    """A session and what surrounds it: which commit is in flight, which operations run."""

    def __init__(
        self,
        *,
        prepared: bool = True,
        table: SessionTable[Run, Command] = TABLE,
        resumed: Callable[[Run], Run] | None = None,
    ) -> None:
        self.table = table
        self.state: str = State.ADMITTING
        self.run = Run(execution_id="e", revision=1, prepared=prepared)
        self.asked: list[Command] = []
        self.numbers = 0
        if resumed is not None:
            self.run = resumed(self.run)
        self.send(EventName.BEGIN if resumed is None else EventName.RESUME)

    def send(self, name: EventName, payload: Any = None) -> tuple[Command, ...]:
        """Dispatch one event; the commands that it led to."""
        step = self.table.step(self.state, self.run, SessionEvent("s", name, payload))
        if step is None:
            return ()
        self.state, self.run = step.state, step.data
        self.asked.extend(step.commands)
        return step.commands

    def fresh(self, kind: str) -> str:
        self.numbers += 1
        return f"{kind}{self.numbers}"

    def commit(self, barrier: str, *, refused: int = 0) -> tuple[Command, ...]:
        """The positive answer for ``barrier``, with what the real one makes live. ``refused`` tools have no work."""
        changes: dict[str, Any] = {"revision": self.run.revision + 1}
        work: frozenset[str] = frozenset()
        if barrier in ("b3", "b3_b6", "b3_b2", "b3_b4", "b3_suspend", "b6"):
            changes |= {"call": None, "outcome": None}
        if barrier in ("b1_b2", "b2", "b3_b2", "b5_b2"):
            call = LLMCallState(
                llm_call_id=self.fresh("call"),
                ordinal=self.run.call_count + 1,
                model_index=self.run.model_index,
                work=Work(operation_id=self.fresh("op"), pool="llm"),
            )
            changes |= {
                "call": call,
                "outcome": None,
                "call_count": call.ordinal,
                "iteration": self.run.iteration + 1,
                "tools": (),
            }
            work = frozenset({call.work.operation_id})
        if barrier == "b3_b4":
            assert self.run.outcome is not None
            tools = [self._planned(number < refused) for number in range(len(self.run.outcome.plans))]
            changes["tools"] = tuple(tools)
            work = frozenset(tool.work.operation_id for tool in tools if tool.work is not None)
        return self.send(EventName.COMMITTED, Committed(changes, work))

    def _planned(self, refused: bool) -> ToolState:
        work = None if refused else Work(operation_id=self.fresh("op"), pool="default")
        outcome = ToolOutcome(status=ToolInvocationStatus.FAILED, text="unknown tool") if refused else None
        call = ToolCall(tool_call_id=self.fresh("c"), name="look")
        return ToolState(
            tool_invocation_id=self.fresh("tool"), call=call, arguments=b"{}", work=work, outcome=outcome
        )

    # --- facts -----------------------------------------------------------------------------------------

    @property
    def call_id(self) -> str:
        assert self.run.call is not None
        return self.run.call.llm_call_id

    @property
    def call_work(self) -> str:
        assert self.run.call is not None
        return self.run.call.work.operation_id

    def llm(
        self, outcome: ProviderOutcome, limits: Limits = LIMITS, *, over: bool = True
    ) -> tuple[Command, ...]:
        """The active provider call has this outcome."""
        return self.send(
            EventName.LLM_ENDED, LLMEnded(self.call_id, outcome, limits, self.call_work if over else "")
        )

    def tool(self, index: int, text: str = "ok", *, over: bool = True) -> tuple[Command, ...]:
        state = self.run.tools[index]
        assert state.work is not None
        ended = ToolEnded(state.tool_invocation_id, tool_done(text), state.work.operation_id if over else "")
        return self.send(EventName.TOOL_ENDED, ended)

    def prepare(self, failure: Failure | None = None) -> tuple[Command, ...]:
        commands = self.send(EventName.PREPARED, Prepared({"instructions": "be kind"}, failure))
        return (*commands, *self.send(EventName.WORK_ENDED, PREPARATION))

    # --- ways to a state -----------------------------------------------------------------------------------

    def calling(self) -> World:
        self.commit("b1_b2")
        return self

    def with_tools(self, count: int) -> World:
        self.calling().llm(asks_for(count))
        self.commit("b3_b4")
        return self
