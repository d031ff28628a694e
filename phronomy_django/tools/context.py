"""What a running tool is told about its invocation."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from types import MappingProxyType
from typing import Any, Protocol

from phronomy_django.domain.errors import InputError

__all__ = ["CancellationSignal", "ToolContext"]


class CancellationSignal(Protocol):
    """What a context needs of the engine's cancellation token."""

    @property
    def cancelled(self) -> bool: ...

    def raise_if_cancelled(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolContext:
    """The first parameter of a tool that asks for it. Holds values only and may be kept.

    ``tool_invocation_id`` is ours and the same in every attempt; ``tool_call_id`` is the provider's;
    ``attempt`` counts from 1. ``durable_context`` is a copy that belongs to this context alone: its top level
    is read-only, and nothing changed below it reaches the execution. ``deadline`` is the execution's own, an
    aware time, or None. ``cancellation_token`` is the engine's; without one a context is never cancelled.
    """

    agent_id: str
    execution_id: str
    tool_invocation_id: str
    tool_call_id: str
    attempt: int = 1
    durable_context: Mapping[str, Any] = field(default_factory=dict)
    deadline: datetime | None = None
    cancellation_token: CancellationSignal | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.deadline is not None and self.deadline.utcoffset() is None:
            raise InputError(f"The deadline {self.deadline} has no time zone; give an aware datetime.")
        if self.attempt < 1:
            raise InputError(f"The attempt {self.attempt} is impossible: the first attempt is 1.")
        own = copy.deepcopy(dict(self.durable_context))
        object.__setattr__(self, "durable_context", MappingProxyType(own))

    @property
    def idempotency_key(self) -> str:
        """The key to give to an outside service, so that a second attempt of this invocation does nothing."""
        return self.tool_invocation_id

    @property
    def cancelled(self) -> bool:
        """Whether the execution no longer wants the result; a long tool looks at it between its steps."""
        return self.cancellation_token is not None and self.cancellation_token.cancelled

    def raise_if_cancelled(self) -> None:
        """Raise the engine's cancellation error if ``cancelled``; otherwise do nothing."""
        if self.cancellation_token is not None:
            self.cancellation_token.raise_if_cancelled()
