"""The values that travel between an agent, a model and its tools.

All are frozen and carry no live object. ``as_json`` gives the shape that is hashed and stored;
``*_from_json`` reads it back. Bytes never sit inside a message: an ``Image`` or ``File`` names its content.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Literal, TypeAlias

__all__ = [
    "AssistantMessage",
    "File",
    "Image",
    "LLMRequest",
    "LLMResponse",
    "Message",
    "Part",
    "Text",
    "ToolCall",
    "ToolMessage",
    "ToolSpec",
    "Usage",
    "UserMessage",
    "message_from_json",
    "tool_call_from_json",
]

Json: TypeAlias = Any


@dataclass(frozen=True, slots=True)
class Text:
    """A piece of text."""

    text: str

    def as_json(self) -> dict[str, Json]:
        return {"type": "text", "text": self.text}


@dataclass(frozen=True, slots=True)
class Image:
    """A picture: its bytes (given by the caller) or, once stored, the ``content_id`` that names them."""

    data: bytes | None = field(default=None, repr=False)
    media_type: str = "image/png"
    content_id: str = ""

    def as_json(self) -> dict[str, Json]:
        return {"type": "image", "media_type": self.media_type, "content_id": self.content_id}


@dataclass(frozen=True, slots=True)
class File:
    """A document: its bytes (given by the caller) or, once stored, the ``content_id`` that names them."""

    data: bytes | None = field(default=None, repr=False)
    media_type: str = "application/octet-stream"
    name: str = ""
    content_id: str = ""

    def as_json(self) -> dict[str, Json]:
        return {
            "type": "file",
            "media_type": self.media_type,
            "name": self.name,
            "content_id": self.content_id,
        }


Part: TypeAlias = Text | Image | File


@dataclass(frozen=True, slots=True)
class ToolCall:
    """What a model asked for. ``arguments`` is the model's own JSON text, unparsed: it may be wrong."""

    tool_call_id: str
    name: str
    arguments: str = "{}"

    def as_json(self) -> dict[str, Json]:
        return {"tool_call_id": self.tool_call_id, "name": self.name, "arguments": self.arguments}


@dataclass(frozen=True, slots=True)
class UserMessage:
    parts: tuple[Part, ...]

    @classmethod
    def of(cls, text: str) -> UserMessage:
        return cls((Text(text),))

    @property
    def text(self) -> str:
        return "".join(part.text for part in self.parts if isinstance(part, Text))

    def as_json(self) -> dict[str, Json]:
        return {"role": "user", "parts": [part.as_json() for part in self.parts]}


@dataclass(frozen=True, slots=True)
class AssistantMessage:
    text: str = ""
    tool_calls: tuple[ToolCall, ...] = ()

    def as_json(self) -> dict[str, Json]:
        return {
            "role": "assistant",
            "text": self.text,
            "tool_calls": [call.as_json() for call in self.tool_calls],
        }


@dataclass(frozen=True, slots=True)
class ToolMessage:
    """The one answer to one ``tool_call_id``. ``status`` is a word of ``ToolInvocationStatus``."""

    tool_call_id: str
    name: str
    content: str
    status: str = "succeeded"

    @property
    def is_error(self) -> bool:
        return self.status != "succeeded"

    def as_json(self) -> dict[str, Json]:
        return {
            "role": "tool",
            "tool_call_id": self.tool_call_id,
            "name": self.name,
            "content": self.content,
            "status": self.status,
        }


Message: TypeAlias = UserMessage | AssistantMessage | ToolMessage


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool as a model sees it; ``parameters`` is a JSON schema of type object."""

    name: str
    description: str
    parameters: Mapping[str, Json]

    def as_json(self) -> dict[str, Json]:
        return {"name": self.name, "description": self.description, "parameters": self.parameters}


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one provider call (or a sum of them); ``cost`` in the site's currency, None if unknown."""

    input_tokens: int = 0
    output_tokens: int = 0
    cost: Decimal | None = None

    @property
    def total_tokens(self) -> int:
        return self.input_tokens + self.output_tokens

    def __add__(self, other: Usage) -> Usage:
        cost = (
            self.cost if other.cost is None else other.cost if self.cost is None else self.cost + other.cost
        )
        return Usage(self.input_tokens + other.input_tokens, self.output_tokens + other.output_tokens, cost)

    def as_json(self) -> dict[str, Json]:
        return {
            "input_tokens": self.input_tokens,
            "output_tokens": self.output_tokens,
            "cost": None if self.cost is None else str(self.cost),
        }


@dataclass(frozen=True, slots=True)
class LLMRequest:
    """The exact logical input of one provider call, as rebuilt from its manifest.

    ``model`` is the provider's own name of the model (``"gpt-5"``); the adapter was chosen before.
    ``output_schema`` is a JSON schema when the agent wants a structured answer, which then comes back as
    JSON text in ``LLMResponse.text``. ``contents`` maps the ``content_id`` of images and files to their
    bytes. ``settings`` are the provider's knobs (temperature, max_tokens, ...).
    """

    model: str
    messages: tuple[Message, ...]
    instructions: str = ""
    tools: tuple[ToolSpec, ...] = ()
    output_schema: Mapping[str, Json] | None = None
    settings: Mapping[str, Json] = field(default_factory=dict)
    contents: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    timeout: float | None = None


@dataclass(frozen=True, slots=True)
class LLMResponse:
    """What a provider answered: text, tool calls, or both, never neither."""

    text: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    usage: Usage = field(default_factory=Usage)
    model: str = ""
    finish_reason: Literal["stop", "tool_calls", "length", "content_filter", "other"] = "stop"

    def as_json(self) -> dict[str, Json]:
        return {
            "text": self.text,
            "tool_calls": [call.as_json() for call in self.tool_calls],
            "usage": self.usage.as_json(),
            "model": self.model,
            "finish_reason": self.finish_reason,
        }


def _part_from_json(value: Mapping[str, Json]) -> Part:
    match value["type"]:
        case "text":
            return Text(value["text"])
        case "image":
            return Image(media_type=value["media_type"], content_id=value["content_id"])
        case "file":
            return File(media_type=value["media_type"], name=value["name"], content_id=value["content_id"])
        case other:
            raise ValueError(f"unknown part type {other!r}")


def tool_call_from_json(value: Mapping[str, Json]) -> ToolCall:
    return ToolCall(value["tool_call_id"], value["name"], value["arguments"])


def message_from_json(value: Mapping[str, Json]) -> Message:
    """Read back what ``as_json`` gave; raises ``ValueError`` for a role that this version does not know."""
    match value["role"]:
        case "user":
            return UserMessage(tuple(_part_from_json(part) for part in value["parts"]))
        case "assistant":
            return AssistantMessage(
                value["text"], tuple(tool_call_from_json(call) for call in value["tool_calls"])
            )
        case "tool":
            return ToolMessage(value["tool_call_id"], value["name"], value["content"], value["status"])
        case other:
            raise ValueError(f"unknown message role {other!r}")
