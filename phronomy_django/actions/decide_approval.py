"""Approve or reject one tool call."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

from django.core.exceptions import PermissionDenied

from phronomy_django.agents.client import resume_execution
from phronomy_django.agents.decisions import store_decision
from phronomy_django.agents.inputs import check_id
from phronomy_django.agents.registry import known_definition
from phronomy_django.conf import phronomy_settings
from phronomy_django.domain.errors import NotFoundError, PhronomyError
from phronomy_django.models import ApprovalRequest

__all__ = ["PERMISSION", "DecideApproval"]

#: Who may decide.
PERMISSION = "phronomy.decide_approval"

logger = logging.getLogger("phronomy_django.actions")


@dataclass(frozen=True, slots=True, kw_only=True)
class DecideApproval:
    """``perform`` stores the decision of ``by`` in the caller's transaction, then hints that the run may go on.

    Raises Django's ``PermissionDenied`` without ``phronomy.decide_approval``; ``NotFoundError``, ``ConflictError`` and
    ``InputError`` as ``Agent.approve`` does. A hint that fails is logged: the rows are found by the next sweep.
    """

    approval_request_id: str
    approved: bool
    reason: str = ""
    arguments_digest: str | None = None
    by: Any

    def perform(self) -> None:
        if not self.by.has_perm(PERMISSION):
            raise PermissionDenied(
                "You may not decide on tool calls; ask for the permission 'phronomy.decide_approval'."
            )
        using = phronomy_settings().database
        found = (
            ApprovalRequest.objects.using(using)
            .select_related("execution__agent")
            .filter(pk=check_id(self.approval_request_id, "approval request"))
            .first()
        )
        if found is None:
            raise NotFoundError(f"There is no approval request {self.approval_request_id}.")
        execution = found.execution
        store_decision(
            None,
            execution.agent.agent_id,
            execution.execution_id,
            approval_request_id=found.pk,
            approved=self.approved,
            edited_arguments=None,
            arguments_digest=self.arguments_digest,
            reason=self.reason,
            by=self.by,
        )
        definition = known_definition(execution.definition_id, execution.definition_version)
        if definition is None:
            return
        try:
            resume_execution(definition, execution.agent.agent_id, execution.execution_id)
        except PhronomyError as error:
            logger.info(
                "The decision on %s is stored; this process cannot go on with it: %s", found.pk, error
            )
