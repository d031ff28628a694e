"""Agents in the store for tests: makes roots, and the transitions of whole runs on them."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from decimal import Decimal
from itertools import count
from typing import Any

from phronomy_django.domain.ids import new_id
from phronomy_django.domain.records import (
    ContentRow,
    EventRow,
    ExecutionChange,
    ExecutionRow,
    JournalRow,
    LLMCallChange,
    LLMCallRow,
    OperationChange,
    OperationRow,
    OperationStep,
    RootChange,
    ToolInvocationChange,
    ToolInvocationRow,
    Transition,
)
from phronomy_django.store import claim_root, create_root, register_runtime

NOW = datetime(2026, 3, 4, 5, 6, 7, 890123, tzinfo=UTC)
_numbers = count(1)


def new_runtime(using: str = "default") -> str:
    runtime_id = new_id()
    register_runtime(
        runtime_id=runtime_id, host="host-a", pid=4711, mode="embedded", version="0", using=using
    )
    return runtime_id


@dataclass
class Agent:
    """One root and where it stands; ``advance`` is what the loop does at a positive answer."""

    root_id: int
    agent_id: str
    owner_id: str
    token: int
    revision: int = 0
    context_revision: int = 0
    position: int = 0
    execution_id: str = ""
    call_id: str = ""
    operation_id: str = ""
    claim: str = ""
    events: int = 0
    tools: list[tuple[str, str, str]] = field(default_factory=list)

    @classmethod
    def create(cls, runtime_id: str, agent_id: str | None = None, using: str = "default") -> Agent:
        agent_id = agent_id or f"agent-{next(_numbers)}-{new_id()[-6:]}"
        create_root(agent_id=agent_id, definition_id="support", definition_version=3, using=using)
        root = claim_root(agent_id, runtime_id, 30.0, using)
        return cls(root.root_id, agent_id, runtime_id, root.fencing_token)

    # --- parts ------------------------------------------------------------------------------------------

    def root(self, rows: int, status: str, *, revision: int = 1, context: int = 1) -> RootChange:
        return RootChange(
            self.root_id,
            self.owner_id,
            self.token,
            self.revision,
            self.position,
            self.revision + revision,
            self.context_revision + context,
            self.position + rows,
            0,
            status,
        )

    def record(
        self, offset: int, transition_id: str | None, kind: str, content: str | None, **more: Any
    ) -> JournalRow:
        values: dict[str, Any] = {
            "channel": "transcript",
            "role": "user",
            "candidate": True,
            "data": {},
        } | more
        return JournalRow(
            self.root_id,
            self.position + offset,
            new_id(),
            self.execution_id or None,
            kind,
            values["channel"],
            values["role"],
            content,
            0,
            values["candidate"],
            transition_id,
            json.dumps(values["data"], ensure_ascii=False),
            NOW,
        )

    def event(self, offset: int, kind: str, **payload: Any) -> EventRow:
        return EventRow(self.execution_id, self.events + offset, kind, json.dumps(payload), NOW)

    def operation_change(self, **values: Any) -> OperationChange:
        base = OperationChange(
            self.operation_id,
            "started",
            1,
            self.claim,
            "succeeded",
            1,
            self.claim,
            self.owner_id,
            "worker-1",
            None,
            False,
            NOW,
            NOW,
            NOW,
        )
        return base._replace(**values)

    # --- transitions ------------------------------------------------------------------------------------

    def admission(self, text: str = "Where is my order?", **execution: Any) -> Transition:
        """B1 with B2."""
        transition_id = new_id()
        self.execution_id, self.call_id, self.operation_id, self.claim = (new_id() for _ in range(4))
        message = ContentRow.of(json.dumps({"text": text, "n": self.agent_id}).encode())
        manifest = ContentRow.of(json.dumps({"messages": [text], "x": self.execution_id}).encode())
        row = ExecutionRow(
            self.execution_id,
            self.root_id,
            None,
            "support",
            3,
            1,
            "active",
            "calling_llm",
            1,
            1,
            self.revision,
            self.context_revision,
            self.position,
            message.content_id,
            '{"tenant": "ä\\"b"}',
            NOW,
            None,
            "sha256:" + "0" * 64,
            None,
            transition_id,
            NOW,
            NOW,
        )._replace(**execution)
        return Transition(
            transition_id=transition_id,
            barrier="b1_b2",
            root=self.root(2, "busy"),
            journal=(
                self.record(1, transition_id, "input_received", message.content_id),
                self.record(
                    2,
                    None,
                    "llm_call_dispatched",
                    manifest.content_id,
                    channel="control",
                    role="",
                    candidate=False,
                    data={"model": 'a "quoted" \\ {model}, ü'},
                ),
            ),
            contents=(message, manifest),
            execution=row,
            llm_calls=(
                LLMCallRow(
                    self.call_id, self.execution_id, 1, manifest.content_id, "scripted", "dispatched", 1, NOW
                ),
            ),
            operations=(
                OperationRow(
                    self.operation_id,
                    self.execution_id,
                    "llm_call",
                    self.call_id,
                    "llm",
                    "started",
                    1,
                    self.claim,
                    self.owner_id,
                    "",
                    manifest.content_id,
                    NOW,
                    NOW,
                    NOW,
                ),
            ),
            events=(self.event(1, "status", status="active", text='{"\\"}'),),
        )

    def execution_change(self, transition_id: str, **values: Any) -> ExecutionChange:
        base = ExecutionChange(
            self.execution_id,
            1,
            2,
            "completed",
            "ended",
            1,
            self.events + 2,
            None,
            None,
            "",
            "",
            "",
            "",
            None,
            None,
            11,
            22,
            Decimal("0.0012345678"),
            0,
            transition_id,
            NOW,
            NOW,
        )
        return base._replace(**values)

    def ending(self, answer: str = "It is on its way.", **change: Any) -> Transition:
        """B3 with B6."""
        transition_id = new_id()
        message = ContentRow.of(json.dumps({"answer": answer, "x": self.execution_id}).encode())
        result = ContentRow.of(json.dumps(answer).encode())
        return Transition(
            transition_id=transition_id,
            barrier="b3_b6",
            root=self.root(2, "idle"),
            journal=(
                self.record(1, transition_id, "llm_call_succeeded", message.content_id, role="assistant"),
                self.record(
                    2, None, "execution_completed", result.content_id, channel="control", candidate=False
                ),
            ),
            contents=(message, result),
            execution_change=self.execution_change(
                transition_id, result_content_id=result.content_id, **change
            ),
            llm_call_changes=(
                LLMCallChange(
                    self.call_id, "succeeded", 1, 11, 22, Decimal("0.0012345678"), message.content_id, NOW
                ),
            ),
            operation_changes=(self.operation_change(outcome_content_id=message.content_id),),
            events=(self.event(1, "message", text=answer), self.event(2, "end", status="completed")),
        )

    def tool_dispatch(self, names: tuple[str, ...] = ("lookup_order", "refund")) -> Transition:
        """B3 with B4."""
        transition_id = new_id()
        message = ContentRow.of(json.dumps({"calls": names, "x": self.execution_id}).encode())
        arguments = ContentRow.of(b'{"order_number":"A-1"}')
        self.tools = [(new_id(), new_id(), new_id()) for _ in names]
        return Transition(
            transition_id=transition_id,
            barrier="b3_b4",
            root=self.root(1, "busy", revision=0),
            journal=(
                self.record(1, transition_id, "llm_call_succeeded", message.content_id, role="assistant"),
            ),
            contents=(message, arguments),
            execution_change=self.execution_change(
                transition_id,
                status="active",
                phase="running_tools",
                tool_call_count=len(names),
                finished_at=None,
                cost=None,
            ),
            requires_no_stop=True,
            llm_call_changes=(
                LLMCallChange(self.call_id, "succeeded", 1, 5, 6, None, message.content_id, NOW),
            ),
            tool_invocations=tuple(
                ToolInvocationRow(
                    invocation_id,
                    self.execution_id,
                    self.call_id,
                    f"call_{place}",
                    place,
                    name,
                    arguments.content_id,
                    "dispatched",
                    NOW,
                )
                for place, (name, (invocation_id, _, _)) in enumerate(zip(names, self.tools, strict=True))
            ),
            operations=tuple(
                OperationRow(
                    operation_id,
                    self.execution_id,
                    "tool",
                    invocation_id,
                    "default",
                    "queued",
                    1,
                    None,
                    None,
                    "",
                    arguments.content_id,
                    NOW,
                    NOW,
                    None,
                )
                for invocation_id, operation_id, _ in self.tools
            ),
            operation_changes=(self.operation_change(outcome_content_id=message.content_id),),
            events=(),
        )

    def claim_step(self, place: int, **values: Any) -> OperationStep:
        """A queued tool operation becomes ``started``."""
        _, operation_id, claim = self.tools[place]
        change = OperationChange(
            operation_id,
            "queued",
            1,
            None,
            "started",
            1,
            claim,
            self.owner_id,
            "",
            None,
            False,
            NOW,
            NOW,
            None,
        )._replace(**values)
        return OperationStep(
            root_id=self.root_id,
            owner_id=self.owner_id,
            fencing_token=self.token,
            changes=(change,),
            barrier="claim",
        )

    def tool_changes(self, place: int) -> tuple[OperationChange, ToolInvocationChange, ContentRow]:
        """The outcome of a started tool operation."""
        invocation_id, operation_id, claim = self.tools[place]
        result = ContentRow.of(json.dumps({"result": operation_id}).encode())
        change = OperationChange(
            operation_id,
            "started",
            1,
            claim,
            "succeeded",
            1,
            claim,
            self.owner_id,
            "thread",
            result.content_id,
            False,
            NOW,
            NOW,
            NOW,
        )
        return change, ToolInvocationChange(invocation_id, "succeeded", result.content_id, NOW), result

    def note(self, text: str = "a note", **more: Any) -> Transition:
        """The smallest transition: one journal record."""
        transition_id = new_id()
        content = ContentRow.of(json.dumps([text, self.agent_id]).encode())
        transition = Transition(
            transition_id=transition_id,
            barrier="knowledge",
            root=self.root(1, "idle"),
            journal=(
                self.record(1, transition_id, "knowledge_added", content.content_id, channel="knowledge"),
            ),
            contents=(content,),
        )
        return replace(transition, **more)

    def advance(self, transition: Transition) -> None:
        self.revision = transition.root.agent_revision
        self.context_revision = transition.root.context_revision
        self.position = transition.root.journal_position
        self.events += len(transition.events)
