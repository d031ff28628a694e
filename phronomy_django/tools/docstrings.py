"""A tool's docstring: what the model is told about the tool and about each parameter.

Reads the three common layouts (Google, numpy, reST). The description is what stands before the first
section or field list; what a layout says of returns, errors and examples is meant for people and left out.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

__all__ = ["Docstring", "parse_docstring"]

_PARAMETER_HEADINGS = frozenset(
    {"args", "arguments", "params", "parameters", "other parameters", "keyword args"}
)
_HEADINGS = _PARAMETER_HEADINGS | {
    "attributes",
    "example",
    "examples",
    "note",
    "notes",
    "raises",
    "references",
    "return",
    "returns",
    "see also",
    "todo",
    "warning",
    "warnings",
    "warns",
    "yield",
    "yields",
}
_GOOGLE_ITEM = re.compile(r"\*{0,2}(?P<name>\w+)\s*(?:\([^\n]*?\))?\s*:(?:\s+(?P<text>.*)|$)")
_NUMPY_ITEM = re.compile(r"(?P<names>\*{0,2}\w+(?:\s*,\s*\*{0,2}\w+)*)\s*(?::.*)?$")
_FIELD = re.compile(r":(?P<role>[a-z]+)(?P<argument>(?:\s[^:]*)?):(?:\s+(?P<text>.*)|$)")
_FIELD_ROLES = frozenset(
    "arg argument key keyword kwarg kwtype meta param parameter raise raises except exception "
    "return returns rtype type var ivar cvar vartype yield yields".split()
)
_PARAMETER_ROLES = frozenset({"arg", "argument", "key", "keyword", "kwarg", "param", "parameter"})


class Docstring(NamedTuple):
    description: str
    parameters: Mapping[str, str]


def parse_docstring(text: str | None) -> Docstring:
    """The description and the text of each documented parameter; nothing is required to be there."""
    lines = inspect.cleandoc(text or "").splitlines()
    start = next((index for index in range(len(lines)) if _opens(lines, index)), len(lines))
    description = "\n".join(lines[:start]).strip()
    parameters: dict[str, list[str]] = {}
    while start < len(lines):
        end = next((index for index in range(start + 1, len(lines)) if _opens(lines, index)), len(lines))
        for name, piece in _parameters(lines[start:end]):
            parameters.setdefault(name, []).append(piece)
        start = end
    joined = {name: " ".join(" ".join(pieces).split()) for name, pieces in parameters.items()}
    return Docstring(description, {name: piece for name, piece in joined.items() if piece})


def _opens(lines: list[str], index: int) -> bool:
    """Whether a section or a field starts at this line."""
    return _google_heading(lines, index) or _numpy_heading(lines, index) or _field(lines[index]) is not None


def _google_heading(lines: list[str], index: int) -> bool:
    line = lines[index]
    if not (line[:1].strip() and line.rstrip().endswith(":") and line.rstrip()[:-1].lower() in _HEADINGS):
        return False
    body = next((later for later in lines[index + 1 :] if later.strip()), "")
    return body[:1].isspace()


def _numpy_heading(lines: list[str], index: int) -> bool:
    following = lines[index + 1].rstrip() if index + 1 < len(lines) else ""
    return lines[index].rstrip().lower() in _HEADINGS and len(following) >= 3 and set(following) <= {"-", "="}


def _field(line: str) -> re.Match[str] | None:
    match = _FIELD.match(line)
    return match if match and match["role"] in _FIELD_ROLES else None


def _parameters(block: list[str]) -> Iterator[tuple[str, str]]:
    """Pairs of a parameter's name and a piece of its text, from one section or one field."""
    heading, body = block[0].rstrip().rstrip(":").lower(), block[1:]
    field = _field(block[0])
    if field is not None:
        words = field["argument"].split()
        if field["role"] in _PARAMETER_ROLES and words:
            yield words[-1].lstrip("*"), " ".join([field["text"] or "", *_indented(body)])
    elif heading in _PARAMETER_HEADINGS and block[0].rstrip().endswith(":"):
        yield from _google_items(body)
    elif heading in _PARAMETER_HEADINGS:
        yield from _numpy_items(body[1:])


def _indented(lines: list[str]) -> Iterator[str]:
    for line in lines:
        if line.strip() and not line[0].isspace():
            return
        yield line.strip()


def _google_items(lines: list[str]) -> Iterator[tuple[str, str]]:
    margin: int | None = None
    name = ""
    for line in lines:
        if not line.strip():
            continue
        indent = len(line) - len(line.lstrip())
        if indent == 0:
            return
        margin = indent if margin is None else margin
        item = _GOOGLE_ITEM.match(line.strip()) if indent <= margin else None
        if item:
            name = item["name"]
        if name:
            yield name, (item["text"] or "") if item else line.strip()


def _numpy_items(lines: list[str]) -> Iterator[tuple[str, str]]:
    names: list[str] = []
    for line in lines:
        if not line.strip():
            continue
        if line[0].isspace():
            for name in names:
                yield name, line.strip()
            continue
        item = _NUMPY_ITEM.match(line)
        if item is None:
            return
        names = [name.strip().lstrip("*") for name in item["names"].split(",")]
