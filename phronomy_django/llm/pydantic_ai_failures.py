"""Every way in which pydantic-ai, a provider's SDK or the network fails, as an ``LLMError``."""

from __future__ import annotations

import json
import logging
import math
import traceback
from collections.abc import Iterable
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

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
    failure = LLMError(
        _detail_of(error),
        kind=_kind_of(error),
        model=model,
        retryable=False if isinstance(error, ModelQuotaExceededError) else None,
        retry_after=_retry_after_of(error),
        status_code=error.status_code if isinstance(error, ModelHTTPError) else None,
        secrets=secrets,
    )
    if failure.kind is LLMErrorKind.UNKNOWN:
        frames = "".join(traceback.format_tb(error.__traceback__))
        logger.error("%s It was raised here:\n%s", failure, frames)
    return failure


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
        case IndexError() if _raised_while_reading(error):
            return LLMErrorKind.EMPTY
        case LookupError() | AttributeError() | TypeError() if _raised_while_reading(error):
            return LLMErrorKind.MALFORMED
        case _:
            return LLMErrorKind.UNKNOWN


def _raised_while_reading(error: BaseException) -> bool:
    """Whether the library itself stumbled: it trusts that an answer has a shape (``choices[0]``)."""
    frame = error.__traceback__
    if frame is None:
        return False
    while frame.tb_next is not None:
        frame = frame.tb_next
    return str(frame.tb_frame.f_globals.get("__name__", "")).partition(".")[0] in ("pydantic_ai", "openai")


def _retry_after_of(error: Exception) -> float | None:
    if not isinstance(error, ModelAPIError):
        return None
    if error.retry_after is not None:
        return max(0.0, error.retry_after)
    headers = error.headers if isinstance(error, ModelHTTPError) else None
    return _seconds((headers or {}).get("retry-after", ""))


def _seconds(header: str) -> float | None:
    try:
        seconds = float(header)
    except ValueError:
        try:
            moment = parsedate_to_datetime(header)
        except ValueError:
            return None
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        seconds = (moment - datetime.now(UTC)).total_seconds()
    return max(0.0, seconds) if math.isfinite(seconds) else None


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


def _detail_of(error: BaseException) -> str:
    match error:
        case IndexError():
            return "a list that should hold the answer is empty"
        case ModelConnectionError():
            return _detail_of(_innermost(error)) if error.__cause__ is not None else error.message
        case ModelAPIError():
            said = _said_by_provider(error.body)
            return said or ("" if isinstance(error, ModelHTTPError) else error.message)
        case UnexpectedModelBehavior(__cause__=ValidationError() as cause):
            return _detail_of(cause)
        case UserError() | UnexpectedModelBehavior():
            return error.message
        case ValidationError():
            first = error.errors(include_url=False, include_input=False)[0]
            place = ".".join(str(step) for step in first["loc"])
            return f"{error.error_count()} of its values are wrong, the first is {place}: {first['msg']}"
        case _:
            return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _innermost(error: BaseException) -> BaseException:
    while error.__cause__ is not None:
        error = error.__cause__
    return error


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
