"""The one exception of this room, its kinds, and what may be tried again."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Any

from phronomy_django.domain.canonical import storable_text
from phronomy_django.domain.errors import PhronomyError

__all__ = ["RETRYABLE", "LLMError", "LLMErrorKind", "redacted"]

_MAX_DETAIL = 600


class LLMErrorKind(StrEnum):
    """Why a provider call gave no usable answer."""

    RATE_LIMITED = "rate_limited"
    UNAVAILABLE = "unavailable"
    TIMEOUT = "timeout"
    CONNECTION_LOST = "connection_lost"
    MALFORMED = "malformed"
    EMPTY = "empty"
    REFUSED = "refused"
    BAD_REQUEST = "bad_request"
    AUTHENTICATION = "authentication"
    UNKNOWN = "unknown"


RETRYABLE: Mapping[LLMErrorKind, bool] = MappingProxyType(
    {
        LLMErrorKind.RATE_LIMITED: True,
        LLMErrorKind.UNAVAILABLE: True,
        LLMErrorKind.TIMEOUT: True,
        LLMErrorKind.CONNECTION_LOST: True,
        LLMErrorKind.MALFORMED: True,
        LLMErrorKind.EMPTY: True,
        LLMErrorKind.REFUSED: False,
        LLMErrorKind.BAD_REQUEST: False,
        LLMErrorKind.AUTHENTICATION: False,
        LLMErrorKind.UNKNOWN: False,
    }
)
"""Whether the same request may be answered when it is sent again; ``LLMError`` can be told otherwise."""

_WHAT: Mapping[LLMErrorKind, str] = {
    LLMErrorKind.RATE_LIMITED: "the provider takes no more requests for now",
    LLMErrorKind.UNAVAILABLE: "the provider is unavailable",
    LLMErrorKind.TIMEOUT: "no answer came in time",
    LLMErrorKind.CONNECTION_LOST: "the connection to the provider failed before the answer was complete",
    LLMErrorKind.MALFORMED: "the answer is not what the provider's protocol says",
    LLMErrorKind.EMPTY: "the answer holds neither text nor a tool call",
    LLMErrorKind.REFUSED: "the model or its provider declined to answer",
    LLMErrorKind.BAD_REQUEST: "the provider did not accept the request",
    LLMErrorKind.AUTHENTICATION: "the provider did not accept the credentials",
    LLMErrorKind.UNKNOWN: "the call failed in a way that has no name here",
}

_NEXT: Mapping[LLMErrorKind, str] = {
    LLMErrorKind.RATE_LIMITED: "Wait before another attempt, or raise the quota.",
    LLMErrorKind.UNAVAILABLE: "Another attempt may succeed.",
    LLMErrorKind.TIMEOUT: "Try again, or allow more time.",
    LLMErrorKind.CONNECTION_LOST: "Try again; check the address and the network if it goes on.",
    LLMErrorKind.MALFORMED: "Try again; check that the server speaks this protocol if it goes on.",
    LLMErrorKind.EMPTY: "Try again, or ask in other words.",
    LLMErrorKind.REFUSED: "Ask in other words, or use another model.",
    LLMErrorKind.BAD_REQUEST: "Check the model's name, its settings and the tools' schemas.",
    LLMErrorKind.AUTHENTICATION: "Check the API key and what it may do.",
    LLMErrorKind.UNKNOWN: "See the log of the process that made the call.",
}

_SECRETS = re.compile(
    r"""(?ix)
      \b(?:bearer|basic)\s+[a-z0-9._~+/=*-]{6,}
    | \bauthorization["']?\s*[:=]\s*["']?[^"'\n,}]+
    | \b(?:x-)?api[-_\ ]?key["']?\s*(?:provided)?\s*[:=]\s*["']?[^\s"',}]+
    | \b(?:sk|pk|rk|gsk|xai|hf|r8)[-_][a-z0-9_*-]{6,}
    | \bAIza[a-z0-9_-]{10,}
    | (?<=://)[^/\s:@]+:[^/\s@]+(?=@)
    """
)
"""What looks like a secret: header values, ``api_key=...``, the usual key prefixes, a password in a URL."""


def redacted(text: str, secrets: Iterable[str] = ()) -> str:
    """``text`` fit for a message: storable, at most 600 characters, nothing that is or looks secret."""
    for secret in secrets:
        if secret:
            text = text.replace(secret, "[redacted]")
    text = _SECRETS.sub("[redacted]", text[: _MAX_DETAIL * 4])
    text = " ".join(storable_text(text).split())
    return text if len(text) <= _MAX_DETAIL else text[: _MAX_DETAIL - 1] + "…"


class LLMError(PhronomyError):
    """The provider gave no usable answer; ``kind`` says why and ``retryable`` whether to try again.

    The message says what happened, to which model, and what to do next. It never holds a key or a header:
    ``detail`` passes through ``redacted``. ``retry_after`` is in seconds, from now. ``retryable`` is the
    default of the kind (``RETRYABLE``) unless given. The attributes cannot be changed; it can be pickled.
    """

    def __init__(
        self,
        detail: str = "",
        *,
        kind: LLMErrorKind | str = LLMErrorKind.UNKNOWN,
        model: str = "",
        retryable: bool | None = None,
        retry_after: float | None = None,
        status_code: int | None = None,
        secrets: Iterable[str] = (),
    ) -> None:
        self._kind = LLMErrorKind(kind)
        self._model = model
        self._detail = redacted(detail, secrets)
        self._retryable = RETRYABLE[self._kind] if retryable is None else retryable
        self._retry_after = retry_after
        self._status_code = status_code
        what = _WHAT[self._kind]
        status = "" if status_code is None else f" (HTTP {status_code})"
        reason = f": {self._detail}" if self._detail else ""
        wait = "" if retry_after is None else f" The provider asks to wait {retry_after:g} s."
        end = "" if reason.endswith((".", "!", "?", "…")) else "."
        super().__init__(f"Model {model or 'unnamed'}: {what}{status}{reason}{end}{wait} {_NEXT[self._kind]}")

    @property
    def kind(self) -> LLMErrorKind:
        return self._kind

    @property
    def model(self) -> str:
        return self._model

    @property
    def detail(self) -> str:
        return self._detail

    @property
    def retryable(self) -> bool:
        return self._retryable

    @property
    def retry_after(self) -> float | None:
        return self._retry_after

    @property
    def status_code(self) -> int | None:
        return self._status_code

    def as_json(self) -> dict[str, Any]:
        """The shape that an outcome stores."""
        return {
            "kind": str(self._kind),
            "message": str(self),
            "model": self._model,
            "retryable": self._retryable,
            "retry_after": self._retry_after,
            "status_code": self._status_code,
        }

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuilt, (
            self._detail,
            str(self._kind),
            self._model,
            self._retryable,
            self._retry_after,
            self._status_code,
        )


def _rebuilt(
    detail: str,
    kind: str,
    model: str,
    retryable: bool,
    retry_after: float | None,
    status_code: int | None,
) -> LLMError:
    return LLMError(
        detail,
        kind=kind,
        model=model,
        retryable=retryable,
        retry_after=retry_after,
        status_code=status_code,
    )
