"""How the installation is, in one value: read from rows and settings, starting nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from django.db.models import Count, Exists, OuterRef
from django.db.models.functions import Now

from phronomy_django.conf import phronomy_settings
from phronomy_django.domain.statuses import (
    NON_TERMINAL,
    ApprovalState,
    ExecutionStatus,
    RecoveryDisposition,
    RuntimeState,
)
from phronomy_django.models import AgentExecution, ApprovalRequest, RuntimeInstance

__all__ = ["Health", "check_health"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """``problems`` are sentences for an operator; healthy means that there are none.

    ``waiting_for_people`` is work for people, no problem of the installation.
    """

    executions: Mapping[str, int]
    waiting_for_people: Mapping[str, int]
    runtimes: list[dict[str, Any]]
    problems: list[str] = field(default_factory=list)

    @property
    def healthy(self) -> bool:
        return not self.problems

    def as_json(self) -> dict[str, Any]:
        return {
            "healthy": self.healthy,
            "problems": self.problems,
            "executions": dict(self.executions),
            "waiting_for_people": dict(self.waiting_for_people),
            "runtimes": self.runtimes,
        }


def check_health() -> Health:
    """Read the rows; a handful of queries by index, however many executions have ended."""
    settings = phronomy_settings()
    using = settings.database
    open_ = AgentExecution.objects.using(using).filter(status__in=sorted(map(str, NON_TERMINAL)))
    executions = {
        row["status"]: row["n"] for row in open_.values("status").annotate(n=Count("pk")).order_by()
    }
    waiting = {
        "approvals": ApprovalRequest.objects.using(using).filter(state=ApprovalState.PENDING).count(),
        "resolutions": open_.filter(recovery_disposition=RecoveryDisposition.RESOLUTION_REQUIRED).count(),
    }
    running = RuntimeInstance.objects.using(using).filter(state=RuntimeState.RUNNING)
    silent = set(
        running.filter(heartbeat_at__lt=Now() - timedelta(seconds=settings.lease_seconds)).values_list(
            "pk", flat=True
        )
    )
    runtimes = [
        {
            "runtime_id": row.runtime_id,
            "host": row.host,
            "pid": row.pid,
            "heartbeat_at": row.heartbeat_at.isoformat(),
            "silent": row.pk in silent,
        }
        for row in running.order_by("started_at")
    ]
    problems = [
        f"Runtime {row['host']}/{row['pid']} has been silent since {row['heartbeat_at']}; its agents wait for another one."
        for row in runtimes
        if row["silent"]
    ]
    alive = running.exclude(pk__in=silent).filter(pk=OuterRef("agent__owner_id"))
    orphaned = (
        open_.exclude(recovery_disposition=RecoveryDisposition.RESOLUTION_REQUIRED)
        .exclude(status=ExecutionStatus.SUSPENDED)
        .exclude(Exists(alive))
        .count()
    )
    if orphaned:
        problems.append(
            f"{orphaned} unfinished executions belong to no runtime that lives. Start the site, or: "
            "manage.py phronomy_recover run."
        )
    return Health(executions=executions, waiting_for_people=waiting, runtimes=runtimes, problems=problems)
