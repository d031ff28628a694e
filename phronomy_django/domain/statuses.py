"""The status words of DESIGN §5 and the legal moves between them."""

from __future__ import annotations

from enum import StrEnum

__all__ = [
    "LEGAL_MOVES",
    "NON_TERMINAL",
    "TERMINAL",
    "ApprovalState",
    "ExecutionPhase",
    "ExecutionStatus",
    "LLMCallStatus",
    "LifecycleStatus",
    "OperationKind",
    "OperationState",
    "RecoveryDisposition",
    "ResolutionOutcome",
    "RuntimeState",
    "StopKind",
    "ToolInvocationStatus",
    "is_legal_move",
]


class LifecycleStatus(StrEnum):
    """Where an agent root is in its life. ``busy`` means: a non-terminal top-level execution exists."""

    IDLE = "idle"
    BUSY = "busy"
    PURGED = "purged"


class ExecutionStatus(StrEnum):
    PREPARING = "preparing"
    ACTIVE = "active"
    SUSPENDED = "suspended"
    COMPLETED = "completed"
    HANDED_OFF = "handed_off"
    FAILED = "failed"
    CANCELLED = "cancelled"
    REJECTED = "rejected"
    BLOCKED = "blocked"


class ExecutionPhase(StrEnum):
    """What an execution is doing; with the status it tells recovery where to look."""

    PREPARING = "preparing"
    CALLING_LLM = "calling_llm"
    RUNNING_TOOLS = "running_tools"
    AWAITING_APPROVAL = "awaiting_approval"
    STOPPING = "stopping"
    ENDED = "ended"


class LLMCallStatus(StrEnum):
    DISPATCHED = "dispatched"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    UNKNOWN = "unknown"


class ToolInvocationStatus(StrEnum):
    PLANNED = "planned"
    DISPATCHED = "dispatched"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    REFUSED = "refused"
    REJECTED = "rejected"
    CANCELLED = "cancelled"
    TIMED_OUT = "timed_out"
    NOT_PERFORMED = "not_performed"
    UNKNOWN = "unknown"


class OperationKind(StrEnum):
    LLM_CALL = "llm_call"
    TOOL = "tool"


class OperationState(StrEnum):
    QUEUED = "queued"
    STARTED = "started"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    UNKNOWN = "unknown"


class StopKind(StrEnum):
    """Why an execution was told to stop (HARD_POINTS 9)."""

    CANCEL = "cancel"
    DEADLINE = "deadline"
    LIMIT = "limit"


class RecoveryDisposition(StrEnum):
    NONE = ""
    RESUMABLE = "resumable"
    RECONCILABLE = "reconcilable"
    RESOLUTION_REQUIRED = "resolution_required"


class ApprovalState(StrEnum):
    PENDING = "pending"
    APPROVED = "approved"
    REJECTED = "rejected"
    EXPIRED = "expired"
    WITHDRAWN = "withdrawn"


class ResolutionOutcome(StrEnum):
    """What a person may say of an unknown outcome; ``not_performed`` lets the operation run, once."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    NOT_PERFORMED = "not_performed"


class RuntimeState(StrEnum):
    RUNNING = "running"
    STOPPED = "stopped"
    LOST = "lost"


NON_TERMINAL = frozenset({ExecutionStatus.PREPARING, ExecutionStatus.ACTIVE, ExecutionStatus.SUSPENDED})
TERMINAL = frozenset(ExecutionStatus) - NON_TERMINAL

LEGAL_MOVES: dict[ExecutionStatus, frozenset[ExecutionStatus]] = {
    ExecutionStatus.PREPARING: frozenset(
        {
            ExecutionStatus.PREPARING,
            ExecutionStatus.ACTIVE,
            ExecutionStatus.FAILED,
            ExecutionStatus.CANCELLED,
            ExecutionStatus.BLOCKED,
        }
    ),
    ExecutionStatus.ACTIVE: frozenset(ExecutionStatus) - {ExecutionStatus.PREPARING},
    ExecutionStatus.SUSPENDED: frozenset(
        {
            ExecutionStatus.SUSPENDED,
            ExecutionStatus.ACTIVE,
            ExecutionStatus.FAILED,
            ExecutionStatus.CANCELLED,
            ExecutionStatus.REJECTED,
            ExecutionStatus.BLOCKED,
        }
    ),
}


def is_legal_move(current: ExecutionStatus, following: ExecutionStatus) -> bool:
    """Whether an execution may go from ``current`` to ``following``; nothing leaves a terminal status."""
    return following in LEGAL_MOVES.get(current, frozenset())
