"""The names that users may import: pinned, so that none appears or goes by accident (STYLE, rule 2)."""

from __future__ import annotations

import importlib

import pytest

PUBLIC = {
    "phronomy_django.agents": {
        "Agent", "ExecutionInfo", "ExecutionResult", "ExecutionTask", "File", "Image", "Preparation", "Reservation",
        "StreamEvent", "Text", "ToolContext", "ToolError", "ToolProposal", "ToolRetry", "UsageLimits", "register", "tool",
    },
    "phronomy_django.llm": {
        "LLMAdapter", "LLMError", "LLMErrorKind", "ModelFactory", "OnDelta", "RETRYABLE", "Reply", "RetryPolicy",
        "ScriptedLLM", "SyncLLMAdapter", "call", "model_label", "register_model", "resolve_model", "say",
        "unregister_model",
    },
    "phronomy_django.models": {
        "AgentExecution", "AgentRoot", "ApprovalRequest", "Content", "ExecutionEvent", "JournalRecord", "LLMCall",
        "OffloadOperation", "RecoveryResolution", "RuntimeInstance", "ToolInvocation",
    },
    "phronomy_django.signals": {"approval_requested", "execution_finished", "recovery_required"},
}  # fmt: skip


@pytest.mark.parametrize("module", sorted(PUBLIC))
def test_the_public_names_are_these_and_each_can_be_imported(module: str) -> None:
    found = importlib.import_module(module)
    assert set(found.__all__) == PUBLIC[module]
    assert all(hasattr(found, name) for name in PUBLIC[module])


def test_every_error_is_one_of_ours_and_says_what_it_means_without_words() -> None:
    from phronomy_django import errors

    for name in errors.__all__:
        kind = getattr(errors, name)
        assert issubclass(kind, errors.PhronomyError), name
        assert kind.__doc__, name
        assert str(kind()), name
