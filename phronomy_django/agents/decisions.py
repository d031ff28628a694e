"""The caller's side of what people decide: checked, then stored in the caller's own transaction.

A hint to go on comes after it and may be lost: the runtime that owns the agent finds the row at its next sweep.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from phronomy_django.agents.bodies import plan_call
from phronomy_django.agents.definition import Definition
from phronomy_django.agents.inputs import check_id, check_text
from phronomy_django.conf import phronomy_settings
from phronomy_django.domain.canonical import canonical_bytes
from phronomy_django.domain.errors import InputError, NotFoundError
from phronomy_django.domain.messages import ToolCall
from phronomy_django.domain.statuses import ResolutionOutcome
from phronomy_django.models import AgentExecution, ApprovalRequest
from phronomy_django.store import decide_approval, resolve_outcome

__all__ = ["store_decision", "store_resolution"]

MAX_REASON = 10_000


def store_decision(
    definition: Definition | None,
    agent_id: str,
    execution_id: str,
    *,
    approval_request_id: str,
    approved: bool,
    edited_arguments: Mapping[str, Any] | None,
    arguments_digest: str | None,
    reason: str,
    by: Any,
) -> None:
    """Check and store a decision. ``definition`` is needed for edited arguments only."""
    using = phronomy_settings().database
    execution_id = check_id(execution_id, "execution")
    approval_request_id = check_id(approval_request_id, "approval request")
    _check_reason(reason)
    if edited_arguments is not None:
        if not approved:
            raise InputError("Edited arguments belong to an approval, not to a rejection.")
        if definition is None:
            raise InputError("Arguments can be edited only where the agent's definition is known.")
        _check_edited(definition, approval_request_id, edited_arguments, using)
    _check_agent(execution_id, agent_id, using)
    decide_approval(
        approval_request_id,
        approved=approved,
        execution_id=execution_id,
        arguments_digest=arguments_digest,
        edited_arguments=None if edited_arguments is None else dict(edited_arguments),
        reason=reason,
        by_id=getattr(by, "pk", by),
        using=using,
    )


def _check_reason(reason: str) -> None:
    if not isinstance(reason, str) or len(reason) > MAX_REASON:
        raise InputError(f"A reason is text of at most {MAX_REASON} characters.")
    if reason:
        check_text(reason, "The reason", 4 * MAX_REASON)


def _check_edited(
    definition: Definition, approval_request_id: str, edited: Mapping[str, Any], using: str
) -> None:
    """Edited arguments are checked as the model's own were; raises ``InputError`` that names the field."""
    canonical_bytes(dict(edited), "edited_arguments")
    found = (
        ApprovalRequest.objects.using(using)
        .filter(pk=approval_request_id)
        .values_list("tool_invocation__tool_name", flat=True)
        .first()
    )
    if found is None:
        raise NotFoundError(f"There is no approval request {approval_request_id}.")
    plan = plan_call(definition, ToolCall("", found, json.dumps(dict(edited))))
    if isinstance(plan, str):
        raise InputError(f"The edited arguments do not fit: {plan}")


def _check_agent(execution_id: str, agent_id: str, using: str) -> None:
    owner = (
        AgentExecution.objects.using(using)
        .filter(pk=execution_id)
        .values_list("agent__agent_id", flat=True)
        .first()
    )
    if owner != agent_id:
        raise NotFoundError(f"Agent {agent_id!r} has no execution {execution_id}.")


def store_resolution(
    agent_id: str,
    execution_id: str,
    *,
    expected_execution_revision: int,
    subject: str,
    outcome: str,
    result: Any,
    error: str,
    by: Any,
) -> None:
    """Check and store what a person says of an unknown outcome."""
    using = phronomy_settings().database
    execution_id, subject = check_id(execution_id, "execution"), check_id(subject, "subject")
    try:
        word = ResolutionOutcome(outcome)
    except ValueError:
        words = ", ".join(ResolutionOutcome)
        raise InputError(f"The outcome {outcome!r} is unknown; it is one of: {words}.") from None
    if result is not None:
        canonical_bytes(result, "result")
    if error:
        check_text(error, "The error", 4 * MAX_REASON)
    _check_agent(execution_id, agent_id, using)
    resolve_outcome(
        execution_id,
        expected_execution_revision=expected_execution_revision,
        subject_id=subject,
        outcome=word,
        result=result,
        error=error,
        by_id=getattr(by, "pk", by),
        using=using,
    )
