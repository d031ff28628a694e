"""Every way in which a provider fails, over real HTTP: each has a kind and a clear message, none hangs."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import httpx2
import pytest
from pydantic_ai.exceptions import (
    ContentFilterError,
    ModelAPIError,
    ModelHTTPError,
    ModelRequestTimeout,
    UserError,
)

from phronomy_django.domain.messages import LLMRequest, UserMessage
from phronomy_django.llm import LLMError, LLMErrorKind
from phronomy_django.llm.pydantic_ai import PydanticAILLM
from phronomy_django.llm.pydantic_ai_failures import failure_of
from tests.llm.openai_server import (
    Behaviour,
    OpenAIServer,
    chunks,
    completion,
    cut_stream,
    hang,
    raw,
    status,
    streamed,
)

KEY = "key-of-the-test"


def request(timeout: float = 20.0) -> LLMRequest:
    return LLMRequest("local", (UserMessage.of("hi"),), timeout=timeout)


def local(server: OpenAIServer) -> PydanticAILLM:
    return PydanticAILLM("openai:local", base_url=server.base_url, api_key=KEY)


def failed(model: PydanticAILLM, *, timeout: float = 20.0) -> LLMError:
    with pytest.raises(LLMError) as caught:
        asyncio.run(model.complete(request(timeout)))
    return checked(caught.value)


def failed_stream(model: PydanticAILLM, *, timeout: float = 20.0) -> tuple[LLMError, list[str]]:
    pieces: list[str] = []
    with pytest.raises(LLMError) as caught:
        asyncio.run(model.stream(request(timeout), pieces.append))
    return checked(caught.value), pieces


def checked(error: LLMError) -> LLMError:
    """What holds for every failure: it names the model, keeps the key, and drags no other exception along."""
    assert "openai:local" in str(error)
    assert KEY not in str(error)
    assert error.__cause__ is None
    assert error.__context__ is None
    return error


@pytest.mark.parametrize(
    ("code", "kind", "retryable"),
    [
        (400, "bad_request", False),
        (401, "authentication", False),
        (403, "authentication", False),
        (404, "bad_request", False),
        (408, "timeout", True),
        (409, "unavailable", True),
        (413, "bad_request", False),
        (422, "bad_request", False),
        (429, "rate_limited", True),
        (500, "unavailable", True),
        (502, "unavailable", True),
        (503, "unavailable", True),
        (504, "unavailable", True),
        (529, "unavailable", True),
    ],
)
def test_a_status_has_a_kind_whole_and_streamed(
    openai_server: OpenAIServer, code: int, kind: str, retryable: bool
) -> None:
    refusal = status(code, f"not with {KEY}, said the server")
    openai_server.then(refusal, refusal)
    streamed_error, pieces = failed_stream(local(openai_server))
    assert pieces == []
    for error in (failed(local(openai_server)), streamed_error):
        assert (error.kind, error.retryable, error.status_code) == (kind, retryable, code)
        assert "said the server" in str(error)
    assert len(openai_server.bodies) == 2


@pytest.mark.parametrize("header", ["7", "7.0", "0007"])
def test_a_wait_asked_for_in_seconds_is_passed_on(openai_server: OpenAIServer, header: str) -> None:
    openai_server.then(status(429, retry_after=header))
    error = failed(local(openai_server))
    assert (error.kind, error.retry_after) == (LLMErrorKind.RATE_LIMITED, 7.0)
    assert "wait 7 s" in str(error)


def test_a_wait_asked_for_as_a_date_is_passed_on_in_seconds(openai_server: OpenAIServer) -> None:
    soon = datetime.now(UTC) + timedelta(hours=1)
    past = datetime.now(UTC) - timedelta(hours=1)
    openai_server.then(
        status(429, retry_after=format_datetime(soon, usegmt=True)),
        status(503, retry_after=format_datetime(past, usegmt=True)),
    )
    wait = failed(local(openai_server)).retry_after
    assert wait is not None
    assert 3000 < wait <= 3600
    assert failed(local(openai_server)).retry_after == 0.0


@pytest.mark.parametrize("header", ["soon", "nan", "inf", ""])
def test_a_wait_that_cannot_be_read_is_none(openai_server: OpenAIServer, header: str) -> None:
    openai_server.then(status(429, retry_after=header))
    assert failed(local(openai_server)).retry_after is None


def test_an_exhausted_quota_is_not_tried_again(openai_server: OpenAIServer) -> None:
    openai_server.then(status(429, "You exceeded your quota", error_code="insufficient_quota"))
    error = failed(local(openai_server))
    assert (error.kind, error.retryable) == (LLMErrorKind.RATE_LIMITED, False)


@pytest.mark.parametrize(
    ("body", "content_type"),
    [
        (b"{oops", "application/json"),
        (b"", "application/json"),
        (b"\xff\xfe{}", "application/json"),
        (b"{}", "application/json"),
        (b"[]", "application/json"),
        (b"null", "application/json"),
        (b'"text"', "application/json"),
        (b'{"choices": [null]}', "application/json"),
        (b'{"choices": [{}]}', "application/json"),
        (b'{"choices": 5}', "application/json"),
        (b"<html>proxy</html>", "text/html"),
        (b"hello", "text/plain"),
    ],
)
def test_an_answer_that_is_not_the_protocol_is_malformed(
    openai_server: OpenAIServer, body: bytes, content_type: str
) -> None:
    openai_server.then(raw(body, content_type=content_type))
    error = failed(local(openai_server))
    assert (error.kind, error.retryable) == (LLMErrorKind.MALFORMED, True)


@pytest.mark.parametrize(
    "body",
    [
        b"data: {oops\n\n",
        b"data: 5\n\n",
        b'data: {"choices": [null]}\n\n',
        b"data: [DONE]\n\n",
        b"<html>proxy</html>",
        b"",
    ],
)
def test_a_stream_that_is_not_the_protocol_is_malformed(openai_server: OpenAIServer, body: bytes) -> None:
    openai_server.then(raw(body, content_type="text/event-stream"))
    error, pieces = failed_stream(local(openai_server))
    assert (error.kind, error.retryable, pieces) == (LLMErrorKind.MALFORMED, True, [])


@pytest.mark.parametrize(
    "nothing", [completion(choices=[]), completion(""), completion(None)], ids=["choices", "text", "null"]
)
def test_an_answer_with_neither_text_nor_call_is_empty(
    openai_server: OpenAIServer, nothing: Behaviour
) -> None:
    openai_server.then(nothing)
    error = failed(local(openai_server))
    assert (error.kind, error.retryable) == (LLMErrorKind.EMPTY, True)


def test_a_stream_with_neither_text_nor_call_is_empty(openai_server: OpenAIServer) -> None:
    openai_server.then(streamed())
    error, pieces = failed_stream(local(openai_server))
    assert (error.kind, pieces) == (LLMErrorKind.EMPTY, [])


def test_an_answer_that_ran_out_of_tokens_before_its_first_word_is_not_tried_again(
    openai_server: OpenAIServer,
) -> None:
    openai_server.then(completion(None, finish_reason="length"))
    error = failed(local(openai_server))
    assert (error.kind, error.retryable) == (LLMErrorKind.EMPTY, False)
    assert "allow more" in str(error)


def test_an_answer_that_ran_out_of_tokens_later_says_so(openai_server: OpenAIServer) -> None:
    openai_server.then(completion("half a sen", finish_reason="length"))
    response = asyncio.run(local(openai_server).complete(request()))
    assert (response.text, response.finish_reason) == ("half a sen", "length")


@pytest.mark.parametrize(
    "refusal",
    [completion(refusal="I will not"), completion(None, finish_reason="content_filter")],
    ids=["refusal", "filter"],
)
def test_a_refusal_is_not_tried_again(openai_server: OpenAIServer, refusal: Behaviour) -> None:
    openai_server.then(refusal)
    error = failed(local(openai_server))
    assert (error.kind, error.retryable) == (LLMErrorKind.REFUSED, False)


def test_a_streamed_refusal_tells_what_the_model_said(openai_server: OpenAIServer) -> None:
    openai_server.then(streamed({"refusal": "I will "}, {"refusal": "not"}))
    error, pieces = failed_stream(local(openai_server))
    assert (error.kind, error.detail, pieces) == (LLMErrorKind.REFUSED, "I will not", [])


@pytest.mark.parametrize(
    "cut",
    [
        cut_stream("Hel", "lo"),
        cut_stream("Hel", "lo", ending="clean"),
        cut_stream("Hel", "lo", framing="close", ending="clean"),
    ],
    ids=["in the middle of a chunk", "without an end of the answer", "where HTTP cannot tell"],
)
def test_a_connection_cut_in_mid_stream_is_lost_whatever_came_before(
    openai_server: OpenAIServer, cut: Behaviour
) -> None:
    openai_server.then(cut)
    error, pieces = failed_stream(local(openai_server))
    assert (error.kind, error.retryable) == (LLMErrorKind.CONNECTION_LOST, True)
    assert pieces == ["Hel", "lo"]


def test_a_body_shorter_than_announced_is_a_lost_connection(openai_server: OpenAIServer) -> None:
    body = Behaviour(
        headers={"Content-Type": "application/json"}, pieces=(b'{"id": "x"}',), announced=500, ending="cut"
    )
    openai_server.then(body)
    assert failed(local(openai_server)).kind == LLMErrorKind.CONNECTION_LOST


def test_an_address_where_no_one_listens_is_a_lost_connection() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{taken.getsockname()[1]}/v1"
        model = PydanticAILLM("openai:local", base_url=address, api_key=KEY)
        error = failed(model)
    assert (error.kind, error.retryable) == (LLMErrorKind.CONNECTION_LOST, True)


def test_an_address_that_is_none_is_told_without_a_hang() -> None:
    model = PydanticAILLM("openai:local", base_url="no-address", api_key=KEY)
    assert failed(model).kind == LLMErrorKind.CONNECTION_LOST


@pytest.mark.parametrize("behaviour", [hang(), hang(after=[b" "])], ids=["no answer", "headers only"])
def test_a_server_that_says_nothing_is_a_timeout(openai_server: OpenAIServer, behaviour: Behaviour) -> None:
    openai_server.then(behaviour)
    error = failed(local(openai_server), timeout=0.2)
    assert (error.kind, error.retryable) == (LLMErrorKind.TIMEOUT, True)
    assert "0.2 s were allowed" in str(error)


def test_without_a_timeout_of_the_request_the_model_s_own_holds(openai_server: OpenAIServer) -> None:
    openai_server.then(hang())
    model = PydanticAILLM("openai:local", base_url=openai_server.base_url, api_key=KEY, timeout=0.3)
    with pytest.raises(LLMError, match=r"0\.3 s were allowed"):
        asyncio.run(model.complete(LLMRequest("local", (UserMessage.of("hi"),))))


def test_a_stream_that_stalls_is_a_timeout(openai_server: OpenAIServer) -> None:
    openai_server.then(hang(after=chunks({"content": "Hel"}, finish_reason=None)))
    error, pieces = failed_stream(local(openai_server), timeout=1.0)
    assert (error.kind, pieces) == (LLMErrorKind.TIMEOUT, ["Hel"])


def test_an_error_inside_a_stream_is_told_as_the_same_error_before_it(openai_server: OpenAIServer) -> None:
    event = b"data: " + json.dumps({"error": {"message": "the cluster fell over", "code": 500}}).encode()
    first = chunks({"content": "Hel"}, finish_reason=None)
    openai_server.then(raw(b"".join(first) + event + b"\n\n", content_type="text/event-stream"))
    error, pieces = failed_stream(local(openai_server))
    assert (error.kind, pieces) == (LLMErrorKind.UNAVAILABLE, ["Hel"])
    assert "the cluster fell over" in str(error)


def test_after_any_failure_the_same_loop_goes_on(openai_server: OpenAIServer) -> None:
    openai_server.then(status(500), cut_stream("x"), raw(b"{oops"), completion("fine"))
    model = local(openai_server)

    async def go_on() -> str:
        for call in (model.complete(request()), model.stream(request(), str), model.complete(request())):
            with pytest.raises(LLMError):
                await call
        return (await model.complete(request())).text

    assert asyncio.run(go_on()) == "fine"


class SomeSDKError(Exception):
    """An SDK's exception that pydantic-ai let through."""


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ModelRequestTimeout("m", 3.0), "timeout"),
        (ModelHTTPError(418, "m"), "bad_request"),
        (ModelHTTPError(599, "m", body=[{"detail": "far away"}]), "unavailable"),
        (ModelHTTPError(401, "m"), "authentication"),
        (ModelHTTPError(429, "m"), "rate_limited"),
        (ModelHTTPError(408, "m"), "timeout"),
        (ModelAPIError("m", "odd"), "malformed"),
        (ModelAPIError("m", "odd", in_stream=True), "unavailable"),
        (ContentFilterError("filtered"), "refused"),
        (UserError("no such setting"), "bad_request"),
        (httpx2.ReadTimeout("slow"), "timeout"),
        (httpx2.RemoteProtocolError("gone"), "connection_lost"),
        (httpx2.DecodingError("bad gzip"), "malformed"),
        (ConnectionResetError("reset"), "connection_lost"),
        (TimeoutError(), "timeout"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else value,
)
def test_what_other_providers_raise_has_a_kind_as_well(error: Exception, kind: str) -> None:
    assert failure_of(error, model="other:m").kind == kind


