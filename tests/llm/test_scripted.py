from __future__ import annotations

import asyncio
import json
import re
from concurrent.futures import ThreadPoolExecutor

import pytest

from phronomy_django.domain.errors import ConfigurationError, SerializationError
from phronomy_django.domain.messages import (
    AssistantMessage,
    LLMRequest,
    LLMResponse,
    ToolCall,
    ToolMessage,
    Usage,
    UserMessage,
)
from phronomy_django.llm import LLMError, ScriptedLLM, call, say


def ask(*texts: str, timeout: float | None = None) -> LLMRequest:
    return LLMRequest("m", tuple(UserMessage.of(text) for text in texts), timeout=timeout)


def answer(model: ScriptedLLM, request: LLMRequest) -> LLMResponse:
    return asyncio.run(model.complete(request))


def test_a_list_is_consumed_in_order_and_its_end_is_an_error() -> None:
    model = ScriptedLLM(["one", say("two"), LLMResponse("three")])
    assert [answer(model, ask("x")).text for _ in range(3)] == ["one", "two", "three"]
    with pytest.raises(LLMError, match="3 replies and this is call 4") as caught:
        answer(model, ask("x"))
    assert not caught.value.retryable
    assert model.calls == 4


def test_an_exception_in_the_list_is_raised() -> None:
    model = ScriptedLLM([LLMError(kind="rate_limited", retry_after=1.0), RuntimeError, "fine"])
    with pytest.raises(LLMError):
        answer(model, ask("x"))
    with pytest.raises(RuntimeError):
        answer(model, ask("x"))
    assert answer(model, ask("x")).text == "fine"


def test_a_reply_may_be_several_calls_with_a_text() -> None:
    response = answer(ScriptedLLM([[say("Looking. "), "Both.", call("a", x=1), call("b")]]), ask("x"))
    assert response.text == "Looking. Both."
    assert [(made.name, made.arguments) for made in response.tool_calls] == [("a", '{"x": 1}'), ("b", "{}")]
    assert response.finish_reason == "tool_calls"


def test_call_takes_any_argument_name_and_refuses_what_json_cannot_carry() -> None:
    assert json.loads(call("t", tool="x", name="y").arguments) == {"tool": "x", "name": "y"}
    with pytest.raises(SerializationError, match=r"\$\.when"):
        call("t", when=object())


def test_ids_of_calls_follow_from_the_request_alone() -> None:
    def first(*texts: str) -> list[str]:
        response = answer(ScriptedLLM([[call("a"), call("a")]]), ask(*texts))
        return [made.tool_call_id for made in response.tool_calls]

    assert first("x") == first("x")
    assert len({*first("x"), *first("x", "y"), *first("z")}) == 6


def test_an_id_that_the_script_gives_is_kept() -> None:
    assert answer(ScriptedLLM([ToolCall("mine", "a")]), ask("x")).tool_calls[0].tool_call_id == "mine"


def test_a_function_sees_the_request_and_a_replay_gives_the_same() -> None:
    model = ScriptedLLM(lambda request: call("echo", text=request.messages[-1].text))  # type: ignore[union-attr]
    assert answer(model, ask("x")) == answer(model, ask("x"))
    assert answer(model, ask("y")).tool_calls[0].arguments == '{"text": "y"}'


def test_a_function_may_be_asynchronous() -> None:
    async def reply(request: LLMRequest) -> str:
        await asyncio.sleep(0)
        return request.model

    assert answer(ScriptedLLM(reply), ask("x")).text == "m"


def test_the_first_rule_that_matches_the_last_message_answers() -> None:
    model = ScriptedLLM.rules(
        [
            ("REFUND", call("refund", order=7)),
            (re.compile(r"order (\d+)"), lambda request: f"seen {len(request.messages)}"),
            (ToolMessage, "done"),
            (lambda message: message.text == "?", say("!")),
        ],
        otherwise="pardon",
    )
    assert answer(model, ask("a refund, order 7")).tool_calls[0].name == "refund"
    assert answer(model, ask("x", "order 7")).text == "seen 2"
    tool_result = LLMRequest("m", (UserMessage.of("refund"), ToolMessage("c", "refund", "ok")))
    assert answer(model, tool_result).text == "done"
    assert answer(model, ask("?")).text == "!"
    assert answer(model, ask("else")).text == "pardon"


def test_no_rule_and_no_otherwise_is_an_error_that_shows_the_message() -> None:
    with pytest.raises(LLMError, match="no rule of 1 matches 'bye'"):
        answer(ScriptedLLM.rules([("hi", "hello")]), ask("bye"))


def test_an_empty_reply_is_an_error_as_with_any_model() -> None:
    with pytest.raises(LLMError) as caught:
        answer(ScriptedLLM([""]), ask("x"))
    assert caught.value.kind == "empty"


def test_usage_follows_from_the_lengths_of_the_texts() -> None:
    request = LLMRequest(
        "m", (UserMessage.of("x" * 40), AssistantMessage("y" * 4, (ToolCall("c", "t", "{}"),))), "z" * 10
    )
    response = answer(ScriptedLLM(["four"]), request)
    assert response.usage == Usage(input_tokens=14, output_tokens=1)
    given = LLMResponse("text", usage=Usage(1, 2))
    assert answer(ScriptedLLM([given]), request).usage == Usage(1, 2)


@pytest.mark.parametrize("text", ["one two  three\n", "  lead", "word", " ", "a\x00b c"])
def test_a_stream_is_words_that_join_to_the_text(text: str) -> None:
    pieces: list[str] = []
    response = asyncio.run(ScriptedLLM([text]).stream(ask("x"), pieces.append))
    assert "".join(pieces) == response.text
    assert len(pieces) == max(1, len(response.text.split()))
    assert "\x00" not in response.text


def test_a_delay_longer_than_the_timeout_is_a_timeout() -> None:
    model = ScriptedLLM(["late"], delay=0.01)
    with pytest.raises(LLMError) as caught:
        answer(model, ask("x", timeout=0.0))
    assert caught.value.kind == "timeout"
    assert answer(ScriptedLLM(["slow"], delay=0.01), ask("x", timeout=5.0)).text == "slow"


def test_only_the_last_requests_are_kept() -> None:
    model = ScriptedLLM(lambda request: "ok", keep=2)
    for text in "abc":
        answer(model, ask(text))
    assert [request.messages for request in model.requests] == [ask("b").messages, ask("c").messages]
    assert model.calls == 3


def test_threads_take_each_reply_once() -> None:
    model = ScriptedLLM([str(number) for number in range(200)])
    with ThreadPoolExecutor(8) as pool:
        texts = list(pool.map(lambda _: answer(model, ask("x")).text, range(200)))
    assert sorted(texts, key=int) == [str(number) for number in range(200)]


@pytest.mark.parametrize("script", ["one", b"x", 5])
def test_a_script_of_another_kind_is_refused(script: object) -> None:
    with pytest.raises(ConfigurationError, match="a list of replies or a function"):
        ScriptedLLM(script)  # type: ignore[arg-type]


def test_a_reply_of_another_kind_is_refused_by_name() -> None:
    with pytest.raises(ConfigurationError, match="not a dict"):
        answer(ScriptedLLM([{"text": "x"}]), ask("x"))  # type: ignore[list-item]
