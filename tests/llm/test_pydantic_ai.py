"""The adapter against a real HTTP server: what is sent, what comes back, and who closes the connections."""

from __future__ import annotations

import asyncio
import json
from decimal import Decimal
from typing import Any

import pytest
from pydantic_ai.messages import ModelResponse, TextPart
from pydantic_ai.usage import RequestUsage

from phronomy_django.domain.errors import ConfigurationError
from phronomy_django.domain.messages import (
    AssistantMessage,
    File,
    Image,
    LLMRequest,
    LLMResponse,
    Text,
    ToolCall,
    ToolMessage,
    ToolSpec,
    Usage,
    UserMessage,
)
from phronomy_django.llm import LLMError, resolve_model
from phronomy_django.llm.pydantic_ai import PydanticAILLM
from tests.llm.asking import answer, ask, local, stream
from tests.llm.openai_server import (
    OpenAIServer,
    completion,
    status,
    streamed,
    tool_call,
)

SCHEMA = {
    "title": "The answer",
    "description": "What the person asked for.",
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
}
LOOKUP = ToolSpec("lookup", "Look it up.", {"type": "object", "properties": {"id": {"type": "integer"}}})


def test_a_question_goes_out_and_its_answer_comes_back(openai_server: OpenAIServer) -> None:
    openai_server.then(completion("Hello", usage=(12, 3)))
    response = answer(local(openai_server), ask("hi", instructions="Be kind."))
    assert response == LLMResponse(
        text="Hello", usage=Usage(12, 3), model="local-model", finish_reason="stop"
    )
    [body] = openai_server.bodies
    assert body["model"] == "local"
    assert body["messages"] == [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "hi"},
    ]
    assert openai_server.headers[0]["authorization"] == "Bearer key-of-the-test"


def test_a_stream_hands_over_each_piece_as_it_comes(openai_server: OpenAIServer) -> None:
    openai_server.then(streamed("Hel", "lo ", "there"))
    response, pieces = stream(local(openai_server), ask())
    assert pieces == ["Hel", "lo ", "there"]
    assert response == LLMResponse(text="Hello there", usage=Usage(11, 7), model="local-model")
    assert openai_server.bodies[0]["stream"] is True


def test_parallel_calls_keep_their_order_ids_and_raw_arguments(openai_server: OpenAIServer) -> None:
    calls = [tool_call("lookup", '{"id": 1, ', "call_a"), tool_call("nosuch", {"x": 1}, "call_b")]
    openai_server.then(completion("Wait.", tool_calls=calls))
    response = answer(local(openai_server), ask(tools=(LOOKUP,)))
    assert response.text == "Wait."
    assert response.tool_calls == (
        ToolCall("call_a", "lookup", '{"id": 1, '),
        ToolCall("call_b", "nosuch", '{"x": 1}'),
    )
    assert response.finish_reason == "tool_calls"
    [tool] = openai_server.bodies[0]["tools"]
    assert tool["function"]["name"] == "lookup"
    assert tool["function"]["description"] == "Look it up."
    assert tool["function"]["parameters"]["properties"] == {"id": {"type": "integer"}}


def test_streamed_calls_are_put_together_from_their_pieces(openai_server: OpenAIServer) -> None:
    def piece(index: int, arguments: str, **start: Any) -> dict[str, Any]:
        function = {"arguments": arguments, **({"name": start.pop("name")} if start else {})}
        return {"tool_calls": [{"index": index, "function": function, **start}]}

    openai_server.then(
        streamed(
            piece(0, '{"id', id="call_a", type="function", name="lookup"),
            piece(1, '{"no', id="call_b", type="function", name="nosuch"),
            piece(0, '": 1}'),
            piece(1, "t json"),
            finish_reason="tool_calls",
        )
    )
    response, pieces = stream(local(openai_server), ask(tools=(LOOKUP,)))
    assert pieces == []
    assert response.tool_calls == (
        ToolCall("call_a", "lookup", '{"id": 1}'),
        ToolCall("call_b", "nosuch", '{"not json'),
    )
    assert response.finish_reason == "tool_calls"


def test_calls_with_one_id_get_ids_of_their_own_and_no_arguments_are_an_object(
    openai_server: OpenAIServer,
) -> None:
    openai_server.then(completion(tool_calls=[tool_call("lookup", "", "same") for _ in range(3)]))
    response = answer(local(openai_server), ask(tools=(LOOKUP,)))
    assert [made.tool_call_id for made in response.tool_calls] == ["same", "same_2", "same_3"]
    assert {made.arguments for made in response.tool_calls} == {"{}"}


