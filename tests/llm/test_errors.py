from __future__ import annotations

import pickle

import pytest

from phronomy_django.domain.errors import PhronomyError
from phronomy_django.llm import RETRYABLE, LLMError, LLMErrorKind
from phronomy_django.llm.errors import redacted


def test_every_kind_has_a_default_and_a_message_of_its_own() -> None:
    assert set(RETRYABLE) == set(LLMErrorKind)
    messages = {str(LLMError(kind=kind, model="openai:m")) for kind in LLMErrorKind}
    assert len(messages) == len(LLMErrorKind)
    assert all("openai:m" in message for message in messages)


@pytest.mark.parametrize(
    ("kind", "retryable"),
    [
        ("rate_limited", True),
        ("unavailable", True),
        ("timeout", True),
        ("connection_lost", True),
        ("malformed", True),
        ("empty", True),
        ("refused", False),
        ("bad_request", False),
        ("authentication", False),
        ("unknown", False),
    ],
)
def test_retryable_is_the_default_of_the_kind_unless_given(kind: str, retryable: bool) -> None:
    assert LLMError(kind=kind).retryable is retryable
    assert LLMError(kind=kind, retryable=not retryable).retryable is not retryable


def test_the_message_says_what_happened_where_and_what_next() -> None:
    error = LLMError("slow down", kind="rate_limited", model="openai:m", retry_after=2.5, status_code=429)
    assert isinstance(error, PhronomyError)
    assert str(error) == (
        "Model openai:m: the provider takes no more requests for now (HTTP 429): slow down. "
        "The provider asks to wait 2.5 s. Wait before another attempt, or raise the quota."
    )


@pytest.mark.parametrize("attribute", ["kind", "model", "detail", "retryable", "retry_after", "status_code"])
def test_an_attribute_cannot_be_changed(attribute: str) -> None:
    with pytest.raises(AttributeError):
        setattr(LLMError(), attribute, None)


def test_it_survives_pickling_whole() -> None:
    error = LLMError("odd", kind="unavailable", model="m", retryable=False, retry_after=3.0, status_code=503)
    copy = pickle.loads(pickle.dumps(error))
    assert str(copy) == str(error)
    assert copy.as_json() == error.as_json()


def test_its_json_holds_what_a_decision_needs() -> None:
    error = LLMError(kind="timeout", model="m")
    assert error.as_json() == {
        "kind": "timeout",
        "message": str(error),
        "model": "m",
        "retryable": True,
        "retry_after": None,
        "status_code": None,
    }


@pytest.mark.parametrize(
    "secret",
    [
        "sk-proj-aBcD1234efgh",
        "Bearer abcdefghijkl",
        "Authorization: Basic dXNlcjpwYXNz",
        "x-api-key: s3cret99",
        '"api_key": "s3cret99"',
        "AIzaSyA-1234567890",
        "https://user:hunter2@host/v1",
    ],
)
def test_what_looks_like_a_secret_never_shows(secret: str) -> None:
    shown = str(LLMError(f"refused {secret} there"))
    for part in ("aBcD1234", "abcdefgh", "dXNlcjpw", "s3cret99", "1234567890", "hunter2"):
        assert part not in shown
    assert "[redacted]" in shown


def test_a_given_secret_never_shows_whatever_it_looks_like() -> None:
    assert "plainword" not in str(LLMError("key plainword is wrong", secrets=["plainword", ""]))


def test_a_detail_is_storable_short_and_on_one_line() -> None:
    text = redacted("a\x00b\ud800\n" + "word " * 10_000)
    assert len(text) == 600
    assert text.startswith("a\ufffdb\ufffd word ")
    assert text.endswith("…")


def test_ordinary_words_are_not_redacted() -> None:
    text = "the token limit of the basic plan: task-force, risk-averse, api keys"
    assert redacted(text) == text
