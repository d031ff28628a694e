"""Models: the adapter's promise, the scripted model, retries, and the registry of names.

``PydanticAILLM`` lives in ``phronomy_django.llm.pydantic_ai`` (extra ``llm``) and is imported only where a
model needs it.
"""

from __future__ import annotations

from phronomy_django.llm.adapter import LLMAdapter, OnDelta, SyncLLMAdapter
from phronomy_django.llm.errors import RETRYABLE, LLMError, LLMErrorKind
from phronomy_django.llm.registry import (
    ModelFactory,
    model_label,
    register_model,
    resolve_model,
    unregister_model,
)
from phronomy_django.llm.retry import RetryPolicy
from phronomy_django.llm.scripted import Reply, ScriptedLLM, call, say

__all__ = [
    "RETRYABLE",
    "LLMAdapter",
    "LLMError",
    "LLMErrorKind",
    "ModelFactory",
    "OnDelta",
    "Reply",
    "RetryPolicy",
    "ScriptedLLM",
    "SyncLLMAdapter",
    "call",
    "model_label",
    "register_model",
    "resolve_model",
    "say",
    "unregister_model",
]
