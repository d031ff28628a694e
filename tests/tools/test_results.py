"""What goes back to the model."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from types import MappingProxyType
from typing import Any, NamedTuple
from uuid import UUID

import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phronomy_django.domain.errors import SerializationError
from phronomy_django.tools import (
    ToolArgumentError,
    ToolError,
    ToolResultTooLargeError,
    describe_failure,
    render_result,
    tool,
)


class Colour(Enum):
    RED = "red"


class Word(StrEnum):
    YES = "yes"


class Level(IntEnum):
    HIGH = 3


class Text(str):
    """As Django's SafeString is one."""

    def __str__(self) -> str:
        return "not this"


class Point(NamedTuple):
    x: int
    y: int


@dataclass(frozen=True)
class Line:
    amount: Decimal
    tags: tuple[str, ...]


@pydantic.dataclasses.dataclass
class Box:
    weight: Decimal


class Order(pydantic.BaseModel):
    number: int
    placed: date
    lines: list[Line] = []
    label: str = pydantic.Field(default="x", alias="Label")


class Ids(pydantic.RootModel[list[int]]):
    pass


class Cyclic(pydantic.BaseModel):
    inner: Any = None


@tool
def look() -> Any: ...


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("as it is { ü", "as it is { ü"),
        ("", ""),
        ("a\x00b\ud800", "a\ufffdb\ufffd"),
        (Text("safe"), "safe"),
        (Word.YES, "yes"),
        (Colour.RED, "red"),
        (Level.HIGH, "3"),
        (None, "null"),
        (True, "true"),
        (3, "3"),
        (1.0, "1"),
        (0.1, "0.1"),
        ({"b": 1, "a": [None, "ü"]}, '{"a":[null,"ü"],"b":1}'),
        (OrderedDict(b=1, a=2), '{"a":2,"b":1}'),
        (MappingProxyType({"a": 1}), '{"a":1}'),
        ({Colour.RED: 1, Word.YES: 2}, '{"red":1,"yes":2}'),
        ((1, "x"), '[1,"x"]'),
        (Point(1, 2), "[1,2]"),
        (["a\x00", {"k\x00": "\udfff"}], '["a\ufffd",{"k\ufffd":"\ufffd"}]'),
        (Decimal("1.50"), "1.50"),
        ([Decimal("1.50")], '["1.50"]'),
        ([datetime(2030, 1, 2, 3, 4, tzinfo=UTC)], '["2030-01-02T03:04:00Z"]'),
        ([date(2030, 1, 2), time(3, 4), timedelta(seconds=5)], '["2030-01-02","03:04:00","PT5S"]'),
        ([UUID(int=1)], '["00000000-0000-0000-0000-000000000001"]'),
        (Line(Decimal("1.5"), ("a",)), '{"amount":"1.5","tags":["a"]}'),
        (Box(Decimal("1.5")), '{"weight":"1.5"}'),
        (Ids([1, 2]), "[1,2]"),
        (
            Order(number=1, placed=date(2030, 1, 2), lines=[Line(Decimal(2), ())], Label="y"),
            '{"Label":"y","lines":[{"amount":"2","tags":[]}],"number":1,"placed":"2030-01-02"}',
        ),
        (
            [Order(number=1, placed=date(2030, 1, 2))],
            '[{"Label":"x","lines":[],"number":1,"placed":"2030-01-02"}]',
        ),
    ],
    ids=repr,
)
def test_a_result_has_its_text(value: object, text: str) -> None:
    assert render_result(look, value) == text


def cycle() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


def model_cycle() -> Cyclic:
    value = Cyclic()
    value.inner = value
    return value


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: object(), r"\$: a builtins.object is not a JSON value"),
        (lambda: {"orders": [{"raw": b"x"}]}, r"\$\.orders\[0\]\.raw: a builtins.bytes"),
        (lambda: [{1, 2}], r"\$\[0\]: a builtins.set"),
        (lambda: (item for item in ()), r"\$: a builtins.generator"),
        (lambda: Order, r"\$: a .*ModelMetaclass"),
        (lambda: Line, r"\$: a builtins.type"),
        (lambda: {"a": {1: "x"}}, r"\$\.a: the key 1 is a int"),
        (lambda: {"a\x00": 1, "a\ufffd": 2}, r"\$: the key .* is there twice"),
        (lambda: [float("nan")], r"\$\[0\]: nan is not a JSON number"),
        (lambda: {"x": 2**53}, r"\$\.x: the integer 9007199254740992 is beyond"),
        (cycle, r"\$(\[0\])+: nested deeper than 100"),
        (model_cycle, r"\$: "),
        (lambda: [Cyclic(inner=object())], r"\$\[0\]: "),
    ],
)
def test_what_json_cannot_carry_is_refused_by_its_path(make: Callable[[], object], reason: str) -> None:
    with pytest.raises(SerializationError, match=f"^{reason}"):
        render_result(look, make())


def test_a_result_over_the_limit_is_told_with_its_size_and_the_limit() -> None:
    @tool(max_result_bytes=10)
    def small() -> str: ...  # type: ignore[empty-body]

    assert render_result(small, "é" * 5) == "é" * 5
    with pytest.raises(ToolResultTooLargeError, match=r"small ran, .* 11 bytes .* 10 bytes") as caught:
        render_result(small, "é" * 5 + "x")
    assert describe_failure(caught.value) == str(caught.value)
    with pytest.raises(ToolResultTooLargeError):
        render_result(small, {"key": "value"})


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53) + 1, 2**53 - 1) | st.floats(-1e15, 1e15) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)


@given(st.lists(JSON, max_size=4))
def test_json_values_come_back_as_they_were(value: list[Any]) -> None:
    text = render_result(look, value)

    assert "\x00" not in text
    assert render_result(look, json.loads(text)) == text


class Silent(Exception):  # noqa: N818
    def __str__(self) -> str:
        raise RuntimeError("no words")


class TestDescribeFailure:
    @pytest.mark.parametrize(
        ("error", "text"),
        [
            (ToolError("There is no order 7."), "There is no order 7."),
            (ToolArgumentError("- x: it is missing"), "- x: it is missing"),
            (ValueError("bad"), "ValueError: bad"),
            (ValueError(), "ValueError"),
            (KeyError("x"), "KeyError: 'x'"),
            (OSError("a\x00b\ud800"), "OSError: a\ufffdb\ufffd"),
            (ToolError("a\x00"), "a\ufffd"),
            (Silent(), "Silent: its message could not be read"),
        ],
        ids=repr,
    )
    def test_a_failure_has_its_words(self, error: Exception, text: str) -> None:
        assert describe_failure(error) == text

    def test_the_words_of_a_subclass_of_tool_error_are_told_as_they_are(self) -> None:
        class OutOfStockError(ToolError):
            """Nothing is left."""

        assert describe_failure(OutOfStockError()) == "Nothing is left."

    def test_a_foreign_message_is_cut_at_two_thousand_characters(self) -> None:
        exact = "x" * (2_000 - len("ValueError: "))

        assert describe_failure(ValueError(exact)) == "ValueError: " + exact
        cut = describe_failure(ValueError(exact + "x"))
        assert len(cut) == 2_000
        assert cut.endswith("x… [cut off]")

    def test_a_deliberate_message_may_be_ten_times_as_long(self) -> None:
        assert describe_failure(ToolError("x" * 20_000)) == "x" * 20_000
        cut = describe_failure(ToolError("x" * 20_001))
        assert len(cut) == 20_000
        assert cut.endswith("… [cut off]")
