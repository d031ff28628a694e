"""Small scripts for models, and questions about rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from phronomy_django.domain.messages import LLMRequest, ToolMessage, UserMessage
from phronomy_django.models import (
    AgentExecution,
    AgentRoot,
    Content,
    JournalRecord,
    LLMCall,
    OffloadOperation,
)

__all__ = ["calls_then", "kinds", "nothing_is_stored", "results", "text_of"]


def calls_then(calls: Sequence[Any], last: str = "done") -> Callable[[LLMRequest], Any]:
    """Ask for ``calls`` once, then answer ``last``."""
    return lambda request: list(calls) if isinstance(request.messages[-1], UserMessage) else last


def results(request: LLMRequest) -> list[ToolMessage]:
    return [message for message in request.messages if isinstance(message, ToolMessage)]


def text_of(request: LLMRequest) -> str:
    last = request.messages[-1]
    return last.text if isinstance(last, UserMessage) else ""


def kinds(execution_id: str) -> list[str]:
    records = JournalRecord.objects.filter(execution=execution_id).order_by("sequence")
    return list(records.values_list("kind", flat=True))


def nothing_is_stored(*, roots: int = 0) -> bool:
    tables = (AgentExecution, JournalRecord, LLMCall, OffloadOperation, Content)
    return AgentRoot.objects.count() == roots and not any(table.objects.exists() for table in tables)
