"""The JSON schema that a model sees."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Literal
from uuid import UUID

import jsonschema
import pytest
from pydantic import BaseModel, Field
from typing_extensions import TypedDict

from phronomy_django.domain.canonical import canonical_bytes
from phronomy_django.tools import tool


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Address(BaseModel):
    street: str
    title: str = Field(default="", description="Mr, Ms, Dr")


class Item(TypedDict):
    sku: str
    count: int


@dataclass
class Parcel:
    weight: Decimal
    to: Address


@tool
def everything(
    number: int,
    share: float,
    amount: Decimal,
    at: datetime,
    day: date,
    lasts: timedelta,
    colour: Colour,
    size: Literal["s", "m"],
    maybe: str | None,
    address: Address,
    parcel: Parcel,
    items: list[Item],
    pair: tuple[int, str],
    extra: dict[str, int],
    whatever: Any,
    identity: UUID,
    limited: Annotated[int, Field(ge=1, le=5, description="From the hint.")],
    *,
    flag: bool = False,
    tags: list[str] = [],  # noqa: B006  the default is copied for each call
    colours: Colour = Colour.RED,
    cents: Decimal = Decimal("0.10"),
) -> None:
    """Take everything.

    Args:
        number: From the docstring.
        limited: Not used, for the hint says it.
        unknown: Not there.
    """


@tool
def nothing() -> None:
    """Take nothing."""


@tool
def awkward(
    json: int, copy: str, model_config: int, model_dump: int, schema: int, _under: int, title: str
) -> int:
    """Have parameters that are called as the attributes of a pydantic model."""
    return json + model_config + model_dump + schema + _under


ALL = (everything, nothing, awkward)


@pytest.mark.parametrize("definition", ALL, ids=repr)
def test_a_schema_is_valid_json_schema_of_type_object_without_extras(definition: Any) -> None:
    schema = definition.spec.parameters

    jsonschema.Draft202012Validator.check_schema(schema)
    assert schema["type"] == "object"
    assert schema["additionalProperties"] is False
    assert "title" not in schema


def test_each_type_has_its_form() -> None:
    properties = everything.spec.parameters["properties"]

    assert properties["number"] == {"type": "integer", "description": "From the docstring."}
    assert properties["share"] == {"type": "number"}
    assert {option["type"] for option in properties["amount"]["anyOf"]} == {"number", "string"}
    assert properties["at"] == {"type": "string", "format": "date-time"}
    assert properties["size"] == {"type": "string", "enum": ["s", "m"]}
    assert properties["maybe"] == {"anyOf": [{"type": "string"}, {"type": "null"}]}
    assert properties["extra"]["additionalProperties"] == {"type": "integer"}
    assert properties["whatever"] == {}
    assert properties["limited"] == {
        "type": "integer",
        "minimum": 1,
        "maximum": 5,
        "description": "From the hint.",
    }
    assert properties["colours"]["default"] == "red"
    assert properties["cents"]["default"] == "0.10"
    assert everything.spec.parameters["$defs"]["Colour"]["enum"] == ["red", "blue"]


def test_what_has_no_default_is_required_even_if_it_may_be_null() -> None:
    required = everything.spec.parameters["required"]

    assert "maybe" in required
    assert not {"flag", "tags", "colours", "cents"} & set(required)
    assert list(everything.spec.parameters["properties"])[: len(required)] == required


def test_a_nested_field_called_title_stays() -> None:
    assert set(everything.spec.parameters["$defs"]["Address"]["properties"]) == {"street", "title"}
    assert awkward.spec.parameters["properties"]["title"] == {"type": "string"}


def test_parameters_may_be_called_like_attributes_of_a_model() -> None:
    assert list(awkward.spec.parameters["properties"]) == [
        "json",
        "copy",
        "model_config",
        "model_dump",
        "schema",
        "_under",
        "title",
    ]


def test_a_tool_without_parameters_has_an_empty_schema() -> None:
    assert nothing.spec.parameters == {"type": "object", "properties": {}, "additionalProperties": False}


def test_a_schema_has_the_same_bytes_in_every_process() -> None:
    here = canonical_bytes([definition.spec.as_json() for definition in ALL])
    program = (
        "import sys; from tests.tools.test_schema import ALL, canonical_bytes;"
        "sys.stdout.buffer.write(canonical_bytes([definition.spec.as_json() for definition in ALL]))"
    )

    for seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", program],
            capture_output=True,
            check=True,
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(filter(None, sys.path))},
        )
        assert done.stdout == here


def test_the_room_imports_no_django() -> None:
    program = "import sys, phronomy_django.tools; sys.exit('django' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
