"""Canonical JSON (RFC 8785) and the names of content.

Whatever is hashed, compared or stored as content passes through here. A value that JSON cannot carry
raises ``SerializationError`` with its path; nothing is turned into a string silently.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from typing import Any

import rfc8785

from phronomy_django.domain.errors import SerializationError

__all__ = [
    "CANONICALIZATION_VERSION",
    "canonical_bytes",
    "canonical_object",
    "check_json",
    "content_id_of",
    "storable_text",
]

CANONICALIZATION_VERSION = 1
_MAX_INT = 2**53
_MAX_DEPTH = 100


def check_json(value: object, path: str = "$") -> bool:
    """Check that JSON can carry ``value``; True if Python's own encoder writes its canonical form.

    Raises ``SerializationError`` naming the path of the first value that cannot be carried: a type that
    JSON lacks, NaN or an infinity, an integer beyond ±2^53, a lone surrogate, a key that is no string,
    or nesting deeper than 100.
    """
    return _check(value, path, 0)


def _check(value: object, path: str, depth: int) -> bool:
    if value is None or value is True or value is False:
        return True
    kind = type(value)
    if kind is str:
        if not value.isascii():  # type: ignore[attr-defined]
            _check_text(value, path)  # type: ignore[arg-type]
        return True
    if kind is int:
        if not -_MAX_INT < value < _MAX_INT:  # type: ignore[operator]
            raise SerializationError(
                f"{path}: the integer {value} is beyond ±2^53, which JSON cannot carry exactly"
            )
        return True
    if kind is float:
        if not math.isfinite(value):  # type: ignore[arg-type]
            raise SerializationError(f"{path}: {value} is not a JSON number")
        return False
    if depth >= _MAX_DEPTH:
        raise SerializationError(f"{path}: nested deeper than {_MAX_DEPTH} levels")
    plain = True
    if kind is dict or isinstance(value, Mapping):
        for key, item in value.items():  # type: ignore[attr-defined]
            if type(key) is not str:
                raise SerializationError(f"{path}: the key {key!r} is a {type(key).__name__}, not a string")
            if not key.isascii():
                _check_text(key, path)
                plain = False
            plain &= _check(item, f"{path}.{key}", depth + 1)
        return plain and kind is dict
    if kind is list or kind is tuple:
        for index, item in enumerate(value):  # type: ignore[arg-type]
            plain &= _check(item, f"{path}[{index}]", depth + 1)
        return plain
    if isinstance(value, str | int):  # a subclass, such as a StrEnum: JSON carries its plain value
        _check(_plain(value), path, depth)
        return False
    raise SerializationError(f"{path}: a {kind.__module__}.{kind.__qualname__} is not a JSON value")


def _check_text(value: str, path: str) -> None:
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise SerializationError(
            f"{path}: the text holds a lone surrogate at position {error.start}"
        ) from None


def canonical_bytes(value: object, path: str = "$") -> bytes:
    """The RFC 8785 form of ``value`` as UTF-8 bytes; raises ``SerializationError`` naming the path."""
    if check_json(value, path):
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"), sort_keys=True).encode()
    try:
        return rfc8785.dumps(_plain(value))
    except rfc8785.CanonicalizationError as error:
        raise SerializationError(f"{path}: {error}") from error


def canonical_object(members: Mapping[str, bytes]) -> bytes:
    """Compose an object from members that are canonical JSON already; keys must be plain ASCII."""
    return b"{" + b",".join(b'"%b":%b' % (key.encode(), members[key]) for key in sorted(members)) + b"}"


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, str):
        return str(getattr(value, "value", value))
    if isinstance(value, int):
        return int(value)
    return value


def content_id_of(body: bytes) -> str:
    """The name of immutable bytes: ``sha256:`` and 64 hexadecimal digits."""
    return "sha256:" + hashlib.sha256(body).hexdigest()


def storable_text(text: str) -> str:
    """``text`` as a database can hold it: NUL and lone surrogates become the visible U+FFFD."""
    if "\x00" in text:
        text = text.replace("\x00", "\ufffd")
    if not text.isascii():
        text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
