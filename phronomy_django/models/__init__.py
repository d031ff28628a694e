"""The durable records (DESIGN §5), app label ``phronomy``."""

from phronomy_django.models.agents import AgentRoot, Content, JournalRecord
from phronomy_django.models.decisions import ApprovalRequest, RecoveryResolution
from phronomy_django.models.executions import (
    AgentExecution,
    ExecutionEvent,
    LLMCall,
    OffloadOperation,
    ToolInvocation,
)
from phronomy_django.models.runtime import RuntimeInstance

__all__ = [
    "AgentExecution",
    "AgentRoot",
    "ApprovalRequest",
    "Content",
    "ExecutionEvent",
    "JournalRecord",
    "LLMCall",
    "OffloadOperation",
    "RecoveryResolution",
    "RuntimeInstance",
    "ToolInvocation",
]
