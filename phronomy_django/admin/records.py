"""Agents, executions, operations, runtimes, resolutions: to look at."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.html import format_html_join
from django.utils.translation import gettext_lazy as _

from phronomy_django.admin.readonly import ReadOnlyAdmin, pretty
from phronomy_django.models import (
    AgentExecution,
    AgentRoot,
    JournalRecord,
    OffloadOperation,
    RecoveryResolution,
    RuntimeInstance,
)

__all__ = [
    "AgentExecutionAdmin",
    "AgentRootAdmin",
    "OffloadOperationAdmin",
    "RecoveryResolutionAdmin",
    "RuntimeInstanceAdmin",
]

TIMELINE_ROWS = 500


@admin.register(AgentRoot)
class AgentRootAdmin(ReadOnlyAdmin):
    list_display = ("agent_id", "definition_id", "lifecycle_status", "journal_position", "created_at")
    list_filter = ("lifecycle_status",)
    search_fields = ("agent_id__exact", "definition_id__exact")
    ordering = ("-created_at",)


@admin.register(AgentExecution)
class AgentExecutionAdmin(ReadOnlyAdmin):
    list_display = (
        "execution_id",
        "agent",
        "status",
        "phase",
        "recovery_disposition",
        "created_at",
        "finished_at",
    )
    list_filter = ("status", "recovery_disposition")
    list_select_related = ("agent",)
    search_fields = ("execution_id__exact", "agent__agent_id__exact")
    ordering = ("-created_at",)
    readonly_fields = ("answer", "failure", "timeline")
    exclude = ("result_content", "error_content", "input_content", "transition_id")

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        return super().get_queryset(request).select_related("agent")

    @admin.display(description=_("answer"))
    def answer(self, obj: AgentExecution) -> str:
        return "—" if obj.result_content is None else pretty(bytes(obj.result_content.body).decode())

    @admin.display(description=_("error"))
    def failure(self, obj: AgentExecution) -> str:
        return "—" if obj.error_content is None else pretty(bytes(obj.error_content.body).decode())

    @admin.display(description=_("timeline"))
    def timeline(self, obj: AgentExecution) -> str:
        """The journal of the execution, oldest first, with what each record says."""
        records = (
            JournalRecord.objects.filter(execution=obj)
            .select_related("content")
            .order_by("sequence")[:TIMELINE_ROWS]
        )
        return format_html_join(
            "",
            "<p><strong>{}</strong> {} {}</p>{}",
            (
                (
                    record.sequence,
                    record.created_at.isoformat(sep=" ", timespec="milliseconds"),
                    record.kind,
                    pretty(
                        bytes(record.content.body).decode(errors="replace")
                        if record.content is not None
                        else record.data
                    ),
                )
                for record in records
            ),
        )


@admin.register(OffloadOperation)
class OffloadOperationAdmin(ReadOnlyAdmin):
    list_display = (
        "operation_id",
        "kind",
        "pool",
        "state",
        "attempt",
        "runtime",
        "queued_at",
        "started_at",
        "abandoned",
    )
    list_filter = ("state", "kind")
    list_select_related = ("runtime",)
    search_fields = ("operation_id__exact", "subject_id__exact", "execution__execution_id__exact")
    ordering = ("-queued_at",)
    exclude = ("request_content", "outcome_content")


@admin.register(RuntimeInstance)
class RuntimeInstanceAdmin(ReadOnlyAdmin):
    list_display = ("runtime_id", "host", "pid", "state", "heartbeat_at", "started_at", "stopped_at")
    list_filter = ("state",)
    ordering = ("-started_at",)


@admin.register(RecoveryResolution)
class RecoveryResolutionAdmin(ReadOnlyAdmin):
    list_display = ("execution", "subject_id", "attempt", "outcome", "resolved_by", "resolved_at")
    list_filter = ("outcome",)
    list_select_related = ("execution", "resolved_by")
    search_fields = ("execution__execution_id__exact", "subject_id__exact")
    ordering = ("-resolved_at",)