def test_a_whole_conversation_is_sent_in_order(openai_server: OpenAIServer) -> None:
    openai_server.then(completion("Done."))
    conversation = (
        UserMessage.of("look"),
        AssistantMessage("Wait.", (ToolCall("a", "lookup", '{"id":1}'), ToolCall("b", "lookup", "{broken"))),
        ToolMessage("a", "lookup", "found"),
        ToolMessage("b", "lookup", "these are not JSON", status="failed"),
        UserMessage.of("and now?"),
    )
    answer(local(openai_server), LLMRequest("local", conversation, instructions="Be kind.", tools=(LOOKUP,)))
    sent = openai_server.bodies[0]["messages"]
    assert [message["role"] for message in sent] == ["system", "user", "assistant", "tool", "tool", "user"]
    assert sent[2]["content"] == "Wait."
    assert [made["id"] for made in sent[2]["tool_calls"]] == ["a", "b"]
    assert json.loads(sent[2]["tool_calls"][0]["function"]["arguments"]) == {"id": 1}
    assert "{broken" in json.loads(sent[2]["tool_calls"][1]["function"]["arguments"]).values()
    assert (sent[3]["tool_call_id"], sent[3]["content"]) == ("a", "found")
    assert sent[4]["tool_call_id"] == "b"
    assert "these are not JSON" in sent[4]["content"]
    assert sent[5]["content"] == "and now?"


def test_images_and_files_carry_the_bytes_of_their_content(openai_server: OpenAIServer) -> None:
    openai_server.then(completion("Seen."))
    parts = (
        Text("See these:"),
        Image(content_id="sha256:1"),
        File(media_type="text/plain", name="note.txt", content_id="sha256:2"),
        Image(b"direct", "image/jpeg"),
    )
    contents = {"sha256:1": b"png", "sha256:2": "gr\u00fc\u00df".encode("latin-1")}
    answer(local(openai_server), LLMRequest("local", (UserMessage(parts),), contents=contents))
    text, image, file, direct = openai_server.bodies[0]["messages"][0]["content"]
    assert text == {"type": "text", "text": "See these:"}
    assert image["image_url"]["url"] == "data:image/png;base64,cG5n"
    assert "gr\u00fc\u00df" in file["text"]
    assert "note.txt" in file["text"]
    assert direct["image_url"]["url"] == "data:image/jpeg;base64,ZGlyZWN0"


@pytest.mark.parametrize(
    ("messages", "told"),
    [
        ((UserMessage((Image(content_id="sha256:gone"),)),), "sha256:gone"),
        ((), "no message"),
        ((AssistantMessage("only me"),), "no message"),
    ],
)
def test_what_cannot_be_sent_is_told_before_anything_is_sent(
    openai_server: OpenAIServer, messages: Any, told: str
) -> None:
    with pytest.raises(LLMError, match=told) as caught:
        answer(local(openai_server), LLMRequest("local", messages))
    assert caught.value.kind == "bad_request"
    assert openai_server.bodies == []


def test_a_structured_answer_uses_the_protocols_json_schema_mode(openai_server: OpenAIServer) -> None:
    openai_server.then(completion('{"city": "Bonn"}'), completion('{"city": "Bonn"}'))
    model = local(openai_server)
    assert answer(model, ask(output_schema=SCHEMA)).text == '{"city": "Bonn"}'
    answer(model, ask(output_schema=SCHEMA, tools=(LOOKUP,)))
    for body in openai_server.bodies:
        wanted = body["response_format"]["json_schema"]
        assert body["response_format"]["type"] == "json_schema"
        assert wanted["name"] == "The_answer"
        assert wanted["schema"]["properties"]["city"]["type"] == "string"
    assert "tools" in openai_server.bodies[1]


def test_a_server_without_that_mode_is_told_the_schema_in_words(openai_server: OpenAIServer) -> None:
    openai_server.then(completion('{"city": "Bonn"}'))
    request = ask(output_schema=SCHEMA, instructions="Be kind.")
    assert answer(local(openai_server, output_mode="prompted"), request).text == '{"city": "Bonn"}'
    [body] = openai_server.bodies
    told = " ".join(message["content"] for message in body["messages"] if message["role"] == "system")
    assert "Be kind." in told
    assert '"city"' in told
    assert body.get("response_format", {}).get("type") != "json_schema"


def test_settings_of_the_request_override_those_of_the_model(openai_server: OpenAIServer) -> None:
    openai_server.then(completion("ok"))
    model = local(openai_server, settings={"temperature": 0.1, "top_p": 0.5})
    answer(model, ask(settings={"temperature": 0.9, "max_tokens": 20, "max_retries": 5}))
    [body] = openai_server.bodies
    assert (body["temperature"], body["top_p"]) == (0.9, 0.5)
    assert 20 in (body.get("max_tokens"), body.get("max_completion_tokens"))
    assert "max_retries" not in body


