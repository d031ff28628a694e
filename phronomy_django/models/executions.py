"""Executions and everything that belongs to one: provider calls, tool invocations, operations, events."""

from __future__ import annotations

from django.conf import settings
from django.db import models
from django.utils.translation import gettext_lazy as _

from phronomy_django.domain.statuses import (
    NON_TERMINAL,
    ExecutionPhase,
    ExecutionStatus,
    LLMCallStatus,
    OperationKind,
    OperationState,
    RecoveryDisposition,
    StopKind,
    ToolInvocationStatus,
)
from phronomy_django.models.agents import AgentRoot, Content
from phronomy_django.models.fields import IdField, words_check
from phronomy_django.models.runtime import RuntimeInstance

__all__ = ["AgentExecution", "ExecutionEvent", "LLMCall", "OffloadOperation", "ToolInvocation"]


def _content(label: object, *, null: bool = True) -> models.ForeignKey[Content | None, Content | None]:
    return models.ForeignKey(
        Content,
        models.PROTECT,
        null=null,
        blank=null,
        related_name="+",
        db_index=False,
        verbose_name=label,  # type: ignore[arg-type]
    )


class AgentExecution(models.Model):
    """One logical run of an agent. A terminal status never changes (DESIGN §5)."""

    execution_id = IdField(_("execution id"), primary_key=True)
    agent = models.ForeignKey(AgentRoot, models.CASCADE, related_name="executions", verbose_name=_("agent"))
    parent = models.ForeignKey(
        "self",
        models.PROTECT,
        null=True,
        blank=True,
        related_name="children",
        verbose_name=_("parent execution"),
    )
    definition_id = models.CharField(_("definition id"), max_length=200)
    definition_version = models.PositiveIntegerField(_("definition version"))
    execution_revision = models.BigIntegerField(_("execution revision"), default=1)
    status = models.CharField(_("status"), max_length=16)
    phase = models.CharField(_("phase"), max_length=24)
    iteration = models.PositiveIntegerField(_("iteration"), default=0)
    event_sequence = models.BigIntegerField(_("last event"), default=0)
    base_agent_revision = models.BigIntegerField(_("base agent revision"))
    base_context_revision = models.BigIntegerField(_("base context revision"))
    base_journal_position = models.BigIntegerField(_("base journal position"))
    input_content = _content(_("input"), null=False)
    result_content = _content(_("result"))
    error_content = _content(_("error"))
    terminal_reason = models.CharField(
        _("terminal reason"), max_length=200, blank=True, default="", db_default=""
    )
    recovery_disposition = models.CharField(
        _("recovery disposition"), max_length=24, blank=True, default="", db_default=""
    )
    stop_kind = models.CharField(_("stop requested"), max_length=16, blank=True, default="", db_default="")
    stop_reason = models.CharField(_("stop reason"), max_length=500, blank=True, default="", db_default="")
    stop_requested_by = models.ForeignKey(
        settings.AUTH_USER_MODEL,
        models.SET_NULL,
        null=True,
        blank=True,
        related_name="+",
        db_index=False,
        verbose_name=_("stop requested by"),
    )
    stop_requested_at = models.DateTimeField(_("stop requested at"), null=True, blank=True)
    durable_context = models.JSONField(_("durable context"), default=dict, blank=True)
    deadline = models.DateTimeField(_("deadline"), null=True, blank=True)
    idempotency_key = models.CharField(_("idempotency key"), max_length=200, null=True, blank=True)  # noqa: DJ001
    input_digest = models.CharField(_("digest of the request"), max_length=71, blank=True, default="")
    input_tokens = models.BigIntegerField(_("input tokens"), default=0, db_default=0)
    output_tokens = models.BigIntegerField(_("output tokens"), default=0, db_default=0)
    cost = models.DecimalField(_("cost"), max_digits=20, decimal_places=10, null=True, blank=True)
    tool_call_count = models.PositiveIntegerField(_("tool calls"), default=0, db_default=0)
    transition_id = IdField(_("last transition id"), null=True, blank=True)
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL,
        models.SET_NULL,
        null=True,
        blank=True,
        related_name="+",
        db_index=False,
        verbose_name=_("created by"),
    )
    created_at = models.DateTimeField(_("created at"), db_index=True)
    started_at = models.DateTimeField(_("started at"), null=True, blank=True)
    finished_at = models.DateTimeField(_("finished at"), null=True, blank=True)

    class Meta:
        app_label = "phronomy"
        verbose_name = _("execution")
        verbose_name_plural = _("executions")
        constraints = [  # noqa: RUF012
            words_check("status", ExecutionStatus, "phronomy_execution_status"),
            words_check("phase", ExecutionPhase, "phronomy_execution_phase"),
            words_check("recovery_disposition", RecoveryDisposition, "phronomy_execution_disposition"),
            models.CheckConstraint(
                condition=models.Q(stop_kind__in=["", *map(str, StopKind)]),
                name="phronomy_execution_stop_kind",
            ),
            models.UniqueConstraint(
                fields=["agent"],
                condition=models.Q(status__in=sorted(map(str, NON_TERMINAL)), parent__isnull=True),
                name="phronomy_execution_admission",
            ),
            models.UniqueConstraint(
                fields=["agent", "idempotency_key"],
                condition=models.Q(idempotency_key__isnull=False),
                name="phronomy_execution_idempotency",
            ),
        ]

    def __str__(self) -> str:
        return str(self.execution_id)


