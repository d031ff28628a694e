"""Whole durable runs over real HTTP against a server that speaks OpenAI's protocol, and misbehaves as real ones do.

After each: a defined end with a clear error, a complete journal, an idle agent whose next run works.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from phronomy_django.agents import Agent, ExecutionResult, StreamEvent, tool
from phronomy_django.errors import ExecutionFailedError
from phronomy_django.llm import RetryPolicy
from phronomy_django.llm.pydantic_ai import PydanticAILLM
from phronomy_django.models import AgentRoot, JournalRecord, LLMCall, OffloadOperation, ToolInvocation
from tests.agents.conftest import Define
from tests.llm.openai_server import (
    Behaviour,
    OpenAIServer,
    completion,
    cut_stream,
    hang,
    raw,
    status,
    streamed,
    tool_call,
)


@tool
def look_up(order_id: int) -> str:
    """Where an order is."""
    return f"order {order_id} is on its way"


def make(define: Define, server: OpenAIServer, **attributes: Any) -> Agent:
    attributes = {"llm_retry": RetryPolicy(max_attempts=1), "tools": [look_up], **attributes}
    cls = define(model=PydanticAILLM("openai:local", base_url=server.base_url, api_key="key"), **attributes)
    return cls.create("a")


def check(agent: Agent, server: OpenAIServer, result: ExecutionResult) -> None:
    """The rows are complete, and the next run is sent a conversation in which every call is answered."""
    root = AgentRoot.objects.get(agent_id=agent.agent_id)
    assert root.lifecycle_status == "idle"
    sequences = (
        JournalRecord.objects.filter(agent=root).order_by("sequence").values_list("sequence", flat=True)
    )
    assert list(sequences) == list(range(1, root.journal_position + 1))
    assert set(LLMCall.objects.values_list("status", flat=True)) <= {"succeeded", "failed", "cancelled"}
    assert not OffloadOperation.objects.filter(state__in=["queued", "started"]).exists()
    asked = ToolInvocation.objects.filter(execution=result.execution_id).count()
    assert JournalRecord.objects.filter(execution=result.execution_id, kind="tool_result").count() == asked
    server.then(completion("fine"))
    assert agent.invoke("next", timeout=30).output == "fine"
    calls: Counter[str] = Counter()
    for message in server.bodies[-1]["messages"]:
        calls.update(call["id"] for call in message.get("tool_calls") or ())
        if message["role"] == "tool":
            calls.subtract([message["tool_call_id"]])
    assert not +calls
    assert not -calls


def test_a_question_is_answered(define: Define, openai_server: OpenAIServer) -> None:
    agent = make(define, openai_server)
    openai_server.then(completion("Hello", usage=(21, 5)))
    result = agent.invoke("Hi", timeout=30)
    assert (result.output, result.usage.input_tokens, result.usage.output_tokens) == ("Hello", 21, 5)
    check(agent, openai_server, result)


def test_a_streamed_answer_comes_token_by_token_and_is_stored_whole(
    define: Define, openai_server: OpenAIServer
) -> None:
    agent = make(define, openai_server)
    openai_server.then(streamed("Hel", "lo, ", "world"))
    heard: list[StreamEvent] = []
    result = agent.stream("Hi", on_event=heard.append, timeout=30)
    assert [event.payload["text"] for event in heard if event.type == "token"] == ["Hel", "lo, ", "world"]
    assert result.output == "Hello, world"
    check(agent, openai_server, result)


def test_parallel_calls_run_and_go_back_in_order(define: Define, openai_server: OpenAIServer) -> None:
    agent = make(define, openai_server)
    calls = [tool_call("look_up", {"order_id": number}, f"call_{number}") for number in (3, 1, 2)]
    openai_server.then(completion(tool_calls=calls), completion("All are on their way."))
    result = agent.invoke("Where are they?", timeout=30)
    assert result.output == "All are on their way."
    sent = [message for message in openai_server.bodies[1]["messages"] if message["role"] == "tool"]
    assert [(message["tool_call_id"], message["content"]) for message in sent] == [
        (f"call_{number}", f"order {number} is on its way") for number in (3, 1, 2)
    ]
    check(agent, openai_server, result)


def test_a_call_of_a_tool_that_does_not_exist_goes_back_to_the_model(
    define: Define, openai_server: OpenAIServer
) -> None:
    agent = make(define, openai_server)
    calls = [
        tool_call("refund", {"x": 1}, "a"),
        tool_call("look_up", {"order": 7}, "b"),
        tool_call("look_up", "{", "c"),
    ]
    openai_server.then(completion(tool_calls=calls), completion("Sorry."))
    result = agent.invoke("Refund me", timeout=30)
    assert result.output == "Sorry."
    told = [
        message["content"] for message in openai_server.bodies[1]["messages"] if message["role"] == "tool"
    ]
    assert "There is no tool 'refund'" in told[0]
    assert "order_id" in told[1]
    assert "JSON" in told[2]
    check(agent, openai_server, result)


def test_too_many_requests_are_tried_again_after_the_wait_that_was_asked_for(
    define: Define, openai_server: OpenAIServer
) -> None:
    agent = make(define, openai_server, llm_retry=RetryPolicy(max_attempts=3, base=0.001, jitter=0))
    openai_server.then(status(429, retry_after="0.05"), status(500), completion("at last"))
    result = agent.invoke("Hi", timeout=30)
    assert result.output == "at last"
    row = LLMCall.objects.get(execution=result.execution_id)
    assert (row.status, row.attempts) == ("succeeded", 3)
    operation = OffloadOperation.objects.get(execution=result.execution_id)
    assert (operation.state, operation.attempt, operation.subject_id) == ("succeeded", 3, row.llm_call_id)
    check(agent, openai_server, result)


FAILURES: dict[str, tuple[Behaviour, str, dict[str, Any]]] = {
    "429": (status(429, "slow down", retry_after="9999"), "429", {}),
    "500": (status(500, "broken"), "500", {}),
    "401": (status(401, "who are you"), "401", {}),
    "malformed JSON": (raw(b'{"id": '), "", {}),
    "no choices": (completion(choices=[]), "", {}),
    "neither text nor call": (completion(""), "", {}),
    "a timeout": (hang(), "0.3 s", {"llm_timeout": 0.3}),
}


@pytest.mark.parametrize("streaming", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("failure", FAILURES)
def test_a_provider_that_fails_for_good_ends_the_run_with_a_clear_error(
    define: Define, openai_server: OpenAIServer, failure: str, streaming: bool
) -> None:
    behaviour, words, attributes = FAILURES[failure]
    agent = make(define, openai_server, **attributes)
    openai_server.then(behaviour)
    if streaming:
        result = agent.stream("Hi", on_event=lambda event: None, timeout=30)
    else:
        result = agent.invoke("Hi", timeout=30)
    assert (result.status, result.reason) == ("failed", "llm_failed")
    assert result.error is not None
    assert result.error.type == "LLMError"
    assert words in result.error.message
    assert "openai:local" in result.error.message
    with pytest.raises(ExecutionFailedError, match="llm_failed"):
        _ = result.output
    check(agent, openai_server, result)


@pytest.mark.parametrize("framing", ["chunked", "close"])
def test_a_stream_that_is_cut_is_tried_again_and_only_the_whole_answer_counts(
    define: Define, openai_server: OpenAIServer, framing: str
) -> None:
    agent = make(define, openai_server, llm_retry=RetryPolicy(max_attempts=2, base=0.001, jitter=0))
    openai_server.then(cut_stream("Hel", framing=framing), streamed("Hello"))
    result = agent.stream("Hi", on_event=lambda event: None, timeout=30)
    assert result.output == "Hello"
    assert LLMCall.objects.get(execution=result.execution_id).attempts == 2
    check(agent, openai_server, result)


def test_a_failure_in_the_middle_of_a_conversation_leaves_no_call_unanswered(
    define: Define, openai_server: OpenAIServer
) -> None:
    agent = make(define, openai_server)
    openai_server.then(completion(tool_calls=[tool_call("look_up", {"order_id": 1})]), status(500))
    result = agent.invoke("Hi", timeout=30)
    assert result.status == "failed"
    check(agent, openai_server, result)
