"""``on_admission`` and ``on_terminal``: application code inside B1 and B6 (DESIGN §6, HARD_POINTS 12)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from phronomy_django.agents.definition import Definition
from phronomy_django.agents.results import ExecutionResult
from phronomy_django.domain.messages import UserMessage

__all__ = ["ExecutionInfo", "admission_hook", "terminal_hook"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionInfo:
    """What a hook is told of the execution: values only."""

    agent_id: str
    execution_id: str
    input: UserMessage
    durable_context: Mapping[str, Any]


def admission_hook(definition: Definition, info: ExecutionInfo) -> Callable[[], None]:
    """``on_admission`` as a function for the writer."""
    return lambda: definition.agent_class(info.agent_id).on_admission(info)


def terminal_hook(definition: Definition, info: ExecutionInfo, result: ExecutionResult) -> Callable[[], None]:
    """``on_terminal`` as a function for the writer."""
    return lambda: definition.agent_class(info.agent_id).on_terminal(info, result)
