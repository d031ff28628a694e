from __future__ import annotations

import asyncio
import threading

import pytest

import phronomy_django.llm as room
from phronomy_django.domain.messages import LLMRequest, LLMResponse, UserMessage
from phronomy_django.llm import LLMAdapter, LLMError, SyncLLMAdapter

REQUEST = LLMRequest("m", (UserMessage.of("x"),))


class Echo(LLMAdapter):
    async def complete(self, request: LLMRequest) -> LLMResponse:
        return LLMResponse(text=request.model)


class Blocking(SyncLLMAdapter):
    thread: int | None = None

    def complete_sync(self, request: LLMRequest) -> LLMResponse:
        self.thread = threading.get_ident()
        if request.model == "down":
            raise LLMError(kind="unavailable")
        return LLMResponse(text="" if request.model == "silent" else request.model)


def test_the_room_exports_what_it_promises() -> None:
    assert set(room.__all__) == {
        "RETRYABLE",
        "LLMAdapter",
        "LLMError",
        "LLMErrorKind",
        "ModelFactory",
        "OnDelta",
        "Reply",
        "RetryPolicy",
        "ScriptedLLM",
        "SyncLLMAdapter",
        "call",
        "model_label",
        "register_model",
        "resolve_model",
        "say",
        "unregister_model",
    }
    assert all(hasattr(room, name) for name in room.__all__)


def test_an_adapter_that_cannot_stream_gives_its_text_in_one_piece() -> None:
    pieces: list[str] = []
    assert asyncio.run(Echo().stream(REQUEST, pieces.append)).text == "m"
    assert pieces == ["m"]


def test_an_adapter_has_defaults_and_can_be_closed() -> None:
    adapter = Echo()
    assert (adapter.pool, adapter.replay_safe, adapter.blocking) == ("llm", True, False)
    asyncio.run(adapter.aclose())


def test_a_blocking_adapter_runs_on_another_thread_than_the_loop() -> None:
    adapter = Blocking()
    assert adapter.blocking
    assert asyncio.run(adapter.complete(REQUEST)).text == "m"
    assert adapter.thread not in (None, threading.get_ident())
    with pytest.raises(LLMError):
        asyncio.run(adapter.complete(LLMRequest("down", ())))


def test_a_blocking_adapter_streams_on_the_thread_that_runs_it() -> None:
    pieces: list[str] = []
    assert asyncio.run(Blocking().stream(REQUEST, pieces.append)).text == "m"
    Blocking().stream_sync(LLMRequest("here", ()), pieces.append)
    Blocking().stream_sync(LLMRequest("silent", ()), pieces.append)
    assert pieces == ["m", "here"]
