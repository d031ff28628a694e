"""PostgreSQL array literals: a column of many rows as one text parameter.

Client time is what limits a runtime, so a column is encoded by a few passes over one joined string instead of
value by value. The cast in the statement (``%s::uuid[]``) gives the elements their type.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from django.db import models

__all__ = ["Encoder", "booleans", "encoder_for", "integers", "texts"]

Encoder = Callable[[Sequence[Any]], str]
_SEPARATOR = "\x00"


def integers(values: Sequence[Any]) -> str:
    if None in values:
        return "{" + ",".join(["NULL" if value is None else str(value) for value in values]) + "}"
    return "{" + ",".join(map(str, values)) + "}"


def words(values: Sequence[Any]) -> str:
    """Identities and content ids: never empty, and without a character that an array gives a meaning."""
    if None in values:
        return "{" + ",".join(["NULL" if value is None else value for value in values]) + "}"
    return "{" + ",".join(values) + "}"


def moments(values: Sequence[Any]) -> str:
    return "{" + ",".join(["NULL" if value is None else value.isoformat() for value in values]) + "}"


def booleans(values: Sequence[Any]) -> str:
    return "{" + ",".join(["t" if value else "f" for value in values]) + "}"


def blobs(values: Sequence[Any]) -> str:
    return "{" + ",".join(['"\\\\x' + bytes(value).hex() + '"' for value in values]) + "}"


def texts(values: Sequence[Any]) -> str:
    """Any text. A NUL, which PostgreSQL cannot hold, stays in the literal, and the driver refuses it."""
    if None not in values:
        joined = _SEPARATOR.join(values)
        if joined.count(_SEPARATOR) == len(values) - 1:
            escaped = joined.replace("\\", "\\\\").replace('"', '\\"')
            return '{"' + escaped.replace(_SEPARATOR, '","') + '"}'
    return "{" + ",".join([_text(value) for value in values]) + "}"


def _text(value: Any) -> str:
    if value is None:
        return "NULL"
    return '"' + str(value).replace("\\", "\\\\").replace('"', '\\"') + '"'


_BY_TYPE: dict[str, Encoder] = {
    "uuid": words,
    "timestamp with time zone": moments,
    "boolean": booleans,
    "bytea": blobs,
    "integer": integers,
    "bigint": integers,
    "smallint": integers,
    "numeric": integers,
}


def encoder_for(field: models.Field[Any, Any], connection: Any) -> tuple[str, Encoder]:
    """The element type and the encoder for the values of ``field``.

    Texts stay ``text``: the assignment to the column then refuses one that is too long, where a cast to
    ``varchar(n)`` would cut it silently.
    """
    kind = (field.rel_db_type(connection) or field.db_type(connection) or "text").split("(")[0].strip()
    if kind in _BY_TYPE:
        return kind, _BY_TYPE[kind]
    return ("jsonb", texts) if kind == "jsonb" else ("text", texts)
