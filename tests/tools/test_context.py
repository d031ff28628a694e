"""What a running tool is told."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from phronomy_django.domain.errors import ExecutionCancelledError, InputError
from phronomy_django.tools import ToolContext


class Signal:
    def __init__(self) -> None:
        self.cancelled = False

    def raise_if_cancelled(self) -> None:
        if self.cancelled:
            raise ExecutionCancelledError


def context(**options: Any) -> ToolContext:
    return ToolContext(agent_id="a", execution_id="e", tool_invocation_id="inv", tool_call_id="c", **options)


def test_the_idempotency_key_is_the_invocation_in_every_attempt() -> None:
    assert context(attempt=1).idempotency_key == context(attempt=7).idempotency_key == "inv"


def test_the_durable_context_is_read_only_and_cut_off_from_its_source() -> None:
    source = {"tenant": "a", "roles": ["clerk"]}
    ctx = context(durable_context=source)

    with pytest.raises(TypeError):
        ctx.durable_context["tenant"] = "b"  # type: ignore[index]
    ctx.durable_context["roles"].append("admin")
    source["tenant"] = "c"

    assert source == {"tenant": "c", "roles": ["clerk"]}
    assert ctx.durable_context["tenant"] == "a"


def test_a_context_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        context().attempt = 2  # type: ignore[misc]


def test_cancellation_is_seen_when_it_happens() -> None:
    signal = Signal()
    ctx = context(cancellation_token=signal)

    ctx.raise_if_cancelled()
    assert not ctx.cancelled

    signal.cancelled = True
    assert ctx.cancelled
    with pytest.raises(ExecutionCancelledError):
        ctx.raise_if_cancelled()


def test_without_a_token_a_context_is_never_cancelled() -> None:
    context().raise_if_cancelled()
    assert not context().cancelled


def test_a_deadline_needs_a_time_zone() -> None:
    assert context(deadline=datetime(2030, 1, 1, tzinfo=UTC)).deadline == datetime(2030, 1, 1, tzinfo=UTC)
    with pytest.raises(InputError, match=r"2030-01-01.*time zone"):
        context(deadline=datetime(2030, 1, 1))


def test_attempts_count_from_one() -> None:
    with pytest.raises(InputError, match="attempt 0"):
        context(attempt=0)
