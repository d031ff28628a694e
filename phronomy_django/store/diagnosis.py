"""Why a work was not written: the error that says what was expected, what is there, and what to do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from phronomy_django.domain.errors import ConflictError, PhronomyError
from phronomy_django.domain.records import OperationChange, OperationStep, Transition
from phronomy_django.models import (
    AgentExecution,
    AgentRoot,
    ApprovalRequest,
    JournalRecord,
    LLMCall,
    OffloadOperation,
    ToolInvocation,
)
from phronomy_django.store.works import describe_work, root_of

__all__ = ["conflict_of", "was_committed"]

_AGAIN = "Nothing was applied: load the agent again and decide anew."


def conflict_of(work: Transition | OperationStep, using: str) -> PhronomyError | None:
    """The mismatch between ``work`` and the rows, or None if there is none: then a row was only held."""
    root = (
        AgentRoot.objects.using(using)
        .filter(pk=root_of(work))
        .values("agent_id", "owner_id", "fencing_token", "agent_revision", "journal_position")
        .first()
    )
    what = describe_work(work)
    if root is None:
        return ConflictError(f"The {what} names a root that does not exist. {_AGAIN}")
    agent = f"agent {root['agent_id']!r}"
    move = work.root if isinstance(work, Transition) else work
    if (root["owner_id"], root["fencing_token"]) != (move.owner_id, move.fencing_token):
        return ConflictError(
            f"The {what} of {agent} expects owner {move.owner_id} with fencing token {move.fencing_token}; found "
            f"owner {root['owner_id']} with token {root['fencing_token']}. Another runtime has taken the agent. "
            f"{_AGAIN}"
        )
    if isinstance(work, OperationStep):
        return _operations(work.changes, what, agent, using)
    expected = (work.root.expected_agent_revision, work.root.expected_journal_position)
    if expected != (root["agent_revision"], root["journal_position"]):
        return ConflictError(
            f"The {what} of {agent} expects revision {expected[0]} and journal position {expected[1]}; found "
            f"revision {root['agent_revision']} and position {root['journal_position']}. {_AGAIN}"
        )
    return (
        _execution(work, what, agent, using)
        or _operations(work.operation_changes, what, agent, using)
        or _approvals(work, what, agent, using)
        or _missing(LLMCall, [row.llm_call_id for row in work.llm_call_changes], what, using)
        or _missing(
            ToolInvocation, [row.tool_invocation_id for row in work.tool_invocation_changes], what, using
        )
    )


def _execution(work: Transition, what: str, agent: str, using: str) -> PhronomyError | None:
    change = work.execution_change
    if change is None:
        return None
    found = (
        AgentExecution.objects.using(using)
        .filter(pk=change.execution_id)
        .values("execution_revision", "stop_kind")
        .first()
    )
    if found is None:
        return ConflictError(
            f"The {what} of {agent} names the missing execution {change.execution_id}. {_AGAIN}"
        )
    if found["execution_revision"] != change.expected_revision:
        return ConflictError(
            f"The {what} of {agent} expects execution {change.execution_id} at revision "
            f"{change.expected_revision}; found revision {found['execution_revision']}. {_AGAIN}"
        )
    if work.requires_no_stop and found["stop_kind"]:
        return ConflictError(
            f"The {what} of {agent} requires that no stop was requested for execution {change.execution_id}; found "
            f"{found['stop_kind']!r}. Nothing was applied: stop the execution."
        )
    return None


def _operations(
    changes: Sequence[OperationChange], what: str, agent: str, using: str
) -> PhronomyError | None:
    found = {
        row["operation_id"]: (row["state"], row["attempt"], row["claim"])
        for row in OffloadOperation.objects.using(using)
        .filter(pk__in=[change.operation_id for change in changes])
        .values("operation_id", "state", "attempt", "claim")
    }
    for change in changes:
        expected = (change.expected_state, change.expected_attempt, change.expected_claim)
        if found.get(change.operation_id) != expected:
            return ConflictError(
                f"The {what} of {agent} expects operation {change.operation_id} in state, attempt and claim "
                f"{_shown(expected)}; found {_shown(found.get(change.operation_id))}. Nothing was applied: "
                "somebody else has moved the operation."
            )
    return None


def _approvals(work: Transition, what: str, agent: str, using: str) -> PhronomyError | None:
    changes = {change.approval_request_id: change for change in work.approval_changes}
    found = dict(ApprovalRequest.objects.using(using).filter(pk__in=list(changes)).values_list("pk", "state"))
    for request_id, change in changes.items():
        if found.get(request_id) != change.expected_state:
            return ConflictError(
                f"The {what} of {agent} expects approval request {request_id} to be {change.expected_state}; found "
                f"{found.get(request_id)}. Nothing was applied: somebody has decided it."
            )
    return None


def _shown(values: tuple[Any, ...] | None) -> str:
    return "no such operation" if values is None else ", ".join(str(value) for value in values)


def _missing(model: Any, ids: Sequence[str], what: str, using: str) -> PhronomyError | None:
    if ids:
        found = set(model.objects.using(using).filter(pk__in=ids).values_list("pk", flat=True))
        missing = [item for item in ids if item not in found]
        if missing:
            return ConflictError(
                f"The {what} changes {model.__name__} {missing[0]}, which does not exist. {_AGAIN}"
            )
    return None


def was_committed(work: Transition | OperationStep, using: str) -> bool:
    """Whether the rows say that ``work`` was committed. Meaningful only after an act that excludes a late
    commit, such as the same work submitted again and refused (HARD_POINTS 2)."""
    if isinstance(work, Transition):
        return JournalRecord.objects.using(using).filter(transition_id=work.transition_id).exists()
    found = {
        row["operation_id"]: (row["state"], row["attempt"], row["claim"])
        for row in OffloadOperation.objects.using(using)
        .filter(pk__in=[change.operation_id for change in work.changes])
        .values("operation_id", "state", "attempt", "claim")
    }
    return all(
        found.get(change.operation_id) == (change.state, change.attempt, change.claim)
        for change in work.changes
    )
