"""What recovery reads: an unfinished execution with everything that says how far it came (DESIGN §7).

Read it after the root's claim committed (HARD_POINTS 2): then nobody else can commit for it any more.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any

from django.db.models import Exists, OuterRef, Q
from django.db.models.functions import Now

from phronomy_django.domain.statuses import (
    NON_TERMINAL,
    ApprovalState,
    ExecutionStatus,
    OperationState,
    RecoveryDisposition,
    RuntimeState,
)
from phronomy_django.models import (
    AgentExecution,
    ApprovalRequest,
    Content,
    JournalRecord,
    LLMCall,
    OffloadOperation,
    RecoveryResolution,
    RuntimeInstance,
    ToolInvocation,
)

__all__ = [
    "ApprovalFact",
    "CallFact",
    "InvocationFact",
    "OpenExecution",
    "OperationFact",
    "OwnRecord",
    "ResolutionFact",
    "UnfinishedExecution",
    "WaitingItem",
    "find_open",
    "list_decided",
    "list_recoverable",
    "list_waiting",
    "load_unfinished",
]

_OPEN = sorted(map(str, NON_TERMINAL))


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenExecution:
    """Enough of an unfinished execution to say why its agent is busy."""

    execution_id: str
    status: str
    phase: str
    recovery_disposition: str


@dataclass(frozen=True, slots=True)
class OwnRecord:
    """A transcript record of the execution itself."""

    kind: str
    body: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class CallFact:
    llm_call_id: str
    ordinal: int
    model: str
    status: str
    attempts: int
    manifest: bytes
    outcome: bytes | None


@dataclass(frozen=True, slots=True, kw_only=True)
class InvocationFact:
    tool_invocation_id: str
    llm_call_id: str
    tool_call_id: str
    position: int
    tool_name: str
    status: str
    result: bytes | None


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationFact:
    """``lost``: the runtime that started it is known to be gone (or it was never started)."""

    operation_id: str
    subject_id: str
    kind: str
    pool: str
    state: str
    attempt: int
    claim: str | None
    runtime_id: str | None
    lost: bool
    abandoned: bool
    started_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalFact:
    approval_request_id: str
    tool_invocation_id: str
    state: str
    reason: str
    edited_arguments: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolutionFact:
    subject_id: str
    attempt: int
    outcome: str
    result: Any
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class UnfinishedExecution:
    """One execution's rows, as recovery needs them. ``first_manifest`` is the input of its first provider call."""

    execution_id: str
    definition_id: str
    definition_version: int
    execution_revision: int
    status: str
    phase: str
    iteration: int
    event_sequence: int
    recovery_disposition: str
    base_journal_position: int
    stop_kind: str
    stop_reason: str
    stop_by: Any
    stop_at: datetime | None
    input_content_id: str
    durable_context: Mapping[str, Any]
    deadline: datetime | None
    idempotency_key: str | None
    input_digest: str
    created_by: Any
    created_at: datetime
    started_at: datetime | None
    input_tokens: int
    output_tokens: int
    cost: Decimal | None
    tool_call_count: int
    own: tuple[OwnRecord, ...]
    first_manifest: bytes | None
    last_call: CallFact | None
    call_count: int
    invocations: tuple[InvocationFact, ...]
    operations: tuple[OperationFact, ...]
    approvals: tuple[ApprovalFact, ...]
    resolutions: tuple[ResolutionFact, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingItem:
    """One thing that a person has to answer; ``subject_id`` is the approval request, or the unknown step."""

    kind: str
    agent_id: str
    execution_id: str
    execution_revision: int
    subject_id: str
    what: str
    since: datetime


def find_open(root_id: int, using: str = "default") -> OpenExecution | None:
    """The non-terminal top-level execution of an agent, if it has one."""
    found = (
        AgentExecution.objects.using(using)
        .filter(agent_id=root_id, status__in=_OPEN, parent=None)
        .values("execution_id", "status", "phase", "recovery_disposition")
        .first()
    )
    return None if found is None else OpenExecution(**found)


def list_recoverable(
    runtime_id: str, using: str = "default", execution_ids: Collection[str] | None = None
) -> Iterator[tuple[str, str, str, int]]:
    """``(execution_id, agent_id, definition_id, definition_version)`` of what a runtime may take up now.

    Unfinished executions whose agent nobody alive owns (or this runtime does), oldest first; without those that
    still wait for a person's approval before their deadline. ``execution_ids``: only of these.
    """
    alive = RuntimeInstance.objects.using(using).filter(
        pk=OuterRef("agent__owner_id"), state=RuntimeState.RUNNING
    )
    waits = ApprovalRequest.objects.using(using).filter(execution=OuterRef("pk"), state=ApprovalState.PENDING)
    rows = (
        AgentExecution.objects.using(using)
        .filter(Q(agent__owner_id=runtime_id) | ~Exists(alive), status__in=_OPEN, parent=None)
        .exclude(
            Q(status=ExecutionStatus.SUSPENDED) & Exists(waits) & (Q(deadline=None) | Q(deadline__gt=Now()))
        )
        .order_by("created_at")
        .values_list("execution_id", "agent__agent_id", "definition_id", "definition_version")
    )
    if execution_ids is not None:
        rows = rows.filter(pk__in=execution_ids)
    yield from rows.iterator(chunk_size=2000)


def list_decided(using: str = "default") -> list[str]:
    """Executions that waited and wait no more, whoever was told: suspended ones whose requests are all decided or whose
    deadline has passed, and those whose unknown outcome a person has said since their revision."""
    waits = ApprovalRequest.objects.using(using).filter(execution=OuterRef("pk"), state=ApprovalState.PENDING)
    said = RecoveryResolution.objects.using(using).filter(
        execution=OuterRef("pk"), execution_revision=OuterRef("execution_revision")
    )
    rows = AgentExecution.objects.using(using).filter(
        Q(status=ExecutionStatus.SUSPENDED) & (~Exists(waits) | Q(deadline__lte=Now()))
        | Q(recovery_disposition=RecoveryDisposition.RESOLUTION_REQUIRED) & Exists(said),
        status__in=_OPEN,
        parent=None,
    )
    return list(rows.values_list("execution_id", flat=True))


def list_waiting(using: str = "default") -> tuple[WaitingItem, ...]:
    """What waits for a person, oldest first: requests for approval, and outcomes that nobody can know."""
    requests = (
        ApprovalRequest.objects.using(using)
        .filter(state=ApprovalState.PENDING, execution__status__in=_OPEN)
        .order_by("requested_at")
        .values_list(
            "execution__agent__agent_id",
            "execution_id",
            "execution__execution_revision",
            "approval_request_id",
            "tool_invocation__tool_name",
            "shown_arguments",
            "requested_at",
        )
    )
    items = [
        WaitingItem(
            kind="approval",
            agent_id=agent_id,
            execution_id=execution_id,
            execution_revision=revision,
            subject_id=request_id,
            what=f"{tool}({', '.join(f'{key}={value!r}' for key, value in dict(shown).items())})",
            since=since,
        )
        for agent_id, execution_id, revision, request_id, tool, shown, since in requests
    ]
    held = (
        AgentExecution.objects.using(using)
        .filter(recovery_disposition=RecoveryDisposition.RESOLUTION_REQUIRED, status__in=_OPEN)
        .select_related("agent")
        .order_by("created_at")
    )
    for execution in held:
        record = execution.journal.filter(kind="resolution_required").order_by("-sequence").first()
        if record is not None:
            items += [
                WaitingItem(
                    kind="resolution",
                    agent_id=execution.agent.agent_id,
                    execution_id=execution.execution_id,
                    execution_revision=execution.execution_revision,
                    subject_id=subject["subject_id"],
                    what=f"{subject['what']}, attempt {subject['attempt']}",
                    since=record.created_at,
                )
                for subject in record.data["subjects"]
            ]
    return tuple(items)


def load_unfinished(root_id: int, runtime_id: str, using: str = "default") -> UnfinishedExecution | None:
    """The unfinished execution of an agent with its evidence, or None. A handful of queries by index."""
    found = (
        AgentExecution.objects.using(using).filter(agent_id=root_id, status__in=_OPEN, parent=None).first()
    )
    if found is None:
        return None
    execution_id = found.execution_id
    calls = (
        LLMCall.objects.using(using)
        .filter(execution=execution_id)
        .select_related("manifest_content", "outcome_content")
        .order_by("ordinal")
    )
    first, last = calls.first(), calls.last()
    invocations = () if last is None else _invocations(last.llm_call_id, using)
    return UnfinishedExecution(
        execution_id=execution_id,
        definition_id=found.definition_id,
        definition_version=found.definition_version,
        execution_revision=found.execution_revision,
        status=found.status,
        phase=found.phase,
        iteration=found.iteration,
        event_sequence=found.event_sequence,
        recovery_disposition=found.recovery_disposition,
        base_journal_position=found.base_journal_position,
        stop_kind=found.stop_kind,
        stop_reason=found.stop_reason,
        stop_by=found.stop_requested_by_id,
        stop_at=found.stop_requested_at,
        input_content_id=found.input_content_id or "",
        durable_context=found.durable_context,
        deadline=found.deadline,
        idempotency_key=found.idempotency_key,
        input_digest=found.input_digest,
        created_by=found.created_by_id,
        created_at=found.created_at,
        started_at=found.started_at,
        input_tokens=found.input_tokens,
        output_tokens=found.output_tokens,
        cost=found.cost,
        tool_call_count=found.tool_call_count,
        own=tuple(
            OwnRecord(kind, bytes(body))
            for kind, body in JournalRecord.objects.using(using)
            .filter(execution=execution_id, channel="transcript", context_candidate=True)
            .order_by("sequence")
            .values_list("kind", "content__body")
        ),
        first_manifest=None if first is None else _body(first.manifest_content),
        last_call=None if last is None else _call(last),
        call_count=0 if last is None else last.ordinal,
        invocations=invocations,
        operations=_operations(execution_id, runtime_id, using),
        approvals=tuple(
            ApprovalFact(**row)
            for row in ApprovalRequest.objects.using(using)
            .filter(execution=execution_id)
            .values("approval_request_id", "tool_invocation_id", "state", "reason", "edited_arguments")
        ),
        resolutions=tuple(
            ResolutionFact(**row)
            for row in RecoveryResolution.objects.using(using)
            .filter(execution=execution_id)
            .values("subject_id", "attempt", "outcome", "result", "error")
        ),
    )


def _body(content: Content | None) -> bytes | None:
    return None if content is None else bytes(content.body)


def _call(row: LLMCall) -> CallFact:
    return CallFact(
        llm_call_id=row.llm_call_id,
        ordinal=row.ordinal,
        model=row.model,
        status=row.status,
        attempts=row.attempts,
        manifest=_body(row.manifest_content) or b"",
        outcome=_body(row.outcome_content),
    )


def _invocations(llm_call_id: str, using: str) -> tuple[InvocationFact, ...]:
    rows = (
        ToolInvocation.objects.using(using)
        .filter(llm_call=llm_call_id)
        .select_related("result_content")
        .order_by("position")
    )
    return tuple(
        InvocationFact(
            tool_invocation_id=row.tool_invocation_id,
            llm_call_id=llm_call_id,
            tool_call_id=row.tool_call_id,
            position=row.position,
            tool_name=row.tool_name,
            status=row.status,
            result=_body(row.result_content),
        )
        for row in rows
    )


def _operations(execution_id: str, runtime_id: str, using: str) -> tuple[OperationFact, ...]:
    rows = (
        OffloadOperation.objects.using(using)
        .filter(execution=execution_id)
        .exclude(state__in=[str(OperationState.FAILED), str(OperationState.CANCELLED)])
        .select_related("runtime")
    )
    return tuple(
        OperationFact(
            operation_id=row.operation_id,
            subject_id=row.subject_id,
            kind=row.kind,
            pool=row.pool,
            state=row.state,
            attempt=row.attempt,
            claim=row.claim,
            runtime_id=row.runtime_id,
            lost=row.runtime is None
            or row.runtime_id == runtime_id
            or row.runtime.state != RuntimeState.RUNNING,
            abandoned=row.abandoned,
            started_at=row.started_at,
        )
        for row in rows
    )
