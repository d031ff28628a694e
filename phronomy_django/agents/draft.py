"""A transition in the making: collects the rows of one barrier and numbers its records.

Knows rows and their order; knows nothing of what they mean to an execution (that is ``barriers``).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from phronomy_django.agents.live import LiveAgent, Position
from phronomy_django.domain.ids import new_id
from phronomy_django.domain.records import (
    ApprovalChange,
    ApprovalRow,
    ContentRow,
    EventRow,
    ExecutionChange,
    ExecutionRow,
    JournalRow,
    LLMCallChange,
    LLMCallRow,
    OperationChange,
    OperationRow,
    RootChange,
    ToolInvocationChange,
    ToolInvocationRow,
    Transition,
)

__all__ = ["Built", "Draft"]


@dataclass(frozen=True, slots=True)
class Built:
    """A transition, and what becomes live when its commit is answered."""

    transition: Transition
    position: Position
    changes: dict[str, Any]
    events: tuple[EventRow, ...]
    work: frozenset[str] = frozenset()


@dataclass(slots=True)
class Draft:
    """Rows of one barrier. ``owner_id`` is the runtime; ``now`` the time of all of them."""

    live: LiveAgent
    owner_id: str
    now: datetime
    barrier: str
    execution_id: str | None = None
    event_sequence: int = 0
    transition_id: str = field(default_factory=new_id)
    execution: ExecutionRow | None = None
    execution_change: ExecutionChange | None = None
    contents: dict[str, ContentRow] = field(default_factory=dict)
    journal: list[JournalRow] = field(default_factory=list)
    llm_calls: list[LLMCallRow] = field(default_factory=list)
    llm_call_changes: list[LLMCallChange] = field(default_factory=list)
    tool_invocations: list[ToolInvocationRow] = field(default_factory=list)
    tool_invocation_changes: list[ToolInvocationChange] = field(default_factory=list)
    operations: list[OperationRow] = field(default_factory=list)
    operation_changes: list[OperationChange] = field(default_factory=list)
    approvals: list[ApprovalRow] = field(default_factory=list)
    approval_changes: list[ApprovalChange] = field(default_factory=list)
    events: list[EventRow] = field(default_factory=list)
    touches_context: bool = False

    def content(self, body: bytes, media_type: str = "application/json") -> str:
        """Name ``body`` and have it stored with this barrier."""
        row = ContentRow.of(body, media_type)
        self.contents[row.content_id] = row
        return row.content_id

    def record(
        self,
        kind: str,
        *,
        channel: str = "control",
        role: str = "",
        content_id: str | None = None,
        candidate: bool = False,
        data: Mapping[str, Any] | None = None,
    ) -> None:
        """Append a journal record; ``candidate`` makes it part of the agent's context."""
        journal = self.journal
        generation = 0 if channel == "knowledge" else self.live.position.transcript_generation
        self.touches_context |= candidate
        journal.append(
            JournalRow(
                self.live.root_id,
                self.live.position.journal_position + len(journal) + 1,
                new_id(),
                self.execution_id,
                kind,
                channel,
                role,
                content_id,
                generation,
                candidate,
                None if journal else self.transition_id,
                "{}" if data is None else _facts(data),
                self.now,
            )
        )

    def event(self, kind: str, payload: Mapping[str, Any]) -> None:
        """Append an event that callers may follow."""
        assert self.execution_id is not None  # noqa: S101 - only barriers of an execution have events
        self.event_sequence += 1
        self.events.append(EventRow(self.execution_id, self.event_sequence, kind, _facts(payload), self.now))

    def build(
        self,
        changes: dict[str, Any],
        *,
        lifecycle_status: str,
        new_revision: bool = False,
        new_generation: bool = False,
        requires_no_stop: bool = False,
        hook: Callable[[], None] | None = None,
        delete_agent_records: bool = False,
        work: frozenset[str] = frozenset(),
    ) -> Built:
        """The transition from the live position, and the position that it leads to."""
        before = self.live.position
        after = Position(
            before.agent_revision + new_revision,
            before.context_revision + (self.touches_context or new_generation),
            before.journal_position + len(self.journal),
            before.transcript_generation + new_generation,
            lifecycle_status,
        )
        root = RootChange(
            self.live.root_id,
            self.owner_id,
            self.live.fencing_token,
            before.agent_revision,
            before.journal_position,
            *after,
        )
        events = tuple(self.events)
        transition = Transition(
            transition_id=self.transition_id,
            barrier=self.barrier,
            root=root,
            journal=tuple(self.journal),
            contents=tuple(self.contents.values()),
            execution=self.execution,
            execution_change=self.execution_change,
            requires_no_stop=requires_no_stop,
            llm_calls=tuple(self.llm_calls),
            llm_call_changes=tuple(self.llm_call_changes),
            tool_invocations=tuple(self.tool_invocations),
            tool_invocation_changes=tuple(self.tool_invocation_changes),
            operations=tuple(self.operations),
            operation_changes=tuple(self.operation_changes),
            approvals=tuple(self.approvals),
            approval_changes=tuple(self.approval_changes),
            events=events,
            hook=hook,
            delete_agent_records=delete_agent_records,
        )
        return Built(transition, after, changes, events, work)


def _facts(value: Mapping[str, Any]) -> str:
    """JSON for a column that cannot hold NUL: an escaped one becomes the visible U+FFFD."""
    text = json.dumps(value, ensure_ascii=False, default=dict)
    return text.replace("\\u0000", "\\ufffd") if "\\u0000" in text else text
