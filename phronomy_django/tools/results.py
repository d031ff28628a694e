"""What goes back to the model: a tool's result as text, or the sentence that tells of its failure."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import math
import uuid
from collections.abc import Mapping
from typing import Any

from pydantic_core import SchemaSerializer, to_jsonable_python

from phronomy_django.domain.canonical import canonical_bytes, storable_text
from phronomy_django.domain.errors import SerializationError
from phronomy_django.tools.definition import ToolDefinition
from phronomy_django.tools.errors import ToolError, ToolResultTooLargeError

__all__ = ["MAX_FAILURE_CHARACTERS", "MAX_TOLD_CHARACTERS", "describe_failure", "render_result"]

MAX_FAILURE_CHARACTERS = 2_000
MAX_TOLD_CHARACTERS = 20_000

_MAX_DEPTH = 100
_LEAVES = (
    decimal.Decimal,
    datetime.datetime,
    datetime.date,
    datetime.time,
    datetime.timedelta,
    uuid.UUID,
)


def render_result(definition: ToolDefinition[..., Any], value: object) -> str:
    """``value`` as the model is shown it, fit to be stored.

    A string is given as it is; None is ``null``; pydantic models, dataclasses and JSON values are RFC 8785
    JSON, in which Decimal, date, time, UUID and Enum are written as pydantic writes them. NUL and lone
    surrogates become U+FFFD. Anything else, sets and bytes included, raises ``SerializationError`` naming its
    path. More than ``max_result_bytes`` of UTF-8 raises ``ToolResultTooLargeError``, whose message tells
    the model the size and the limit: half a result, or half a JSON text, would mislead it.
    """
    plain = _plain(value, "$", 0)
    text = plain if isinstance(plain, str) else canonical_bytes(plain).decode()
    size = len(text) if text.isascii() else len(text.encode())
    if size > definition.max_result_bytes:
        raise ToolResultTooLargeError(
            f"The tool {definition.name} ran, but its result is {size:,} bytes long and the limit is "
            f"{definition.max_result_bytes:,} bytes, so it is not shown. Ask for less, if the tool allows it."
        )
    return text


def describe_failure(error: BaseException) -> str:
    """What the model is told of an exception, fit to be stored.

    A ``ToolError`` speaks for itself (at most 20,000 characters of it); any other exception is told as its
    type's name and its message, 2,000 characters at most. What was cut off is marked.
    """
    try:
        message = str(error)
    except Exception:  # noqa: BLE001  an exception whose message cannot be had is still to be told
        message = "its message could not be read"
    if isinstance(error, ToolError):
        return _cut(storable_text(message), MAX_TOLD_CHARACTERS)
    name = type(error).__name__
    return _cut(storable_text(f"{name}: {message}" if message else name), MAX_FAILURE_CHARACTERS)


def _cut(text: str, limit: int) -> str:
    mark = "… [cut off]"
    return text if len(text) <= limit else text[: limit - len(mark)] + mark


def _plain(value: Any, path: str, depth: int) -> Any:
    """``value`` as plain JSON values with storable text; raises ``SerializationError`` naming the path."""
    if isinstance(value, enum.Enum):
        return _plain(value.value, path, depth)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return storable_text(str.__str__(value))
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise SerializationError(f"{path}: {value} is not a JSON number")
        return float(value)
    if isinstance(value, _LEAVES):
        return to_jsonable_python(value)
    if depth >= _MAX_DEPTH:
        raise SerializationError(f"{path}: nested deeper than {_MAX_DEPTH} levels")
    if isinstance(value, Mapping):
        return _plain_object(value, path, depth)
    if isinstance(value, list | tuple):
        return [_plain(item, f"{path}[{index}]", depth + 1) for index, item in enumerate(value)]
    if isinstance(getattr(type(value), "__pydantic_serializer__", None), SchemaSerializer):
        return _plain(_serialized(value, path), path, depth + 1)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        members = {item.name: getattr(value, item.name) for item in dataclasses.fields(value)}
        return _plain_object(members, path, depth)
    kind = type(value)
    raise SerializationError(
        f"{path}: a {kind.__module__}.{kind.__qualname__} is not a JSON value; "
        "return text, plain values, a dataclass or a pydantic model"
    )


def _plain_object(value: Mapping[Any, Any], path: str, depth: int) -> dict[str, Any]:
    members: dict[str, Any] = {}
    for key, item in value.items():
        plain = key.value if isinstance(key, enum.Enum) else key
        if not isinstance(plain, str):
            raise SerializationError(f"{path}: the key {key!r} is a {type(key).__name__}, not a string")
        name = storable_text(str.__str__(plain))
        if name in members:
            raise SerializationError(f"{path}: the key {name!r} is there twice once it can be stored")
        members[name] = _plain(item, f"{path}.{name}", depth + 1)
    return members


def _serialized(value: Any, path: str) -> Any:
    try:
        return type(value).__pydantic_serializer__.to_python(value, mode="json", by_alias=True)
    except ValueError as error:
        raise SerializationError(f"{path}: {error}") from error