@pytest.mark.parametrize("error", [SomeSDKError("odd"), IndexError("ours"), TypeError("ours")])
def test_what_has_no_name_is_unknown_logged_and_not_tried_again(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    def raised() -> Exception:
        try:
            raise error
        except Exception as caught:
            return caught

    with caplog.at_level(logging.ERROR, logger="phronomy_django.llm.pydantic_ai_failures"):
        failure = failure_of(raised(), model="other:m")
    assert (failure.kind, failure.retryable) == (LLMErrorKind.UNKNOWN, False)
    [record] = caplog.records
    assert "other:m" in record.getMessage()
    assert "in raised" in record.getMessage()


def test_a_transport_error_under_an_api_error_decides_the_kind() -> None:
    error = ModelAPIError("m", "request failed")
    error.__cause__ = httpx2.ConnectTimeout("slow")
    assert failure_of(error, model="other:m").kind == LLMErrorKind.TIMEOUT


def test_an_sdk_that_cannot_start_is_a_failed_call_and_the_log_keeps_the_key(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: Any) -> Any:
        raise SomeSDKError(f"cannot read the key {KEY}")

    model = PydanticAILLM("openai:local", base_url="http://127.0.0.1:1/v1", api_key=KEY)
    monkeypatch.setattr(model, "_new_model", broken)
    assert failed(model).kind == LLMErrorKind.UNKNOWN
    assert "cannot read the key [redacted]" in caplog.text
    assert KEY not in caplog.text
