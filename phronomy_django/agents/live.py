"""A live agent: what the loop keeps in memory of one root while this runtime owns it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from phronomy_django.agents.run import ContextMessage
from phronomy_django.domain.messages import UserMessage

if TYPE_CHECKING:
    from phronomy_django.agents.definition import Definition

__all__ = ["LiveAgent", "Position", "window"]


class Position(NamedTuple):
    """Where a root stands in its rows; every transition names the one that it starts from."""

    agent_revision: int
    context_revision: int
    journal_position: int
    transcript_generation: int
    lifecycle_status: str


@dataclass(slots=True)
class LiveAgent:
    """Loop thread only. ``position`` and ``context`` change when a commit was answered, never before."""

    root_id: int
    agent_id: str
    definition: Definition
    fencing_token: int
    position: Position
    context: tuple[ContextMessage, ...] = ()
    knowledge: tuple[str, ...] = ()


def window(messages: tuple[ContextMessage, ...], limit: int) -> tuple[ContextMessage, ...]:
    """The newest messages, at most ``limit``, beginning with a user's: no tool answer without its question."""
    if len(messages) <= limit and (not messages or isinstance(messages[0].message, UserMessage)):
        return messages
    start = max(0, len(messages) - limit)
    while start < len(messages) and not isinstance(messages[start].message, UserMessage):
        start += 1
    return messages[start:]