class LLMCall(models.Model):
    """One request to a model; its manifest was frozen and committed before it left."""

    llm_call_id = IdField(_("provider call id"), primary_key=True)
    execution = models.ForeignKey(
        AgentExecution, models.CASCADE, related_name="llm_calls", db_index=False, verbose_name=_("execution")
    )
    ordinal = models.PositiveIntegerField(_("ordinal"))
    manifest_content = _content(_("manifest"), null=False)
    model = models.CharField(_("model"), max_length=200)
    status = models.CharField(_("status"), max_length=16)
    attempts = models.PositiveIntegerField(_("attempts"), default=1)
    input_tokens = models.BigIntegerField(_("input tokens"), default=0, db_default=0)
    output_tokens = models.BigIntegerField(_("output tokens"), default=0, db_default=0)
    cost = models.DecimalField(_("cost"), max_digits=20, decimal_places=10, null=True, blank=True)
    outcome_content = _content(_("outcome"))
    created_at = models.DateTimeField(_("created at"))
    finished_at = models.DateTimeField(_("finished at"), null=True, blank=True)

    class Meta:
        app_label = "phronomy"
        verbose_name = _("provider call")
        verbose_name_plural = _("provider calls")
        constraints = [  # noqa: RUF012
            words_check("status", LLMCallStatus, "phronomy_llmcall_status"),
            models.UniqueConstraint(fields=["execution", "ordinal"], name="phronomy_llmcall_ordinal"),
        ]

    def __str__(self) -> str:
        return str(self.llm_call_id)


class ToolInvocation(models.Model):
    """One call of a tool: ours (``tool_invocation_id``) for one of the provider's (``tool_call_id``)."""

    tool_invocation_id = IdField(_("tool invocation id"), primary_key=True)
    execution = models.ForeignKey(
        AgentExecution, models.CASCADE, related_name="tool_invocations", verbose_name=_("execution")
    )
    llm_call = models.ForeignKey(
        LLMCall,
        models.CASCADE,
        related_name="tool_invocations",
        db_index=False,
        verbose_name=_("provider call"),
    )
    tool_call_id = models.CharField(_("the provider's call id"), max_length=200)
    position = models.PositiveIntegerField(_("position in the batch"))
    tool_name = models.CharField(_("tool"), max_length=200)
    arguments_content = _content(_("arguments"), null=False)
    status = models.CharField(_("status"), max_length=16)
    result_content = _content(_("result"))
    created_at = models.DateTimeField(_("created at"))
    finished_at = models.DateTimeField(_("finished at"), null=True, blank=True)

    class Meta:
        app_label = "phronomy"
        verbose_name = _("tool invocation")
        verbose_name_plural = _("tool invocations")
        constraints = [  # noqa: RUF012
            words_check("status", ToolInvocationStatus, "phronomy_invocation_status"),
            models.UniqueConstraint(fields=["llm_call", "position"], name="phronomy_invocation_position"),
        ]

    def __str__(self) -> str:
        return f"{self.tool_name} {self.tool_invocation_id}"


class OffloadOperation(models.Model):
    """One piece of work that may reach the outside world; ``started`` means that it may have."""

    operation_id = IdField(_("operation id"), primary_key=True)
    execution = models.ForeignKey(
        AgentExecution, models.CASCADE, related_name="operations", verbose_name=_("execution")
    )
    kind = models.CharField(_("kind"), max_length=16)
    subject_id = IdField(_("subject id"))
    pool = models.CharField(_("pool"), max_length=64)
    state = models.CharField(_("state"), max_length=16)
    attempt = models.PositiveIntegerField(_("attempt"), default=1)
    claim = IdField(_("claim"), null=True, blank=True)
    runtime = models.ForeignKey(
        RuntimeInstance,
        models.SET_NULL,
        null=True,
        blank=True,
        related_name="+",
        db_index=False,
        verbose_name=_("runtime"),
    )
    worker = models.CharField(_("worker"), max_length=255, blank=True, default="")
    request_content = _content(_("request"))
    outcome_content = _content(_("outcome"))
    abandoned = models.BooleanField(_("abandoned"), default=False, db_default=False)
    available_at = models.DateTimeField(_("available at"))
    queued_at = models.DateTimeField(_("queued at"))
    started_at = models.DateTimeField(_("started at"), null=True, blank=True)
    heartbeat_at = models.DateTimeField(_("last heartbeat"), null=True, blank=True)
    finished_at = models.DateTimeField(_("finished at"), null=True, blank=True)

    class Meta:
        app_label = "phronomy"
        verbose_name = _("operation")
        verbose_name_plural = _("operations")
        constraints = [  # noqa: RUF012
            words_check("kind", OperationKind, "phronomy_operation_kind"),
            words_check("state", OperationState, "phronomy_operation_state"),
        ]
        indexes = [  # noqa: RUF012
            models.Index(
                fields=["state", "available_at"],
                condition=models.Q(state__in=[str(OperationState.QUEUED), str(OperationState.STARTED)]),
                name="phronomy_operation_open",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.kind} {self.operation_id}"


class ExecutionEvent(models.Model):
    """What a caller may follow, resumable by ``sequence``."""

    id = models.BigAutoField(primary_key=True)
    execution = models.ForeignKey(
        AgentExecution, models.CASCADE, related_name="events", db_index=False, verbose_name=_("execution")
    )
    sequence = models.BigIntegerField(_("sequence"))
    type = models.CharField(_("type"), max_length=40)
    payload = models.JSONField(_("payload"), default=dict, blank=True)
    created_at = models.DateTimeField(_("created at"))

    class Meta:
        app_label = "phronomy"
        verbose_name = _("execution event")
        verbose_name_plural = _("execution events")
        ordering = ("execution", "sequence")
        constraints = [  # noqa: RUF012
            models.UniqueConstraint(fields=["execution", "sequence"], name="phronomy_event_sequence"),
        ]

    def __str__(self) -> str:
        return f"{self.sequence} {self.type}"
