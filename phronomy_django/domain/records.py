"""Rows as values: what one *transition* adds and changes, in the order of the table's columns.

A row is a ``NamedTuple`` because thousands of them a second go straight into set-based SQL; its field
names are the column names. Content ids are named, never held. Times are aware UTC datetimes by the
runtime's clock; leases are measured by the database's clock elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any, NamedTuple

from phronomy_django.domain.canonical import CANONICALIZATION_VERSION, content_id_of

__all__ = [
    "ApprovalChange",
    "ApprovalRow",
    "ContentRow",
    "EventRow",
    "ExecutionChange",
    "ExecutionRow",
    "JournalRow",
    "LLMCallChange",
    "LLMCallRow",
    "OperationChange",
    "OperationRow",
    "OperationStep",
    "RootChange",
    "ToolInvocationChange",
    "ToolInvocationRow",
    "Transition",
]


class ContentRow(NamedTuple):
    """Immutable bytes. Inserting the same bytes twice is no error and changes nothing."""

    content_id: str
    body: bytes
    size: int
    media_type: str
    canonicalization_version: int

    @classmethod
    def of(cls, body: bytes, media_type: str = "application/json") -> ContentRow:
        return cls(content_id_of(body), body, len(body), media_type, CANONICALIZATION_VERSION)


class JournalRow(NamedTuple):
    agent_id: int
    sequence: int
    record_id: str
    execution_id: str | None
    kind: str
    channel: str
    role: str
    content_id: str | None
    context_generation: int
    context_candidate: bool
    transition_id: str | None
    data: str
    created_at: datetime


class ExecutionRow(NamedTuple):
    execution_id: str
    agent_id: int
    parent_id: str | None
    definition_id: str
    definition_version: int
    execution_revision: int
    status: str
    phase: str
    iteration: int
    event_sequence: int
    base_agent_revision: int
    base_context_revision: int
    base_journal_position: int
    input_content_id: str
    durable_context: str
    deadline: datetime | None
    idempotency_key: str | None
    input_digest: str
    created_by_id: Any
    transition_id: str
    created_at: datetime
    started_at: datetime | None


class ExecutionChange(NamedTuple):
    """All changeable columns of one execution; applies only at ``expected_revision``."""

    execution_id: str
    expected_revision: int
    execution_revision: int
    status: str
    phase: str
    iteration: int
    event_sequence: int
    result_content_id: str | None
    error_content_id: str | None
    terminal_reason: str
    recovery_disposition: str
    stop_kind: str
    stop_reason: str
    stop_requested_by_id: Any
    stop_requested_at: datetime | None
    input_tokens: int
    output_tokens: int
    cost: Decimal | None
    tool_call_count: int
    transition_id: str
    started_at: datetime | None
    finished_at: datetime | None


class LLMCallRow(NamedTuple):
    llm_call_id: str
    execution_id: str
    ordinal: int
    manifest_content_id: str
    model: str
    status: str
    attempts: int
    created_at: datetime


class LLMCallChange(NamedTuple):
    llm_call_id: str
    status: str
    attempts: int
    input_tokens: int
    output_tokens: int
    cost: Decimal | None
    outcome_content_id: str | None
    finished_at: datetime | None


class ToolInvocationRow(NamedTuple):
    tool_invocation_id: str
    execution_id: str
    llm_call_id: str
    tool_call_id: str
    position: int
    tool_name: str
    arguments_content_id: str
    status: str
    created_at: datetime
    result_content_id: str | None = None
    finished_at: datetime | None = None


class ToolInvocationChange(NamedTuple):
    tool_invocation_id: str
    status: str
    result_content_id: str | None
    finished_at: datetime | None


class OperationRow(NamedTuple):
    operation_id: str
    execution_id: str
    kind: str
    subject_id: str
    pool: str
    state: str
    attempt: int
    claim: str | None
    runtime_id: str | None
    worker: str
    request_content_id: str | None
    available_at: datetime
    queued_at: datetime
    started_at: datetime | None


class OperationChange(NamedTuple):
    """Applies only while the row names ``expected_state``, ``expected_attempt`` and ``expected_claim``."""

    operation_id: str
    expected_state: str
    expected_attempt: int
    expected_claim: str | None
    state: str
    attempt: int
    claim: str | None
    runtime_id: str | None
    worker: str
    outcome_content_id: str | None
    abandoned: bool
    available_at: datetime
    started_at: datetime | None
    finished_at: datetime | None


class ApprovalRow(NamedTuple):
    approval_request_id: str
    execution_id: str
    tool_invocation_id: str
    state: str
    arguments_digest: str
    shown_arguments: str
    facts: str
    requested_at: datetime
    expires_at: datetime | None


class ApprovalChange(NamedTuple):
    """Withdraws or expires a request; applies only while it is in ``expected_state`` (HARD_POINTS 10)."""

    approval_request_id: str
    expected_state: str
    state: str
    decided_at: datetime | None


class EventRow(NamedTuple):
    execution_id: str
    sequence: int
    type: str
    payload: str
    created_at: datetime


class RootChange(NamedTuple):
    """Moves one root. Applies only while owner, token, revision and position are the expected ones."""

    id: int
    owner_id: str
    fencing_token: int
    expected_agent_revision: int
    expected_journal_position: int
    agent_revision: int
    context_revision: int
    journal_position: int
    transcript_generation: int
    lifecycle_status: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Transition:
    """What commits together at one barrier of one agent (DESIGN §6), or not at all.

    ``journal`` is never empty; its first row carries ``transition_id``, which is unique in the table, so that
    a transition can commit once only and a lost answer can be read back. ``requires_no_stop`` makes the
    execution's change apply only while no stop was requested (HARD_POINTS 9). ``hook`` is application code
    (``on_admission``, ``on_terminal``) that runs first in the same transaction (HARD_POINTS 12).
    ``delete_agent_records`` empties the agent's history (purge) before the rows are added.
    """

    transition_id: str
    barrier: str
    root: RootChange
    journal: tuple[JournalRow, ...]
    contents: tuple[ContentRow, ...] = ()
    execution: ExecutionRow | None = None
    execution_change: ExecutionChange | None = None
    requires_no_stop: bool = False
    llm_calls: tuple[LLMCallRow, ...] = ()
    llm_call_changes: tuple[LLMCallChange, ...] = ()
    tool_invocations: tuple[ToolInvocationRow, ...] = ()
    tool_invocation_changes: tuple[ToolInvocationChange, ...] = ()
    operations: tuple[OperationRow, ...] = ()
    operation_changes: tuple[OperationChange, ...] = ()
    approvals: tuple[ApprovalRow, ...] = ()
    approval_changes: tuple[ApprovalChange, ...] = ()
    events: tuple[EventRow, ...] = ()
    hook: Callable[[], None] | None = None
    delete_agent_records: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationStep:
    """A change of operations alone, which moves no root: a claim, a start, a next attempt, a late end.

    Group-committed like a transition; each change proves itself by state, attempt and claim. A lost answer
    is read back by ``claim``. ``root`` names the root whose owner and token must still be these.
    """

    root_id: int
    owner_id: str
    fencing_token: int
    changes: tuple[OperationChange, ...]
    barrier: str = "operation"
