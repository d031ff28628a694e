"""Reads for pool threads: frozen values out of rows, by plain ORM queries that use an index."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any

from django.db import IntegrityError, transaction

from phronomy_django.domain.errors import AgentAlreadyExistsError, AgentPurgedError, NotFoundError
from phronomy_django.domain.statuses import LifecycleStatus
from phronomy_django.models import AgentExecution, AgentRoot, Content, ExecutionEvent, JournalRecord

__all__ = [
    "ContextItem",
    "EventSnapshot",
    "ExecutionSnapshot",
    "RootSnapshot",
    "create_root",
    "find_by_idempotency_key",
    "load_content",
    "load_contents",
    "load_context",
    "load_events",
    "load_execution",
    "load_root",
    "snapshot_of",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class RootSnapshot:
    """An agent root as it was read. ``root_id`` is its key in our tables, ``agent_id`` its public identity."""

    root_id: int
    agent_id: str
    definition_id: str
    definition_version: int
    agent_revision: int
    context_revision: int
    journal_position: int
    transcript_generation: int
    lifecycle_status: str
    owner_id: str | None
    fencing_token: int
    metadata: Mapping[str, Any]
    created_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextItem:
    """One record that belongs to an agent's context, with its content's bytes."""

    sequence: int
    channel: str
    role: str
    kind: str
    execution_id: str | None
    content_id: str
    body: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionSnapshot:
    """An execution as it was read, with the bytes of its result and its error."""

    execution_id: str
    root_id: int
    agent_id: str
    definition_id: str
    definition_version: int
    execution_revision: int
    status: str
    phase: str
    iteration: int
    event_sequence: int
    terminal_reason: str
    recovery_disposition: str
    stop_kind: str
    stop_reason: str
    durable_context: Any
    deadline: datetime | None
    idempotency_key: str | None
    input_digest: str
    input_content_id: str
    result: bytes | None
    error: bytes | None
    input_tokens: int
    output_tokens: int
    cost: Decimal | None
    tool_call_count: int
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class EventSnapshot:
    sequence: int
    type: str
    payload: Any
    created_at: datetime


def snapshot_of(root: AgentRoot) -> RootSnapshot:
    return RootSnapshot(
        root_id=root.pk,
        agent_id=root.agent_id,
        definition_id=root.definition_id,
        definition_version=root.definition_version,
        agent_revision=root.agent_revision,
        context_revision=root.context_revision,
        journal_position=root.journal_position,
        transcript_generation=root.transcript_generation,
        lifecycle_status=root.lifecycle_status,
        owner_id=root.owner_id,
        fencing_token=root.fencing_token,
        metadata=root.metadata,
        created_at=root.created_at,
    )


def create_root(
    *,
    agent_id: str,
    definition_id: str,
    definition_version: int,
    created_by_id: Any = None,
    metadata: Mapping[str, Any] | None = None,
    using: str = "default",
) -> RootSnapshot:
    """A new agent without an owner, at revision 0; raises ``AgentAlreadyExistsError`` for a taken ``agent_id``.

    Inside a caller's transaction it appears with it or not at all.
    """
    try:
        with transaction.atomic(using=using):
            root = AgentRoot.objects.using(using).create(
                agent_id=agent_id,
                definition_id=definition_id,
                definition_version=definition_version,
                created_by_id=created_by_id,
                metadata=dict(metadata or {}),
            )
    except IntegrityError:
        if not AgentRoot.objects.using(using).filter(agent_id=agent_id).exists():
            raise
        raise AgentAlreadyExistsError(f"An agent {agent_id!r} already exists; load it instead.") from None
    root.refresh_from_db(fields=["created_at"])
    return snapshot_of(root)


def load_root(agent_id: str, using: str = "default") -> RootSnapshot:
    """The root of an agent; raises ``NotFoundError`` or ``AgentPurgedError``."""
    root = AgentRoot.objects.using(using).filter(agent_id=agent_id).first()
    if root is None:
        raise NotFoundError(f"There is no agent {agent_id!r}; create it first.")
    if root.lifecycle_status == LifecycleStatus.PURGED:
        raise AgentPurgedError(f"The agent {agent_id!r} was purged; its agent_id stays reserved.")
    return snapshot_of(root)


def load_context(
    root_id: int, generation: int, window: int, using: str = "default", *, until: int | None = None
) -> tuple[ContextItem, ...]:
    """What an agent's next input is made of: all its knowledge, then the newest ``window`` records of the transcript's
    ``generation``; each in the order of the journal. ``until``: as of this sequence.

    Reads through the partial index of context records alone, so it costs the same however long the journal is.
    """
    candidates = JournalRecord.objects.using(using).filter(
        agent_id=root_id, context_candidate=True, content__isnull=False
    )
    if until is not None:
        candidates = candidates.filter(sequence__lte=until)
    knowledge = candidates.filter(channel="knowledge", context_generation=0).order_by("sequence")
    newest = candidates.filter(channel="transcript", context_generation=generation).order_by("-sequence")
    records = [*knowledge.select_related("content"), *reversed(newest.select_related("content")[:window])]
    return tuple(
        ContextItem(
            sequence=record.sequence,
            channel=record.channel,
            role=record.role,
            kind=record.kind,
            execution_id=record.execution_id,
            content_id=record.content.content_id,
            body=bytes(record.content.body),
        )
        for record in records
        if record.content is not None
    )


def load_execution(execution_id: str, using: str = "default") -> ExecutionSnapshot:
    """One execution with the bytes of its result or error; raises ``NotFoundError``."""
    found = (
        AgentExecution.objects.using(using)
        .select_related("agent", "result_content", "error_content")
        .filter(pk=execution_id)
        .first()
    )
    if found is None:
        raise NotFoundError(f"There is no execution {execution_id}.")
    return _execution(found)


def find_by_idempotency_key(root_id: int, key: str, using: str = "default") -> ExecutionSnapshot | None:
    """The execution of an agent that was started with this key; its ``input_digest`` tells whether it is the same
    request."""
    found = (
        AgentExecution.objects.using(using)
        .select_related("agent", "result_content", "error_content")
        .filter(agent_id=root_id, idempotency_key=key)
        .first()
    )
    return None if found is None else _execution(found)


def _execution(found: AgentExecution) -> ExecutionSnapshot:
    return ExecutionSnapshot(
        execution_id=found.execution_id,
        root_id=found.agent_id,
        agent_id=found.agent.agent_id,
        definition_id=found.definition_id,
        definition_version=found.definition_version,
        execution_revision=found.execution_revision,
        status=found.status,
        phase=found.phase,
        iteration=found.iteration,
        event_sequence=found.event_sequence,
        terminal_reason=found.terminal_reason,
        recovery_disposition=found.recovery_disposition,
        stop_kind=found.stop_kind,
        stop_reason=found.stop_reason,
        durable_context=found.durable_context,
        deadline=found.deadline,
        idempotency_key=found.idempotency_key,
        input_digest=found.input_digest,
        input_content_id=found.input_content_id or "",
        result=_body(found.result_content),
        error=_body(found.error_content),
        input_tokens=found.input_tokens,
        output_tokens=found.output_tokens,
        cost=found.cost,
        tool_call_count=found.tool_call_count,
        created_at=found.created_at,
        started_at=found.started_at,
        finished_at=found.finished_at,
    )


def _body(content: Content | None) -> bytes | None:
    return None if content is None else bytes(content.body)


def load_content(content_id: str, using: str = "default") -> bytes:
    """The bytes of one content; raises ``NotFoundError``."""
    return load_contents([content_id], using)[content_id]


def load_contents(content_ids: Collection[str], using: str = "default") -> dict[str, bytes]:
    """The bytes of all these contents; raises ``NotFoundError`` that names the first missing one."""
    wanted = list(dict.fromkeys(content_ids))
    found: dict[str, bytes] = {}
    for start in range(0, len(wanted), 500):
        rows = Content.objects.using(using).filter(pk__in=wanted[start : start + 500])
        found.update((pk, bytes(body)) for pk, body in rows.values_list("content_id", "body"))
    for content_id in wanted:
        if content_id not in found:
            raise NotFoundError(f"There is no content {content_id}.")
    return found


def load_events(
    execution_id: str, after: int = 0, *, limit: int = 1000, using: str = "default"
) -> tuple[EventSnapshot, ...]:
    """The stored events of an execution after sequence ``after``, oldest first, at most ``limit``."""
    rows = ExecutionEvent.objects.using(using).filter(execution_id=execution_id, sequence__gt=after)
    return tuple(
        EventSnapshot(sequence=row.sequence, type=row.type, payload=row.payload, created_at=row.created_at)
        for row in rows.order_by("sequence")[:limit]
    )
