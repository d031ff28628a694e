"""What people decide, as compare-and-swap in the caller's own transaction (HARD_POINTS 10).

A decision binds to what was shown: to the pending request and the digest of its arguments, or to the execution's
revision and the subject's attempt. Of two that differ one wins; the same one twice is no error. Whoever moves the
agent is woken afterwards by a hint; a lost hint loses nothing, since the decision is a row.
"""

from __future__ import annotations

from typing import Any

from django.db import IntegrityError, connections, transaction
from django.db.models import Q
from django.db.models.functions import Now

from phronomy_django.domain.errors import ConflictError, InputError, NotFoundError
from phronomy_django.domain.statuses import (
    NON_TERMINAL,
    ApprovalState,
    OperationState,
    RecoveryDisposition,
    ResolutionOutcome,
)
from phronomy_django.models import (
    AgentExecution,
    ApprovalRequest,
    OffloadOperation,
    RecoveryResolution,
)

__all__ = ["decide_approval", "expire_approvals", "resolve_outcome"]

_OPEN = sorted(map(str, NON_TERMINAL))


def decide_approval(
    approval_request_id: str,
    *,
    approved: bool,
    execution_id: str | None = None,
    arguments_digest: str | None = None,
    edited_arguments: Any = None,
    reason: str = "",
    by_id: Any = None,
    using: str = "default",
) -> str:
    """Approve or reject one pending request; the ``execution_id`` that waits for it.

    Raises ``NotFoundError``; ``ConflictError`` if it was decided otherwise, has expired, was withdrawn, belongs to an
    execution that is to stop, or shows other arguments than those of ``arguments_digest``.
    """
    wanted = ApprovalState.APPROVED if approved else ApprovalState.REJECTED
    with transaction.atomic(using=using):
        requests = ApprovalRequest.objects.using(using)
        pending = requests.filter(
            Q(expires_at=None) | Q(expires_at__gt=Now()),
            pk=approval_request_id,
            state=ApprovalState.PENDING,
            execution__stop_kind="",
            execution__status__in=_OPEN,
        )
        if arguments_digest is not None:
            pending = pending.filter(arguments_digest=arguments_digest)
        if execution_id is not None:
            pending = pending.filter(execution_id=execution_id)
        # The primary key of a joined filter goes through a subquery, so the row itself is compared once more.
        changed = requests.filter(pk__in=pending.values("pk"), state=ApprovalState.PENDING).update(
            state=wanted,
            decided_by_id=by_id,
            decided_at=Now(),
            reason=reason,
            edited_arguments=edited_arguments,
        )
        found = requests.select_related("execution").filter(pk=approval_request_id).first()
        if found is None or (execution_id is not None and found.execution_id != execution_id):
            raise NotFoundError(f"There is no approval request {approval_request_id}.")
        if changed:
            return str(found.execution_id)
        same = (
            found.state == wanted
            and found.edited_arguments == edited_arguments
            and arguments_digest in (None, found.arguments_digest)
        )
        if same:
            return str(found.execution_id)
        raise ConflictError(_why_not(found, arguments_digest))


def _why_not(found: ApprovalRequest, digest: str | None) -> str:
    what = f"Approval request {found.approval_request_id}"
    if found.state != ApprovalState.PENDING:
        return f"{what} is {found.state} already; a decision is never changed."
    if found.execution.stop_kind:
        return f"{what} belongs to execution {found.execution_id}, which is to stop ({found.execution.stop_kind})."
    if digest is not None and digest != found.arguments_digest:
        return f"{what} shows other arguments than those you decided on; look at it again."
    return f"{what} has expired or its execution has ended; nothing was decided."


def expire_approvals(using: str = "default") -> list[str]:
    """Expire what is overdue by the database's clock; the executions that wait for it no more."""
    with transaction.atomic(using=using):
        due = ApprovalRequest.objects.using(using).filter(state=ApprovalState.PENDING, expires_at__lte=Now())
        executions = sorted(set(due.values_list("execution_id", flat=True)))
        if executions:
            due.update(state=ApprovalState.EXPIRED, decided_at=Now())
    return executions


def resolve_outcome(
    execution_id: str,
    *,
    expected_execution_revision: int,
    subject_id: str,
    outcome: ResolutionOutcome,
    result: Any = None,
    error: str = "",
    by_id: Any = None,
    using: str = "default",
) -> bool:
    """Say what became of a subject whose outcome nobody could know; False if the same was said before.

    Raises ``NotFoundError``; ``InputError`` for a result or an error that does not belong to ``outcome``;
    ``ConflictError`` for a stale revision, a subject that is not the current one, and another answer than the first.
    """
    _check(outcome, result, error)
    with transaction.atomic(using=using):
        executions = AgentExecution.objects.using(using).filter(pk=execution_id)
        if connections[using].vendor == "postgresql":
            executions = executions.select_for_update(no_key=True)
        execution = executions.first()
        if execution is None:
            raise NotFoundError(f"There is no execution {execution_id}.")
        attempt = _attempt_of(execution, subject_id, using)
        earlier = (
            RecoveryResolution.objects.using(using)
            .filter(execution=execution_id, subject_id=subject_id, attempt=attempt)
            .first()
        )
        if earlier is not None:
            if (earlier.outcome, earlier.result, earlier.error) == (outcome, result, error):
                return False
            raise ConflictError(
                f"Attempt {attempt} of {subject_id} was resolved as {earlier.outcome} already; that is never changed."
            )
        if execution.recovery_disposition != RecoveryDisposition.RESOLUTION_REQUIRED:
            raise ConflictError(
                f"Execution {execution_id} does not wait for a resolution; it is {execution.status}."
            )
        if execution.execution_revision != expected_execution_revision:
            raise ConflictError(
                f"Execution {execution_id} is at revision {execution.execution_revision}, not "
                f"{expected_execution_revision}: look at it again."
            )
        try:
            RecoveryResolution.objects.using(using).create(
                execution=execution,
                subject_id=subject_id,
                attempt=attempt,
                outcome=outcome,
                result=result,
                error=error,
                execution_revision=expected_execution_revision,
                resolved_by_id=by_id,
            )
        except IntegrityError:
            raise ConflictError(f"Somebody else has just resolved {subject_id}: look at it again.") from None
    return True


def _check(outcome: ResolutionOutcome, result: Any, error: str) -> None:
    needs = {
        ResolutionOutcome.SUCCEEDED: (True, False),
        ResolutionOutcome.FAILED: (False, True),
        ResolutionOutcome.NOT_PERFORMED: (False, False),
    }[outcome]
    if (result is not None) != needs[0]:
        raise InputError(f"The outcome {outcome!r} {'needs a result' if needs[0] else 'has no result'}.")
    if bool(error) != needs[1]:
        raise InputError(f"The outcome {outcome!r} {'needs an error' if needs[1] else 'has no error'}.")


def _attempt_of(execution: AgentExecution, subject_id: str, using: str) -> int:
    """The attempt of a subject that is open in this execution."""
    operation = (
        OffloadOperation.objects.using(using)
        .filter(execution=execution, subject_id=subject_id)
        .order_by("-attempt")
        .first()
    )
    if operation is None or operation.state not in (OperationState.STARTED, OperationState.UNKNOWN):
        raise ConflictError(
            f"{subject_id} is no subject of execution {execution.execution_id} whose outcome is unknown now."
        )
    return int(operation.attempt)
