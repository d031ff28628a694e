"""A model that follows a script: no network, no key, the same answer for the same request."""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import json
import re
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from phronomy_django.domain.canonical import check_json, storable_text
from phronomy_django.domain.errors import ConfigurationError
from phronomy_django.domain.messages import (
    AssistantMessage,
    LLMRequest,
    LLMResponse,
    Message,
    ToolCall,
    ToolMessage,
    Usage,
    UserMessage,
)
from phronomy_django.llm.adapter import LLMAdapter, OnDelta
from phronomy_django.llm.errors import LLMError, LLMErrorKind

__all__ = ["Reply", "ScriptedLLM", "call", "say"]

Reply: TypeAlias = (
    str
    | LLMResponse
    | ToolCall
    | Sequence[str | LLMResponse | ToolCall]
    | BaseException
    | type[BaseException]
)
Function: TypeAlias = Callable[[LLMRequest], Reply | Awaitable[Reply]]
When: TypeAlias = str | re.Pattern[str] | type[Message] | Callable[[Message], bool]
Rule: TypeAlias = tuple[When, Reply | Function]

_WORDS = re.compile(r"\s*\S+\s*|\s+")
_CHARACTERS_PER_TOKEN = 4


def say(text: str) -> LLMResponse:
    """A reply of text."""
    return LLMResponse(text=text)


def call(tool: str, /, **arguments: Any) -> ToolCall:
    """A reply that calls ``tool``; raises ``SerializationError`` for an argument that JSON cannot carry.

    The ``tool_call_id`` is given by the model that uses the reply, from the request it answers.
    """
    check_json(arguments)
    return ToolCall("", tool, json.dumps(arguments, ensure_ascii=False))


class ScriptedLLM(LLMAdapter):
    """Answers from ``script``, which is one of:

    - a list of replies, consumed in order, one a call; a call beyond its end fails. The position is the
      instance's own, so a replay after a crash starts at the beginning again.
    - a function of the request (it may be ``async``). Where it is pure, a replay gives the same answer.
    - rules, see ``rules``: pure on the request as well.

    A reply is a text, an ``LLMResponse``, a ``ToolCall``, a list of these (texts are joined, calls are
    parallel), or an exception to raise. Tool calls without an id get one derived from the request, and a
    response without usage gets numbers computed from the lengths of its texts. Streams word by word.
    ``delay`` (seconds) passes before every answer; if ``request.timeout`` is shorter, the call times out.

    Safe from several threads. ``calls`` counts, ``requests`` holds the last ``keep`` requests.
    """

    def __init__(
        self,
        script: Sequence[Reply] | Function,
        *,
        name: str = "scripted",
        delay: float = 0.0,
        keep: int = 100,
    ) -> None:
        if isinstance(script, str | bytes) or not (callable(script) or isinstance(script, Sequence)):
            raise ConfigurationError(
                f"ScriptedLLM {name!r}: the script is a list of replies or a function of the request, "
                f"not a {type(script).__name__}; put a single reply into a list."
            )
        self.name = name
        self.delay = delay
        self._function: Function | None = script if callable(script) else None
        self._replies: tuple[Reply, ...] = () if callable(script) else tuple(script)
        self._lock = threading.Lock()
        self._calls = 0
        self._requests: deque[LLMRequest] = deque(maxlen=keep)

    @classmethod
    def rules(
        cls,
        rules: Sequence[Rule],
        *,
        otherwise: Reply | Function | None = None,
        name: str = "scripted",
        delay: float = 0.0,
        keep: int = 100,
    ) -> ScriptedLLM:
        """Answer by the first rule ``(when, reply)`` that matches the last message, else ``otherwise``.

        ``when`` is a text that the message contains (case does not matter), a compiled pattern that is
        found in it, a message class, or a predicate on the message. Nothing that matches is an ``LLMError``.
        A reply may be a function of the request.
        """
        known = tuple(rules)

        def answer(request: LLMRequest) -> Reply | Awaitable[Reply]:
            last = request.messages[-1] if request.messages else UserMessage(())
            for when, reply in known:
                if _matches(when, last):
                    return _evaluated(reply, request)
            if otherwise is None:
                return LLMError(
                    f"no rule of {len(known)} matches {_text_of(last)[:80]!r}; add one, or `otherwise`",
                    kind=LLMErrorKind.BAD_REQUEST,
                    model=name,
                )
            return _evaluated(otherwise, request)

        return cls(answer, name=name, delay=delay, keep=keep)

    @property
    def calls(self) -> int:
        """How many calls were made, failed ones included."""
        return self._calls

    @property
    def requests(self) -> tuple[LLMRequest, ...]:
        """The latest requests, oldest first."""
        with self._lock:
            return tuple(self._requests)

    async def complete(self, request: LLMRequest) -> LLMResponse:
        with self._lock:
            position = self._calls
            self._calls += 1
            self._requests.append(request)
        if self.delay:
            await self._wait(request)
        reply = self._reply(position, request)
        if inspect.isawaitable(reply):
            reply = await reply
        return self._response(reply, request)

    async def stream(self, request: LLMRequest, on_delta: OnDelta) -> LLMResponse:
        response = await self.complete(request)
        for word in _WORDS.findall(response.text):
            on_delta(word)
        return response

    async def _wait(self, request: LLMRequest) -> None:
        if request.timeout is not None and request.timeout < self.delay:
            await asyncio.sleep(request.timeout)
            raise LLMError(
                f"the script takes {self.delay:g} s, {request.timeout:g} s were allowed",
                kind=LLMErrorKind.TIMEOUT,
                model=self.name,
            )
        await asyncio.sleep(self.delay)

    def _reply(self, position: int, request: LLMRequest) -> Reply | Awaitable[Reply]:
        if self._function is not None:
            return self._function(request)
        if position >= len(self._replies):
            raise LLMError(
                f"the script has {len(self._replies)} replies and this is call {position + 1}",
                kind=LLMErrorKind.BAD_REQUEST,
                model=self.name,
            )
        return self._replies[position]

    def _response(self, reply: Reply, request: LLMRequest) -> LLMResponse:
        if isinstance(reply, BaseException) or (isinstance(reply, type) and issubclass(reply, BaseException)):
            raise reply
        response = _composed(reply)
        if not response.text and not response.tool_calls:
            raise LLMError(kind=LLMErrorKind.EMPTY, model=self.name)
        if any(not tool_call.tool_call_id for tool_call in response.tool_calls):
            response = replace(response, tool_calls=_identified(response.tool_calls, request))
        if response.tool_calls and response.finish_reason == "stop":
            response = replace(response, finish_reason="tool_calls")
        if response.usage == Usage():
            response = replace(response, usage=_usage(request, response))
        return replace(
            response, text=storable_text(response.text), model=response.model or request.model or self.name
        )


