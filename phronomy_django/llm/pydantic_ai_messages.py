"""Our messages as pydantic-ai's, and its answer as ours: pure functions, for ``pydantic_ai``."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from decimal import Decimal
from typing import Any, Literal

from pydantic_ai.messages import (
    BinaryContent,
    ModelMessage,
    ModelRequest,
    ModelRequestPart,
    ModelResponse,
    ModelResponsePart,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserContent,
    UserPromptPart,
)
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.output import OutputObjectDefinition
from pydantic_ai.tools import ToolDefinition

from phronomy_django.domain.canonical import storable_text
from phronomy_django.domain.messages import (
    AssistantMessage,
    File,
    Image,
    LLMRequest,
    LLMResponse,
    Part,
    Text,
    ToolCall,
    ToolMessage,
    ToolSpec,
    Usage,
    UserMessage,
)
from phronomy_django.domain.statuses import ToolInvocationStatus
from phronomy_django.llm.errors import LLMError, LLMErrorKind

__all__ = ["FinishReason", "OutputMode", "provider_messages", "request_parameters", "response_of"]

FinishReason = Literal["stop", "tool_calls", "length", "content_filter", "other"]
OutputMode = Literal["native", "prompted"]
Outcome = Literal["success", "failed", "denied"]

_FINISH: Mapping[str, FinishReason] = {
    "stop": "stop",
    "length": "length",
    "content_filter": "content_filter",
    "tool_call": "tool_calls",
}
_OUTCOMES: Mapping[str, Outcome] = {
    ToolInvocationStatus.SUCCEEDED: "success",
    ToolInvocationStatus.REJECTED: "denied",
    ToolInvocationStatus.REFUSED: "denied",
}


def provider_messages(request: LLMRequest, model: str) -> list[ModelMessage]:
    """The conversation as pydantic-ai sends it: user texts and tool results between two answers in one turn.

    Raises ``LLMError`` (bad_request) if there is nothing to send, or if the bytes of an image or a file are
    missing.
    """
    messages: list[ModelMessage] = []
    turn: list[ModelRequestPart] = []
    for message in request.messages:
        match message:
            case UserMessage():
                turn.append(UserPromptPart(_user_content(message.parts, request, model)))
            case ToolMessage():
                turn.append(_tool_return(message))
            case AssistantMessage():
                if turn:
                    messages.append(ModelRequest(parts=turn))
                    turn = []
                messages.append(ModelResponse(parts=_response_parts(message)))
    if turn:
        messages.append(ModelRequest(parts=turn))
    asked = [message for message in messages if isinstance(message, ModelRequest)]
    if not asked:
        raise LLMError(
            "the request holds no message of a user or a tool", kind=LLMErrorKind.BAD_REQUEST, model=model
        )
    asked[-1].instructions = request.instructions or None
    return messages


def _user_content(parts: Iterable[Part], request: LLMRequest, model: str) -> str | list[UserContent]:
    content: list[UserContent] = []
    for part in parts:
        match part:
            case Text():
                content.append(part.text)
            case Image() | File():
                content.append(_binary(part, request, model))
    texts = [item for item in content if isinstance(item, str)]
    return "".join(texts) if len(texts) == len(content) else content


def _binary(part: Image | File, request: LLMRequest, model: str) -> BinaryContent:
    data = request.contents.get(part.content_id, part.data)
    if data is None:
        raise LLMError(
            f"the bytes of content {part.content_id!r} are not part of the request",
            kind=LLMErrorKind.BAD_REQUEST,
            model=model,
        )
    if part.media_type.startswith("text/"):
        data = _as_utf8(data)
    name = part.name if isinstance(part, File) and part.name else None
    return BinaryContent(data, media_type=part.media_type, identifier=name)


def _as_utf8(data: bytes) -> bytes:
    try:
        data.decode()
    except UnicodeDecodeError:
        return data.decode("latin-1").encode()
    return data


def _tool_return(message: ToolMessage) -> ToolReturnPart:
    return ToolReturnPart(
        tool_name=message.name,
        content=message.content,
        tool_call_id=message.tool_call_id,
        outcome=_OUTCOMES.get(message.status, "failed"),
    )


def _response_parts(message: AssistantMessage) -> list[ModelResponsePart]:
    parts: list[ModelResponsePart] = [TextPart(message.text)] if message.text else []
    parts.extend(
        ToolCallPart(tool_name=call.name, args=call.arguments, tool_call_id=call.tool_call_id)
        for call in message.tool_calls
    )
    return parts


def request_parameters(request: LLMRequest, output_mode: OutputMode) -> ModelRequestParameters:
    """The tools and the output schema of the request."""
    parameters = ModelRequestParameters(function_tools=[_definition(tool) for tool in request.tools])
    if request.output_schema is None:
        return parameters
    schema = dict(request.output_schema)
    title = schema.get("title")
    output = OutputObjectDefinition(
        json_schema=schema,
        name=_schema_name(title) if isinstance(title, str) else None,
        description=schema.get("description"),
    )
    return replace(parameters, output_mode=output_mode, output_object=output)


def _definition(tool: ToolSpec) -> ToolDefinition:
    return ToolDefinition(
        name=tool.name, description=tool.description, parameters_json_schema=dict(tool.parameters)
    )


def _schema_name(title: str) -> str | None:
    name = "".join(character if character.isascii() and character.isalnum() else "_" for character in title)
    return name[:64] or None


def response_of(answer: ModelResponse, *, model: str, cost: Decimal | None) -> LLMResponse:
    """The provider's answer; raises ``LLMError`` if it holds neither text nor a tool call.

    Texts become storable. Arguments stay the model's own JSON text, right or wrong; none at all becomes
    ``{}``. Every tool call has an id of its own: one that the provider repeated gets a number behind it.
    """
    text = storable_text("".join(part.content for part in answer.parts if isinstance(part, TextPart)))
    calls = _tool_calls(part for part in answer.parts if isinstance(part, ToolCallPart))
    finish: FinishReason = _FINISH.get(answer.finish_reason or "stop", "other")
    if not text and not calls:
        raise _nothing(answer, finish, model)
    if calls and finish == "stop":
        finish = "tool_calls"
    return LLMResponse(
        text=text,
        tool_calls=calls,
        usage=Usage(answer.usage.input_tokens, answer.usage.output_tokens, cost),
        model=storable_text(answer.model_name or model),
        finish_reason=finish,
    )


def _nothing(answer: ModelResponse, finish: FinishReason, model: str) -> LLMError:
    if finish == "content_filter":
        refusal = (answer.provider_details or {}).get("refusal", "")
        return LLMError(str(refusal), kind=LLMErrorKind.REFUSED, model=model)
    if finish == "length":
        return LLMError(
            "the limit of output tokens was reached before any text; allow more",
            kind=LLMErrorKind.EMPTY,
            model=model,
            retryable=False,
        )
    return LLMError(kind=LLMErrorKind.EMPTY, model=model)


def _tool_calls(parts: Iterable[ToolCallPart]) -> tuple[ToolCall, ...]:
    calls: list[ToolCall] = []
    taken: set[str] = set()
    for part in parts:
        given = storable_text(part.tool_call_id)
        unique, count = given, 1
        while unique in taken:
            count += 1
            unique = f"{given}_{count}"
        taken.add(unique)
        calls.append(ToolCall(unique, storable_text(part.tool_name), _arguments(part.args)))
    return tuple(calls)


def _arguments(arguments: str | dict[str, Any] | None) -> str:
    if isinstance(arguments, str):
        return storable_text(arguments) or "{}"
    return json.dumps(arguments or {}, ensure_ascii=False)
