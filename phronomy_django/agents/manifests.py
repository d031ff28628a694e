"""Manifests: the exact logical input of one provider call, frozen before the call."""

from __future__ import annotations

from collections.abc import Sequence

from phronomy_django.agents.live import LiveAgent
from phronomy_django.agents.run import ContextMessage, Run
from phronomy_django.domain.canonical import canonical_bytes, canonical_object
from phronomy_django.domain.messages import AssistantMessage, ToolMessage, UserMessage

__all__ = ["compose_instructions", "context_message", "manifest"]


def context_message(message: UserMessage | AssistantMessage | ToolMessage) -> ContextMessage:
    return ContextMessage(message, canonical_bytes(message.as_json()))


def compose_instructions(instructions: str, knowledge: Sequence[str]) -> str:
    """The instructions with the agent's knowledge below them."""
    if not knowledge:
        return instructions
    return "\n\n".join([instructions, "What you know:", *knowledge]).strip()


def manifest(live: LiveAgent, run: Run) -> bytes:
    """The exact logical input of the next provider call, canonical: what is frozen at B2."""
    members = dict(live.definition.fixed_members)
    if run.instructions is not None:
        members["instructions"] = canonical_bytes(run.instructions)
    elif run.knowledge:
        members["instructions"] = canonical_bytes(
            compose_instructions(live.definition.instructions, run.knowledge)
        )
    members["model"] = canonical_bytes(live.definition.labels[run.model_index])
    members["messages"] = b"[" + b",".join([message.body for message in run.messages]) + b"]"
    return canonical_object(members)