def test_an_answer_of_a_megabyte_arrives_whole(openai_server: OpenAIServer) -> None:
    text = "0123456789abcdef" * 65_536
    openai_server.then(completion(text), streamed(text[:500_000], text[500_000:]))
    model = local(openai_server)
    assert answer(model, ask()).text == text
    response, pieces = stream(model, ask())
    assert response.text == text == "".join(pieces)


def test_a_text_that_no_database_holds_becomes_storable(openai_server: OpenAIServer) -> None:
    openai_server.then(
        completion("a\x00b\ud800c"),
        streamed("a\x00", "b\ud83d", "\ude00", "\ud800"),
        completion(tool_calls=[tool_call("look\x00up", '{"a": "\x00"}', "id\x00")]),
    )
    model = local(openai_server)
    assert answer(model, ask()).text == "a\ufffdb\ufffdc"
    response, pieces = stream(model, ask())
    assert response.text == "a\ufffdb\U0001f600\ufffd" == "".join(pieces)
    [made] = answer(model, ask()).tool_calls
    assert made == ToolCall("id\ufffd", "look\ufffdup", '{"a": "\ufffd"}')


def test_a_listener_that_fails_ends_the_call_with_its_own_error(openai_server: OpenAIServer) -> None:
    class GoneError(TimeoutError):
        pass

    def fail(piece: str) -> None:
        raise GoneError(piece)

    openai_server.then(streamed("a", "b"), completion("still works"))
    model = local(openai_server)
    with pytest.raises(GoneError, match="a"):
        asyncio.run(model.stream(ask(), fail))
    assert answer(model, ask()).text == "still works"


def test_an_address_in_the_environment_means_chat_completions(
    openai_server: OpenAIServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", openai_server.base_url)
    monkeypatch.setenv("OPENAI_API_KEY", "key-of-the-environment")
    openai_server.then(completion("hi"), status(401, "key-of-the-environment may not"))
    adapter, name = resolve_model("openai:from-the-environment")
    assert name == "from-the-environment"
    assert asyncio.run(adapter.complete(ask())).text == "hi"
    with pytest.raises(LLMError) as caught:
        asyncio.run(adapter.complete(ask()))
    assert "[redacted] may not" in str(caught.value)


def test_a_missing_key_is_an_authentication_error_that_names_the_variable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for variable in ("OPENAI_API_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(variable, raising=False)
    with pytest.raises(LLMError, match="OPENAI_API_KEY") as caught:
        answer(PydanticAILLM("openai:gpt-5"), ask())
    assert caught.value.kind == "authentication"
    assert not caught.value.retryable


@pytest.mark.parametrize(
    ("name", "options", "told"),
    [
        ("gpt-5", {}, "provider:name"),
        ("openai:", {}, "provider:name"),
        ("nosuch:x", {}, "knows no provider 'nosuch'"),
        ("openai:x", {"output_mode": "guess"}, "output_mode"),
        ("deepseek:x", {"base_url": "http://127.0.0.1:1"}, "takes no base_url"),
    ],
)
def test_a_wrong_definition_is_told_when_it_is_made(name: str, options: Any, told: str) -> None:
    with pytest.raises(ConfigurationError, match=told):
        PydanticAILLM(name, **options)


def test_a_key_never_shows_in_a_repr() -> None:
    model = PydanticAILLM("openai:x", base_url="http://127.0.0.1:1/v1", api_key="plainword")
    assert repr(model) == "PydanticAILLM('openai:x')"


def test_cost_is_unknown_for_another_server_than_the_providers_own(
    openai_server: OpenAIServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    openai_server.then(*[completion("hi", model="gpt-4o", usage=(1_000_000, 0))] * 2)
    named = PydanticAILLM("openai:gpt-4o", base_url=openai_server.base_url)
    assert answer(named, ask()).usage == Usage(1_000_000, 0, None)
    monkeypatch.setenv("OPENAI_BASE_URL", openai_server.base_url)
    assert answer(PydanticAILLM("openai:gpt-4o"), ask()).usage == Usage(1_000_000, 0, None)


@pytest.mark.parametrize(
    ("name", "cost"), [("gpt-4o", Decimal("2.5")), ("no-such-model", None), (None, None)]
)
def test_cost_is_in_dollars_by_the_published_price(
    name: str | None, cost: Decimal | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    answered = ModelResponse(
        parts=[TextPart("hi")],
        usage=RequestUsage(input_tokens=1_000_000),
        model_name=name,
        provider_name="openai",
        provider_url="https://api.openai.com/v1/",
    )
    assert PydanticAILLM("openai:gpt-4o", api_key="k")._cost_of(answered) == cost