def _evaluated(reply: Reply | Function, request: LLMRequest) -> Reply | Awaitable[Reply]:
    if callable(reply) and not isinstance(reply, type):
        return reply(request)
    return reply


def _matches(when: When, message: Message) -> bool:
    if isinstance(when, str):
        return when.casefold() in _text_of(message).casefold()
    if isinstance(when, re.Pattern):
        return when.search(_text_of(message)) is not None
    if isinstance(when, type):
        return isinstance(message, when)
    return bool(when(message))


def _text_of(message: Message) -> str:
    match message:
        case UserMessage() | AssistantMessage():
            return message.text
        case ToolMessage():
            return message.content


def _composed(reply: Any) -> LLMResponse:
    match reply:
        case LLMResponse():
            return reply
        case str():
            return LLMResponse(text=reply)
        case ToolCall():
            return LLMResponse(tool_calls=(reply,))
        case list() | tuple():
            parts = [_composed(part) for part in reply]
            return LLMResponse(
                text="".join(part.text for part in parts),
                tool_calls=tuple(tool_call for part in parts for tool_call in part.tool_calls),
            )
        case _:
            raise ConfigurationError(
                f"A scripted reply is a text, an LLMResponse, a ToolCall, a list of these or an exception, "
                f"not a {type(reply).__name__}."
            )


def _identified(tool_calls: tuple[ToolCall, ...], request: LLMRequest) -> tuple[ToolCall, ...]:
    said = [request.model, request.instructions, [message.as_json() for message in request.messages]]
    digest = hashlib.sha256(json.dumps(said, default=str).encode())
    named: list[ToolCall] = []
    for position, tool_call in enumerate(tool_calls):
        if not tool_call.tool_call_id:
            own = digest.copy()
            own.update(f"{position}:{tool_call.name}".encode("utf-8", "backslashreplace"))
            tool_call = replace(tool_call, tool_call_id=f"call_{own.hexdigest()[:24]}")
        named.append(tool_call)
    return tuple(named)


def _usage(request: LLMRequest, response: LLMResponse) -> Usage:
    asked = len(request.instructions) + sum(
        len(_text_of(message)) + sum(len(tool_call.arguments) for tool_call in _calls_of(message))
        for message in request.messages
    )
    answered = len(response.text) + sum(
        len(tool_call.name) + len(tool_call.arguments) for tool_call in response.tool_calls
    )
    return Usage(
        input_tokens=-(-asked // _CHARACTERS_PER_TOKEN), output_tokens=-(-answered // _CHARACTERS_PER_TOKEN)
    )


def _calls_of(message: Message) -> tuple[ToolCall, ...]:
    return message.tool_calls if isinstance(message, AssistantMessage) else ()
