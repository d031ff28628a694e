"""From a model's JSON text to checked arguments, or to a sentence that helps the model."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Literal
from uuid import UUID

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PlainSerializer, TypeAdapter

from phronomy_django.domain.errors import SerializationError
from phronomy_django.tools import ToolArgumentError, ToolContext, parse_arguments, tool


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Strict(BaseModel):
    model_config = ConfigDict(strict=True)

    day: date
    count: int = 1


@dataclass
class Parcel:
    weight: Decimal
    tags: list[str]


@tool(redact=("card_number",))
def refund(
    ctx: ToolContext,
    order_id: int,
    amount: Decimal,
    card_number: str = "",
    colours: list[Colour] = [],  # noqa: B006  the default is copied for each call
    note: str | None = None,
) -> str:
    return f"{order_id} {amount} {card_number} {colours} {note}"


@tool
def everything(
    number: int,
    share: float,
    amount: Decimal,
    at: datetime,
    day: date,
    hour: time,
    lasts: timedelta,
    colour: Colour,
    size: Literal["s", "m"],
    strict: Strict,
    parcel: Parcel,
    pair: tuple[int, str],
    counts: dict[int, float],
    identity: UUID,
    raw: bytes,
    whatever: Any,
    either: int | str | None = None,
) -> None: ...


@tool
def anything(value: Any = None) -> None: ...


def refused(definition: Any, raw: str) -> ToolArgumentError:
    with pytest.raises(ToolArgumentError) as caught:
        parse_arguments(definition, raw)
    return caught.value


def test_arguments_become_python_values_with_defaults_filled_in() -> None:
    bound = parse_arguments(refund, '{"order_id": 7, "amount": "1.50", "colours": ["red"]}')

    assert bound.kwargs == {
        "order_id": 7,
        "amount": Decimal("1.50"),
        "card_number": "",
        "colours": [Colour.RED],
        "note": None,
    }
    assert bound.canonical == (
        b'{"amount":"1.50","card_number":"","colours":["red"],"note":null,"order_id":7}'
    )


def test_the_order_of_fields_and_the_spelling_of_numbers_do_not_change_the_canonical_bytes() -> None:
    one = parse_arguments(refund, '{"order_id": 7, "amount": 1.5}')
    two = parse_arguments(refund, ' {"amount":"1.5",\n"order_id":"7", "note": null}')

    assert one.canonical == two.canonical
    assert one == two
    assert one != parse_arguments(refund, '{"order_id": 8, "amount": 1.5}')


def test_each_reading_of_the_values_is_a_fresh_one() -> None:
    bound = parse_arguments(refund, '{"order_id": 7, "amount": 1}')
    bound.kwargs["colours"].append(Colour.BLUE)

    assert bound.kwargs["colours"] == []


def test_a_default_is_not_shared_between_calls() -> None:
    parse_arguments(refund, '{"order_id": 7, "amount": 1}').kwargs["colours"].append(Colour.BLUE)

    assert parse_arguments(refund, '{"order_id": 7, "amount": 1}').kwargs["colours"] == []


@pytest.mark.parametrize("raw", ["", "  \n"])
def test_blank_text_counts_as_no_arguments(raw: str) -> None:
    assert parse_arguments(anything, raw).canonical == b'{"value":null}'


def test_a_redacted_value_is_in_the_arguments_but_not_in_what_may_be_shown() -> None:
    bound = parse_arguments(refund, '{"order_id": 7, "amount": 1, "card_number": "4111"}')

    assert bound.kwargs["card_number"] == "4111"
    assert bound.redacted["card_number"] == "[redacted]"
    assert bound.redacted["order_id"] == 7
    assert "4111" not in repr(bound)
    with pytest.raises(TypeError):
        bound.redacted["order_id"] = 8  # type: ignore[index]


class TestNumbers:
    @pytest.mark.parametrize(
        "literal",
        ["0.1", "19.99", "12345678901234567890.123456789", "123456789012345678901234567890", "1e5", "-0.30"],
    )
    def test_a_decimal_gets_the_number_that_was_written(self, literal: str) -> None:
        bound = parse_arguments(refund, f'{{"order_id": 1, "amount": {literal}}}')

        assert bound.kwargs["amount"] == Decimal(literal)

    def test_a_float_takes_more_digits_than_it_holds(self) -> None:
        @tool
        def scale(by: float) -> None: ...

        assert parse_arguments(scale, '{"by": 3.14159265358979323846264}').kwargs == {"by": math.pi}

    @pytest.mark.parametrize(
        "literal", ["NaN", "Infinity", "-Infinity", "1e400", "1" * 401, "0." + "1" * 401]
    )
    def test_what_is_no_finite_number_of_a_sane_length_is_refused(self, literal: str) -> None:
        assert refused(anything, f'{{"value": {literal}}}').problems[0][0] == ""

    @pytest.mark.parametrize("text", ["NaN", "inf", "-Infinity"])
    def test_a_number_written_as_text_is_finite_too(self, text: str) -> None:
        @tool
        def scale(by: float) -> None: ...

        assert dict(refused(scale, json.dumps({"by": text})).problems) == {
            "by": "it should be a finite number (got a string)"
        }

    def test_a_default_of_a_close_type_becomes_the_declared_one(self) -> None:
        @tool
        def pay(amount: Decimal = 5) -> None: ...  # type: ignore[assignment]

        bound = parse_arguments(pay, "{}")
        assert bound.canonical == b'{"amount":"5"}'
        assert type(bound.kwargs["amount"]) is Decimal

    def test_an_integer_that_json_cannot_carry_exactly_is_refused_by_name(self) -> None:
        error = refused(refund, '{"order_id": 9007199254740993, "amount": 1}')

        assert [field for field, _ in error.problems] == ["order_id"]
        assert "2^53" in str(error)

    @pytest.mark.parametrize("literal", ["9007199254740992.0", "1e20"])
    def test_a_float_that_would_come_back_as_such_an_integer_is_refused_by_name(self, literal: str) -> None:
        assert refused(anything, f'{{"value": [{literal}]}}').problems[0][0] == "value[0]"


class TestRefusals:
    def test_every_wrong_field_is_named_with_what_was_expected(self) -> None:
        error = refused(
            refund, '{"order_id": "seven", "colours": ["red", "green"], "note": 3, "urgent": true}'
        )

        problems = dict(error.problems)
        assert set(problems) == {"order_id", "amount", "colours[1]", "note", "urgent"}
        assert "valid integer" in problems["order_id"]
        assert problems["amount"] == "it is missing; expected number or string"
        assert "'red' or 'blue'" in problems["colours[1]"]
        assert problems["note"] == "it should be a valid string (got a number)"
        assert "the parameters are: order_id, amount, card_number, colours, note" in problems["urgent"]
        message = str(error)
        assert message.startswith("The arguments of refund were not accepted and the tool was not run:\n- ")
        assert message.endswith("Call it again with corrected arguments.")
        assert all(f"- {field}: {problem}" in message for field, problem in problems.items())

    def test_a_missing_field_is_told_with_its_type(self) -> None:
        problems = dict(refused(everything, "{}").problems)

        assert problems["number"] == "it is missing; expected integer"
        assert problems["at"] == "it is missing; expected string (date-time)"
        assert problems["size"] == 'it is missing; expected one of "s", "m"'
        assert problems["parcel"] == "it is missing; expected Parcel"
        assert problems["whatever"] == "it is missing"
        assert "either" not in problems

    def test_a_single_literal_is_told_as_itself(self) -> None:
        @tool
        def confirm(word: Literal["yes"]) -> None: ...

        assert dict(refused(confirm, "{}").problems) == {"word": 'it is missing; expected "yes"'}

    def test_a_wrong_field_inside_another_is_named_by_its_path(self) -> None:
        raw = '{"strict": {"day": "soon", "count": "1"}, "parcel": {"weight": 1, "tags": [3]}}'
        problems = dict(refused(everything, raw).problems)

        assert {"strict.day", "strict.count", "parcel.tags[0]"} <= set(problems)

    @pytest.mark.parametrize(
        ("raw", "reason"),
        [
            ("{", "not valid JSON: .* line 1 column 2"),
            ('{"order_id": 1,}', "not valid JSON"),
            ('{"note": "a\nb"}', "not valid JSON"),
            ("{} {}", "not valid JSON"),
            ("\ud800", "not valid JSON"),
            ("[]", "one JSON object, not an array"),
            ('"x"', "one JSON object, not a string"),
            ("null", "one JSON object, not null"),
            ("true", "one JSON object, not a boolean"),
            ("3", "one JSON object, not a number"),
            ('{"order_id": 1, "order_id": 2, "amount": 1}', "order_id is given twice"),
        ],
    )
    def test_text_that_is_no_json_object_is_refused(self, raw: str, reason: str) -> None:
        error = refused(refund, raw)

        assert [field for field, _ in error.problems] == [""]
        with pytest.raises(ToolArgumentError, match=reason):
            raise error

    def test_no_message_repeats_a_value(self) -> None:
        for raw in ('{"card_number": ["hidden-4111"]}', '{"amount": "hidden-4111"}', '{"x": hidden-4111'):
            assert "hidden-4111" not in str(refused(refund, raw))

    def test_the_words_of_a_check_are_told_but_not_for_a_redacted_parameter(self) -> None:
        def checked(value: str) -> str:
            raise ValueError(f"{value} is no card")

        def pay(card: Annotated[str, AfterValidator(checked)]) -> None: ...

        pay.__annotations__["card"] = Annotated[str, AfterValidator(checked)]
        assert "4111 is no card" in str(refused(tool(pay), '{"card": "4111"}'))
        assert "4111" not in str(refused(tool(redact=("card",))(pay), '{"card": "4111"}'))

    def test_a_message_stays_short_and_storable_whatever_the_model_sent(self) -> None:
        raw = json.dumps({"\x00\ud800" + "x" * 5000 + str(index): index for index in range(100)})
        error = refused(refund, raw)

        assert len(str(error)) < 10_000
        assert "\x00" not in str(error)
        assert str(error).encode()
        assert "- and 82 more" in str(error)
        assert len(error.problems) == 102

    def test_a_tool_without_parameters_says_so(self) -> None:
        @tool
        def nothing() -> None: ...

        assert "the parameters are: none" in str(refused(nothing, '{"x": 1}'))


class TestLimits:
    def test_a_million_bytes_are_taken_and_one_more_is_refused(self) -> None:
        frame = len('{"value":""}')
        parse_arguments(anything, '{"value":"%s"}' % ("x" * (1_000_000 - frame)))

        error = refused(anything, '{"value":"%s"}' % ("x" * (1_000_001 - frame)))
        assert "1,000,001 bytes" in str(error)
        assert "1,000,000 bytes" in str(error)

    def test_arguments_that_grow_over_the_limit_when_they_are_written_out_are_refused(self) -> None:
        @tool
        def add(numbers: list[float]) -> None: ...

        raw = json.dumps({"numbers": [1e20] * 100_000}, separators=(",", ":")).replace("e+", "e")
        assert len(raw) < 1_000_000
        assert "the limit is 1,000,000 bytes" in str(refused(add, raw))

    def test_bytes_are_counted_not_characters(self) -> None:
        assert "bytes" in str(refused(anything, '{"value":"%s"}' % ("é" * 500_000)))

    def test_a_hundred_levels_are_taken_and_one_more_is_refused(self) -> None:
        parse_arguments(anything, '{"value":' + "[" * 99 + "]" * 99 + "}")

        error = refused(anything, '{"value":' + "[" * 100 + "]" * 100 + "}")
        assert error.problems == (("", "they are nested deeper than 100 levels"),)

    @pytest.mark.parametrize("raw", ["[" * 400_000, '{"a":' * 100_000, '{"value":"' + "[" * 400_000])
    def test_hostile_nesting_is_refused_and_not_followed(self, raw: str) -> None:
        refused(anything, raw)

    def test_brackets_inside_strings_and_beside_each_other_are_no_nesting(self) -> None:
        value = ["[{" * 300, '"' + "[" * 300, "\\", *([] for _ in range(300)), *({} for _ in range(300))]

        assert parse_arguments(anything, json.dumps({"value": value})).kwargs == {"value": value}


class TestStorableText:
    def test_nul_and_lone_surrogates_become_visible(self) -> None:
        bound = parse_arguments(anything, r'{"value": {"a\u0000": ["\ud800x", "\\u0000", "\ud83d\ude00"]}}')

        assert bound.kwargs == {"value": {"a\ufffd": ["\ufffdx", "\\u0000", "😀"]}}

    def test_two_fields_that_become_one_are_refused(self) -> None:
        assert "given twice" in str(refused(anything, r'{"value": {"\ud800": 1, "\u0000": 2}}'))

    def test_the_words_of_a_check_are_made_storable(self) -> None:
        def checked(value: str) -> str:
            raise ValueError("no\x00")

        def pay(card: str) -> None: ...

        pay.__annotations__["card"] = Annotated[str, AfterValidator(checked)]
        assert "no\ufffd" in str(refused(tool(pay), '{"card": "x"}'))


class TestSurvival:
    """What is shown, stored and run is one and the same, or the call is refused."""

    def test_a_validator_that_changes_its_own_result_is_refused(self) -> None:
        def shout(text: str) -> None: ...

        shout.__annotations__["text"] = Annotated[str, AfterValidator(lambda text: text + "!")]
        with pytest.raises(SerializationError, match="'shout': text does not come back the same"):
            parse_arguments(tool(shout), '{"text": "a"}')

    def test_a_validator_that_refuses_its_own_result_is_refused(self) -> None:
        def cut(text: str) -> None: ...

        cut.__annotations__["text"] = Annotated[
            str, Field(min_length=2), AfterValidator(lambda text: text[:1])
        ]
        with pytest.raises(SerializationError, match="'cut': text is not accepted again"):
            parse_arguments(tool(cut), '{"text": "abc"}')

    def test_a_value_that_json_cannot_carry_is_refused(self) -> None:
        def odd(value: str) -> None: ...

        odd.__annotations__["value"] = Annotated[Any, AfterValidator(lambda value: object())]
        with pytest.raises(SerializationError, match="'odd': its arguments cannot be stored"):
            parse_arguments(tool(odd), '{"value": "abc"}')

    def test_a_form_that_differs_each_time_is_refused(self) -> None:
        forms = itertools.count()

        def odd(value: str) -> None: ...

        odd.__annotations__["value"] = Annotated[str, PlainSerializer(lambda value: f"{value} {next(forms)}")]
        with pytest.raises(SerializationError, match="'odd'"):
            parse_arguments(tool(odd), '{"value": "x"}')

    def test_values_that_are_equal_but_written_differently_are_refused(self) -> None:
        forms = itertools.count()

        def odd(value: str) -> None: ...

        odd.__annotations__["value"] = Annotated[
            str, AfterValidator(lambda value: "x"), PlainSerializer(lambda value: f"{next(forms)}")
        ]
        with pytest.raises(SerializationError, match="'odd': its arguments have no stable form"):
            parse_arguments(tool(odd), '{"value": "x"}')

    def test_a_model_field_that_is_left_out_of_json_is_refused(self) -> None:
        class Partial(BaseModel):
            hidden: str = Field(default="", exclude=True)

        def odd(value: Any) -> None: ...

        odd.__annotations__["value"] = Partial
        with pytest.raises(SerializationError, match="'odd': value does not come back the same"):
            parse_arguments(tool(odd), '{"value": {"hidden": "x"}}')


JSON_TEXT = st.text(st.characters(exclude_categories=()), max_size=20)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53) + 1, 2**53 - 1)
    | st.floats(-1e15, 1e15, allow_nan=False)
    | JSON_TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(JSON_TEXT, inner, max_size=4),
    max_leaves=10,
)
SAFE_INTEGERS = st.integers(-(2**53) + 1, 2**53 - 1)
SENT = st.fixed_dictionaries(
    {
        "number": SAFE_INTEGERS,
        "share": st.floats(allow_nan=False, allow_infinity=False),
        "amount": st.decimals(allow_nan=False, allow_infinity=False).map(str) | SAFE_INTEGERS,
        "at": st.datetimes(timezones=st.just(UTC)).map(datetime.isoformat),
        "day": st.dates().map(date.isoformat),
        "hour": st.times().map(time.isoformat),
        "lasts": st.timedeltas().map(lambda value: TypeAdapter(timedelta).dump_python(value, mode="json")),
        "colour": st.sampled_from(["red", "blue"]),
        "size": st.sampled_from(["s", "m"]),
        "strict": st.fixed_dictionaries(
            {"day": st.dates().map(date.isoformat)}, optional={"count": SAFE_INTEGERS}
        ),
        "parcel": st.fixed_dictionaries(
            {
                "weight": st.decimals(-(10**9), 10**9, places=3).map(float),
                "tags": st.lists(JSON_TEXT, max_size=3),
            }
        ),
        "pair": st.tuples(SAFE_INTEGERS, JSON_TEXT).map(list),
        "counts": st.dictionaries(SAFE_INTEGERS.map(str), st.floats(-1e9, 1e9), max_size=3),
        "identity": st.uuids().map(str),
        "raw": st.text(max_size=5),
        "whatever": JSON,
    },
    optional={"either": SAFE_INTEGERS | JSON_TEXT | st.none()},
)


@given(SENT)
def test_what_the_schema_allows_is_accepted_and_survives_storage(sent: dict[str, Any]) -> None:
    raw = json.dumps(sent)
    jsonschema.validate(json.loads(raw), everything.spec.parameters)

    bound = parse_arguments(everything, raw)
    again = parse_arguments(everything, bound.canonical.decode())

    assert again.canonical == bound.canonical
    assert again.kwargs == bound.kwargs
    assert set(bound.kwargs) == set(everything.signature.parameters)


@given(st.text(st.characters(exclude_categories=()), max_size=60) | JSON.map(json.dumps))
def test_whatever_a_model_sends_is_either_bound_or_refused_in_storable_words(raw: str) -> None:
    try:
        bound = parse_arguments(refund, raw)
    except ToolArgumentError as error:
        assert str(error).encode()
        assert "\x00" not in str(error)
    else:
        assert bound.kwargs


@given(st.dictionaries(JSON_TEXT, JSON, max_size=5))
def test_any_json_value_keeps_its_canonical_bytes(value: dict[str, Any]) -> None:
    try:
        bound = parse_arguments(anything, json.dumps({"value": value}))
    except ToolArgumentError as error:
        assert "given twice" in str(error)
    else:
        assert parse_arguments(anything, bound.canonical.decode()).canonical == bound.canonical
