"""The admin: durable records to look at, and what people decide. Thin over reads and actions."""

from phronomy_django.admin.approvals import ApprovalRequestAdmin
from phronomy_django.admin.records import (
    AgentExecutionAdmin,
    AgentRootAdmin,
    OffloadOperationAdmin,
    RecoveryResolutionAdmin,
    RuntimeInstanceAdmin,
)

__all__ = [
    "AgentExecutionAdmin",
    "AgentRootAdmin",
    "ApprovalRequestAdmin",
    "OffloadOperationAdmin",
    "RecoveryResolutionAdmin",
    "RuntimeInstanceAdmin",
]
