"""What a caller gives, checked before anything is stored: each refusal is a clear error and changes nothing."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Any, TypeAlias

from phronomy_django.agents.run import Start
from phronomy_django.domain.canonical import canonical_bytes, content_id_of
from phronomy_django.domain.errors import InputError, NotFoundError, SerializationError
from phronomy_django.domain.messages import File, Image, Part, Text, UserMessage

__all__ = ["Input", "check_agent_id", "check_id", "check_text", "make_start"]

Input: TypeAlias = str | Part | Sequence[Part]

_NO_CONTEXT: Mapping[str, Any] = MappingProxyType({})


def check_agent_id(agent_id: object) -> str:
    """An ``agent_id`` is a string of 1 to 200 printable characters without blanks at its ends."""
    if not isinstance(agent_id, str) or not agent_id:
        raise InputError("agent_id is empty; give the agent an id of 1 to 200 characters.")
    if len(agent_id) > 200:
        raise InputError(f"agent_id has {len(agent_id)} characters; 200 are the limit.")
    if agent_id != agent_id.strip() or not agent_id.isprintable():
        raise InputError(
            f"agent_id {agent_id[:50]!r} has blanks at an end or characters that cannot be printed."
        )
    return agent_id


def check_text(text: object, what: str, limit: int) -> str:
    """Text that can be stored as it is: not empty, no NUL, no lone surrogate, at most ``limit`` bytes of UTF-8."""
    if not isinstance(text, str):
        raise InputError(f"{what} is a {type(text).__name__}; it has to be a string.")
    if not text.strip():
        raise InputError(f"{what} is empty.")
    if "\x00" in text:
        raise InputError(
            f"{what} holds a NUL character at position {text.index(chr(0))}, which no database stores."
        )
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        raise InputError(
            f"{what} holds a lone surrogate at position {error.start}; it is no valid text."
        ) from None
    if size > limit:
        raise InputError(f"{what} has {size} bytes; the limit is {limit}.")
    return text


def check_id(value: object, what: str) -> str:
    """One of our identities as its 32 hex digits; raises ``NotFoundError`` for what can be none."""
    try:
        return uuid.UUID(str(value)).hex
    except ValueError:
        raise NotFoundError(f"There is no {what} {value!r}.") from None


def make_start(
    value: Input,
    *,
    execution_id: str,
    now: datetime,
    max_input_bytes: int,
    max_context_bytes: int,
    durable_context: Mapping[str, Any] | None,
    deadline: datetime | timedelta | None,
    idempotency_key: str | None,
    by: Any,
    stream: bool,
) -> Start:
    """The facts of B1. Raises ``InputError`` or, for a context that JSON cannot carry, ``SerializationError``."""
    parts, attachments = _parts(value, max_input_bytes)
    message = UserMessage(parts)
    body = canonical_bytes(message.as_json())
    context = _context(durable_context, max_context_bytes)
    if idempotency_key is not None and len(check_text(idempotency_key, "The idempotency_key", 800)) > 200:
        raise InputError("The idempotency_key has more than 200 characters.")
    return Start(
        execution_id=execution_id,
        message=message,
        body=body,
        attachments=attachments,
        durable_context=_NO_CONTEXT if not durable_context else MappingProxyType(dict(durable_context)),
        context_json=context.decode(),
        deadline=_deadline(deadline, now),
        idempotency_key=idempotency_key,
        digest=content_id_of(body + b"\n" + context) if idempotency_key is not None else "",
        by=getattr(by, "pk", by),
        stream=stream,
    )


def _parts(value: Input, limit: int) -> tuple[tuple[Part, ...], tuple[tuple[bytes, str], ...]]:
    given: Sequence[Any]
    if isinstance(value, str):
        given = (Text(value),)
    elif isinstance(value, Text | Image | File):
        given = (value,)
    elif isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
        given = value
    else:
        raise InputError(
            f"The input is a {type(value).__name__}; give a string or a list of Text, Image and File."
        )
    if not given:
        raise InputError("The input is empty.")
    parts: list[Part] = []
    attachments: list[tuple[bytes, str]] = []
    for index, part in enumerate(given):
        what = "The input" if len(given) == 1 else f"Part {index} of the input"
        match part:
            case str():
                parts.append(Text(check_text(part, what, limit)))
            case Text(text):
                parts.append(Text(check_text(text, what, limit)))
            case Image() | File():
                parts.append(_stored(part, what, limit, attachments))
            case _:
                raise InputError(f"{what} is a {type(part).__name__}; give Text, Image or File.")
    return tuple(parts), tuple(attachments)


def _stored(part: Image | File, what: str, limit: int, attachments: list[tuple[bytes, str]]) -> Part:
    if not isinstance(part.data, bytes) or not part.data:
        raise InputError(f"{what} has no bytes; give them as data=b'…'.")
    if len(part.data) > limit:
        raise InputError(
            f"{what} has {len(part.data)} bytes; the limit is {limit} (PHRONOMY['MAX_INPUT_BYTES'])."
        )
    check_text(part.media_type, f"The media type of {what.lower()}", 100)
    attachments.append((part.data, part.media_type))
    content_id = content_id_of(part.data)
    if isinstance(part, Image):
        return Image(media_type=part.media_type, content_id=content_id)
    name = check_text(part.name, f"The name of {what.lower()}", 1000) if part.name else ""
    return File(media_type=part.media_type, name=name, content_id=content_id)


def _context(value: Mapping[str, Any] | None, limit: int) -> bytes:
    if value is None:
        return b"{}"
    if not isinstance(value, Mapping):
        raise SerializationError(f"durable_context is a {type(value).__name__}; it has to be a dict.")
    body = canonical_bytes(dict(value), "durable_context")
    if b"\\u0000" in body:
        raise SerializationError("durable_context holds a NUL character, which no database stores.")
    if len(body) > limit:
        raise InputError(f"durable_context has {len(body)} bytes as JSON; the limit is {limit}.")
    return body


def _deadline(value: datetime | timedelta | None, now: datetime) -> datetime | None:
    if isinstance(value, timedelta):
        return now + value
    if value is not None and (not isinstance(value, datetime) or value.tzinfo is None):
        raise InputError("deadline has to be an aware datetime or a timedelta.")
    return value
