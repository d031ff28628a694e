"""From the JSON text that a model sent to checked arguments, or to a sentence that helps the model.

The arguments that are stored and the values that the tool gets are the same by construction: the values
are always made from the stored canonical bytes, in a first attempt as in one after a restart.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from types import MappingProxyType
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails, PydanticSerializationError

from phronomy_django.domain.canonical import canonical_bytes, storable_text
from phronomy_django.domain.errors import SerializationError
from phronomy_django.tools.definition import ToolDefinition
from phronomy_django.tools.errors import ToolArgumentError

__all__ = ["MAX_ARGUMENT_BYTES", "MAX_ARGUMENT_DEPTH", "REDACTED", "BoundArguments", "parse_arguments"]

MAX_ARGUMENT_BYTES = 1_000_000
MAX_ARGUMENT_DEPTH = 100
REDACTED = "[redacted]"

_MAX_DIGITS = 400
_MAX_PROBLEMS = 20
_MAX_NAME = 120
_MAX_REASON = 400
_BRACKETS = re.compile(r'"(?:[^"\\]++|\\.)*+"?|[\[{]|[\]}]', re.DOTALL)
_ESCAPE = re.compile(r"\\(?:u0000|.)", re.DOTALL)


@dataclass(frozen=True, slots=True, repr=False)
class BoundArguments:
    """The checked arguments of one call, defaults included.

    ``canonical`` is their RFC 8785 form: what is stored and what an approval is bound to. ``redacted`` is
    what logs and the admin may show. Two are equal if the tool's name and the bytes are.
    """

    definition: ToolDefinition[..., Any] = field(compare=False)
    tool_name: str
    canonical: bytes
    redacted: Mapping[str, Any] = field(compare=False)

    @property
    def kwargs(self) -> dict[str, Any]:
        """The values for the function, made anew each time, so that no attempt sees what another changed."""
        signature = self.definition.signature
        return signature.values(signature.model.model_validate_json(self.canonical))

    def __repr__(self) -> str:
        return f"<arguments of {self.tool_name!r}: {dict(self.redacted)!r}>"


def parse_arguments(definition: ToolDefinition[..., Any], raw_json_text: str) -> BoundArguments:
    """Check what a model sent against the tool's parameters.

    Blank text counts as ``{}``. Values are taken as pydantic takes them from JSON (``"3"`` fits an int); a
    number with more digits than a float holds reaches a ``Decimal`` exactly. NUL and lone surrogates become
    U+FFFD. Raises ``ToolArgumentError``, written for the model and naming each wrong field, for bad JSON,
    anything but an object, a missing, unknown, repeated or wrong field, more than 1 MB or 100 levels. Raises
    ``SerializationError`` if the tool's types are such that a value does not survive being stored.
    Other exceptions of a tool's own validator (not ValueError, AssertionError) reach the caller.
    """
    text = _clean_object_text(definition, raw_json_text)
    model = definition.signature.model
    try:
        arguments = model.model_validate_json(text)
    except ValidationError as error:
        problems = [_problem(definition, detail) for detail in error.errors(include_url=False)]
        raise _refusal(definition, problems) from None
    plain = _dumped(definition, arguments)
    canonical = _canonical(definition, plain)
    _check_size(definition, len(canonical))  # what was taken once has to be taken again from the record
    _check_survival(definition, arguments, canonical)
    shown = {key: REDACTED if key in definition.redact else value for key, value in plain.items()}
    return BoundArguments(definition, definition.name, canonical, MappingProxyType(shown))


def _dumped(definition: ToolDefinition[..., Any], arguments: BaseModel) -> dict[str, Any]:
    try:
        return arguments.model_dump(mode="json", by_alias=True, round_trip=True, warnings="error")
    except (PydanticSerializationError, ValueError) as error:
        raise SerializationError(
            f"Tool {definition.name!r}: its arguments cannot be stored: {error}"
        ) from error


def _canonical(definition: ToolDefinition[..., Any], plain: Mapping[str, Any]) -> bytes:
    try:
        return canonical_bytes(plain, "")
    except SerializationError as error:
        path, _, reason = str(error).partition(": ")
        raise _refusal(definition, [(_short(path.lstrip(".")), reason)]) from None


def _check_survival(definition: ToolDefinition[..., Any], arguments: BaseModel, canonical: bytes) -> None:
    """What was validated has to come back the same from what will be stored."""
    advice = "use a simpler type, or a validator that changes nothing the second time."
    try:
        again = definition.signature.model.model_validate_json(canonical)
    except ValidationError as error:
        where = ".".join(str(part) for part in error.errors(include_url=False)[0]["loc"])
        raise SerializationError(
            f"Tool {definition.name!r}: {where} is not accepted again once it is stored; {advice}"
        ) from error
    first, second = definition.signature.values(arguments), definition.signature.values(again)
    for name, value in first.items():
        if value != second[name]:
            raise SerializationError(
                f"Tool {definition.name!r}: {name} does not come back the same once it is stored; {advice}"
            )
    if _canonical(definition, _dumped(definition, again)) != canonical:
        raise SerializationError(f"Tool {definition.name!r}: its arguments have no stable form; {advice}")


class _UnfitError(ValueError):
    """Something in the text itself is wrong, found while it is read."""


def _clean_object_text(definition: ToolDefinition[..., Any], raw: str) -> str:
    """The JSON object in ``raw``, read strictly and written again as text that can be stored."""
    size = len(raw) if raw.isascii() else len(raw.encode("utf-8", "surrogatepass"))
    _check_size(definition, size)
    if _deeper_than(raw, MAX_ARGUMENT_DEPTH):
        raise _refusal(definition, [("", f"they are nested deeper than {MAX_ARGUMENT_DEPTH} levels")])
    try:
        value = _read(raw) if raw.strip() else {}
    except json.JSONDecodeError as error:
        reason = f"they are not valid JSON: {error.msg} at line {error.lineno} column {error.colno}"
        raise _refusal(definition, [("", reason)]) from None
    except _UnfitError as error:
        raise _refusal(definition, [("", str(error))]) from None
    if not isinstance(value, dict):
        reason = f"they have to be one JSON object, not {_json_kind(value)}"
        raise _refusal(definition, [("", reason)])
    text = storable_text(json.dumps(value, ensure_ascii=False, separators=(",", ":")))
    if "\\u0000" in text:
        text = _ESCAPE.sub(lambda escape: "\ufffd" if escape[0] == "\\u0000" else escape[0], text)
    return text


def _check_size(definition: ToolDefinition[..., Any], size: int) -> None:
    if size > MAX_ARGUMENT_BYTES:
        reason = f"they are {size:,} bytes long; the limit is {MAX_ARGUMENT_BYTES:,} bytes"
        raise _refusal(definition, [("", reason)])


def _deeper_than(raw: str, limit: int) -> bool:
    if raw.count("[") + raw.count("{") <= limit:
        return False
    depth = 0
    for match in _BRACKETS.finditer(raw):
        first = match[0][0]
        if first in "[{":
            depth += 1
            if depth > limit:
                return True
        elif first in "]}":
            depth -= 1
    return False


def _read(raw: str) -> Any:
    return json.loads(
        raw,
        object_pairs_hook=_object,
        parse_float=_number,
        parse_int=_integer,
        parse_constant=_constant,
    )


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members: dict[str, Any] = {}
    for key, value in pairs:
        name = storable_text(key)
        if name in members:
            raise _UnfitError(f"the field {_short(name)} is given twice in one object")
        members[name] = value
    return members


def _number(literal: str) -> float | str:
    """A float, or the literal itself where a float would be another number (a ``Decimal`` takes it)."""
    if len(literal) > _MAX_DIGITS:
        raise _UnfitError(f"a number has more than {_MAX_DIGITS} digits")
    value = float(literal)
    if not math.isfinite(value):
        raise _UnfitError(f"the number {_short(literal)} is out of range")
    return value if Decimal(repr(value)) == Decimal(literal) else literal


def _integer(literal: str) -> int:
    if len(literal) > _MAX_DIGITS:
        raise _UnfitError(f"a number has more than {_MAX_DIGITS} digits")
    return int(literal)


def _constant(literal: str) -> Any:
    raise _UnfitError(f"{literal} is not a JSON value")


def _refusal(definition: ToolDefinition[..., Any], problems: Iterable[tuple[str, str]]) -> ToolArgumentError:
    found = list(problems)
    lines = [f"- {where}: {what}" if where else f"- {what}" for where, what in found[:_MAX_PROBLEMS]]
    if len(found) > _MAX_PROBLEMS:
        lines.append(f"- and {len(found) - _MAX_PROBLEMS} more")
    head = f"The arguments of {definition.name} were not accepted and the tool was not run:"
    tail = "Call it again with corrected arguments."
    return ToolArgumentError("\n".join([head, *lines, tail]), found)


def _problem(definition: ToolDefinition[..., Any], detail: ErrorDetails) -> tuple[str, str]:
    """One field and what is wrong with it. The value itself is never repeated: it may be a secret."""
    location, kind, message = detail["loc"], detail["type"], detail["msg"]
    parameter = location[0] if location else ""
    if kind == "missing":
        expected = _expected(definition, parameter) if len(location) == 1 else ""
        return _path(location), "it is missing" + (f"; expected {expected}" if expected else "")
    if kind == "extra_forbidden" and len(location) == 1:
        known = ", ".join(definition.signature.parameters) or "none"
        return _path(location), f"there is no such parameter; the parameters are: {known}"
    if parameter in definition.redact and kind in ("value_error", "assertion_error"):
        return _path(location), "it does not pass the tool's own check"
    reason = message[:1].lower() + message[1:]
    reason = reason.replace("input should be", "it should be", 1) + f" (got {_json_kind(detail['input'])})"
    return _path(location), storable_text(
        reason if len(reason) <= _MAX_REASON else reason[:_MAX_REASON] + "…"
    )


def _expected(definition: ToolDefinition[..., Any], parameter: int | str) -> str:
    schema = definition.signature.schema.get("properties", {}).get(parameter, {})
    options = schema.get("anyOf", [schema])
    kinds: list[str] = []
    for option in options:
        if "enum" in option:
            kinds.append("one of " + ", ".join(json.dumps(value) for value in option["enum"]))
        elif "const" in option:
            kinds.append(json.dumps(option["const"]))
        elif "format" in option:
            kinds.append(f"{option['type']} ({option['format']})")
        elif "type" in option:
            kinds.append(str(option["type"]))
        elif "$ref" in option:
            kinds.append(option["$ref"].rpartition("/")[2])
    return " or ".join(kinds)


def _path(location: tuple[int | str, ...]) -> str:
    path = ""
    for part in location:
        if isinstance(part, int):
            path += f"[{part}]"
        else:
            path += f".{_short(part)}" if path else _short(part)
    return path


def _short(text: str) -> str:
    clean = storable_text(text if len(text) <= _MAX_NAME else text[:_MAX_NAME] + "…")
    return clean if clean and clean.isprintable() else json.dumps(clean)


def _json_kind(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case int() | float():
            return "a number"
        case str():
            return "a string"
        case list() | tuple():
            return "an array"
    return "an object"
