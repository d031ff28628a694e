"""What people decide: approvals of tool calls, and resolutions of what a crash left unknown."""

from __future__ import annotations

from django.conf import settings
from django.db import models
from django.db.models.functions import Now
from django.utils.translation import gettext_lazy as _

from phronomy_django.domain.statuses import ApprovalState, ResolutionOutcome
from phronomy_django.models.executions import AgentExecution, ToolInvocation
from phronomy_django.models.fields import IdField, words_check

__all__ = ["ApprovalRequest", "RecoveryResolution"]


class ApprovalRequest(models.Model):
    """A tool invocation that waits for a person. A decision is bound to ``arguments_digest``: what was shown."""

    approval_request_id = IdField(_("approval request id"), primary_key=True)
    execution = models.ForeignKey(
        AgentExecution, models.CASCADE, related_name="approval_requests", verbose_name=_("execution")
    )
    tool_invocation = models.ForeignKey(
        ToolInvocation,
        models.CASCADE,
        related_name="approval_requests",
        db_index=False,
        verbose_name=_("tool invocation"),
    )
    state = models.CharField(_("state"), max_length=16)
    arguments_digest = models.CharField(_("digest of the arguments"), max_length=71)
    shown_arguments = models.JSONField(_("arguments, redacted where declared"), default=dict, blank=True)
    facts = models.JSONField(_("facts"), default=dict, blank=True)
    requested_at = models.DateTimeField(_("requested at"))
    expires_at = models.DateTimeField(_("expires at"), null=True, blank=True)
    decided_by = models.ForeignKey(
        settings.AUTH_USER_MODEL,
        models.SET_NULL,
        null=True,
        blank=True,
        related_name="+",
        db_index=False,
        verbose_name=_("decided by"),
    )
    decided_at = models.DateTimeField(_("decided at"), null=True, blank=True)
    reason = models.TextField(_("reason"), blank=True, default="", db_default="")
    edited_arguments = models.JSONField(_("arguments as edited"), null=True, blank=True)

    class Meta:
        app_label = "phronomy"
        verbose_name = _("approval request")
        verbose_name_plural = _("approval requests")
        permissions = [("decide_approval", _("Can approve and reject tool calls"))]  # noqa: RUF012
        constraints = [  # noqa: RUF012
            words_check("state", ApprovalState, "phronomy_approval_state"),
            models.UniqueConstraint(
                fields=["tool_invocation"],
                condition=models.Q(state=str(ApprovalState.PENDING)),
                name="phronomy_approval_one_pending",
            ),
        ]
        indexes = [  # noqa: RUF012
            models.Index(
                fields=["requested_at"],
                condition=models.Q(state=str(ApprovalState.PENDING)),
                name="phronomy_approval_queue",
            ),
        ]

    def __str__(self) -> str:
        return str(self.approval_request_id)


class RecoveryResolution(models.Model):
    """What a person said of an outcome that nobody could know: an audit that is never changed."""

    id = models.BigAutoField(primary_key=True)
    execution = models.ForeignKey(
        AgentExecution,
        models.CASCADE,
        related_name="resolutions",
        db_index=False,
        verbose_name=_("execution"),
    )
    subject_id = IdField(_("subject id"))
    attempt = models.PositiveIntegerField(_("attempt"))
    outcome = models.CharField(_("outcome"), max_length=16)
    result = models.JSONField(_("result"), null=True, blank=True)
    error = models.TextField(_("error"), blank=True, default="")
    execution_revision = models.BigIntegerField(_("execution revision that was shown"))
    resolved_by = models.ForeignKey(
        settings.AUTH_USER_MODEL,
        models.SET_NULL,
        null=True,
        blank=True,
        related_name="+",
        db_index=False,
        verbose_name=_("resolved by"),
    )
    resolved_at = models.DateTimeField(_("resolved at"), db_default=Now())

    class Meta:
        app_label = "phronomy"
        verbose_name = _("recovery resolution")
        verbose_name_plural = _("recovery resolutions")
        permissions = [("resolve_recovery", _("Can resolve unknown outcomes"))]  # noqa: RUF012
        constraints = [  # noqa: RUF012
            words_check("outcome", ResolutionOutcome, "phronomy_resolution_outcome"),
            models.UniqueConstraint(
                fields=["execution", "subject_id", "attempt"], name="phronomy_resolution_once"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.outcome} {self.subject_id}"
