"""Short ways to ask a model on the loopback server, each on an event loop of its own."""

from __future__ import annotations

import asyncio
from typing import Any

from phronomy_django.domain.messages import LLMRequest, LLMResponse, UserMessage
from phronomy_django.llm.pydantic_ai import PydanticAILLM
from tests.llm.openai_server import OpenAIServer

__all__ = ["answer", "ask", "local", "stream"]


def ask(text: str = "hi", **members: Any) -> LLMRequest:
    return LLMRequest("local", (UserMessage.of(text),), timeout=20.0, **members)


def local(server: OpenAIServer, **options: Any) -> PydanticAILLM:
    return PydanticAILLM("openai:local", base_url=server.base_url, api_key="key-of-the-test", **options)


def answer(model: PydanticAILLM, request: LLMRequest) -> LLMResponse:
    return asyncio.run(model.complete(request))


def stream(model: PydanticAILLM, request: LLMRequest) -> tuple[LLMResponse, list[str]]:
    pieces: list[str] = []
    return asyncio.run(model.stream(request, pieces.append)), pieces
