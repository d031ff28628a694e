"""Every way in which pydantic-ai, a provider's SDK or the network fails, as an ``LLMError``."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable

import httpx2
from pydantic import ValidationError
from pydantic_ai.exceptions import (
    ContentFilterError,
    ModelAPIError,
    ModelAuthenticationError,
    ModelConnectionError,
    ModelHTTPError,
    ModelQuotaExceededError,
    ModelRateLimitError,
    ModelRequestRejectedError,
    ModelRequestTimeout,
    ModelServerError,
    ModelTimeoutError,
    ModelUnavailableError,
    UnexpectedModelBehavior,
    UserError,
)

from phronomy_django.llm.errors import LLMError, LLMErrorKind

__all__ = ["failure_of"]

logger = logging.getLogger(__name__)

_UNFINISHED = "without a `finish_reason`"


def failure_of(error: Exception, *, model: str, secrets: Iterable[str] = ()) -> LLMError:
    """What ``error`` means for the caller. Do not chain the two: ``error`` may hold headers and keys."""
    kind = _kind_of(error)
    if kind is LLMErrorKind.UNKNOWN:
        logger.error("Unforeseen %s in a call of model %s", type(error).__qualname__, model, exc_info=error)
    retry_after = getattr(error, "retry_after", None)
    return LLMError(
        _detail_of(error),
        kind=kind,
        model=model,
        retryable=False if isinstance(error, ModelQuotaExceededError) else None,
        retry_after=None if retry_after is None else max(0.0, float(retry_after)),
        status_code=error.status_code if isinstance(error, ModelHTTPError) else None,
        secrets=secrets,
    )


def _kind_of(error: BaseException) -> LLMErrorKind:
    match error:
        case ModelRequestTimeout() | ModelTimeoutError():
            return LLMErrorKind.TIMEOUT
        case ModelRateLimitError() | ModelQuotaExceededError():
            return LLMErrorKind.RATE_LIMITED
        case ModelAuthenticationError():
            return LLMErrorKind.AUTHENTICATION
        case ModelRequestRejectedError():
            return LLMErrorKind.BAD_REQUEST
        case ModelUnavailableError() | ModelServerError():
            return LLMErrorKind.UNAVAILABLE
        case ModelConnectionError():
            return LLMErrorKind.CONNECTION_LOST
        case ModelHTTPError():
            return _kind_of_status(error.status_code)
        case ModelAPIError():
            return _kind_of_unnamed(error)
        case ContentFilterError():
            return LLMErrorKind.REFUSED
        case UnexpectedModelBehavior() | ValidationError() | json.JSONDecodeError() | UnicodeDecodeError():
            return LLMErrorKind.MALFORMED
        case UserError():
            return LLMErrorKind.BAD_REQUEST
        case httpx2.TimeoutException() | TimeoutError():
            return LLMErrorKind.TIMEOUT
        case httpx2.DecodingError():
            return LLMErrorKind.MALFORMED
        case httpx2.TransportError() | OSError():
            return LLMErrorKind.CONNECTION_LOST
        case _:
            return LLMErrorKind.UNKNOWN


def _kind_of_status(status: int) -> LLMErrorKind:
    match status:
        case 401 | 403:
            return LLMErrorKind.AUTHENTICATION
        case 429:
            return LLMErrorKind.RATE_LIMITED
        case 408:
            return LLMErrorKind.TIMEOUT
        case 409 | 425:
            return LLMErrorKind.UNAVAILABLE
        case _ if 400 <= status < 500:
            return LLMErrorKind.BAD_REQUEST
        case _:
            return LLMErrorKind.UNAVAILABLE


def _kind_of_unnamed(error: ModelAPIError) -> LLMErrorKind:
    """An API error without a status: the answer broke off, an error came inside it, or it cannot be read."""
    if _UNFINISHED in str(error):
        return LLMErrorKind.CONNECTION_LOST
    if error.in_stream:
        return LLMErrorKind.UNAVAILABLE
    cause = _kind_of(error.__cause__) if error.__cause__ is not None else LLMErrorKind.UNKNOWN
    return LLMErrorKind.MALFORMED if cause is LLMErrorKind.UNKNOWN else cause


def _detail_of(error: Exception) -> str:
    if isinstance(error, ModelAPIError):
        said = _said_by_provider(error.body)
        if said:
            return said
        if isinstance(error, ModelHTTPError):
            return ""
        return error.message
    if isinstance(error, UserError | UnexpectedModelBehavior):
        return error.message
    if isinstance(error, ValidationError):
        return f"{error.error_count()} fields are not as expected, the first at {error.errors()[0]['loc']}"
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _said_by_provider(body: object) -> str:
    match body:
        case {"error": inner} if inner:
            return _said_by_provider(inner)
        case {"message": str(message)} | {"detail": str(message)}:
            return message
        case str():
            return body
        case list() if body:
            return _said_by_provider(body[0])
        case _:
            return ""
