"""What an agent class may declare, and what is refused at import, before anything is stored."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import pytest
from pydantic import BaseModel

from phronomy_django.agents import Agent, UsageLimits, register, tool
from phronomy_django.agents.definition import Definition
from phronomy_django.agents.registry import definition_of, find_definition, unregister
from phronomy_django.domain.errors import ConfigurationError, NotFoundError
from phronomy_django.llm import ScriptedLLM

Declare = Callable[..., Definition]


@pytest.fixture
def declare() -> Iterator[Declare]:
    made: list[type[Agent]] = []

    def make(**attributes: Any) -> Definition:
        attributes = {"definition_id": "tests.declared", "model": ScriptedLLM(["x"]), **attributes}
        made.append(type("Declared", (Agent,), attributes))
        return definition_of(register(made[-1]))

    yield make
    for cls in made:
        unregister(cls)


@tool
def look(number: int) -> str:
    """Look up."""
    return str(number)


def later(self: Any, *arguments: Any) -> Any: ...


async def later_async(self: Any, *arguments: Any) -> Any: ...


class Answer(BaseModel):
    text: str


def test_a_small_definition_has_the_defaults(declare: Declare) -> None:
    definition = declare()
    assert definition.definition_version == 1
    assert (definition.max_iterations, definition.context_window, definition.llm_timeout) == (8, 100, 120.0)
    assert definition.usage_limits == UsageLimits()
    assert definition.replay_safe
    assert not (definition.has_preparation or definition.has_on_admission or definition.has_on_terminal)
    assert find_definition("tests.declared") is definition


def test_every_attribute_is_compiled(declare: Declare) -> None:
    first, second = ScriptedLLM(["a"]), ScriptedLLM(["b"])
    definition = declare(
        definition_version=3,
        model=[first, second],
        instructions="""
            Help.
              Be short.
        """,
        tools=[look],
        output_type=Answer,
        usage_limits=UsageLimits(cost=Decimal("0.5")),
        model_settings={"temperature": 0},
        filter_input=later,
        on_admission=later,
        on_terminal=later,
    )
    assert definition.models == (first, second)
    assert definition.instructions == "Help.\n  Be short."
    assert list(definition.tools) == ["look"]
    assert definition.output_schema is not None
    assert definition.decode_output(b'{"text":"hi"}') == Answer(text="hi")
    assert definition.has_preparation
    assert definition.has_on_admission
    assert definition.has_on_terminal


@pytest.mark.parametrize(
    "method", ["filter_input", "retrieve_knowledge", "select_context", "before_llm_input"]
)
def test_each_preparation_method_makes_a_preparation_also_when_inherited(
    declare: Declare, method: str
) -> None:
    base = type("Base", (Agent,), {method: later})
    assert definition_of(
        register(type("Heir", (base,), {"definition_id": "tests.heir", "model": ScriptedLLM(["x"])}))
    ).has_preparation
    unregister(find_definition("tests.heir").agent_class)


@pytest.mark.parametrize(
    ("attributes", "told"),
    [
        ({"definition_id": ""}, "has no definition_id"),
        ({"definition_id": None}, "has no definition_id"),
        ({"definition_id": "x" * 201}, "definition_id is longer than 200"),
        ({"definition_id": "a\x00b"}, "definition_id holds a character that no database stores"),
        ({"definition_id": "a\ud800"}, "definition_id holds a character that no database stores"),
        ({"definition_version": 0}, "definition_version is 0"),
        ({"definition_version": True}, "definition_version is True"),
        ({"definition_version": "1"}, "definition_version is '1'"),
        ({"max_iterations": 0}, "max_iterations is 0"),
        ({"context_window": -1}, "context_window is -1"),
        ({"instructions": b"x"}, "instructions is a bytes; it has to be a string"),
        ({"pool": None}, "pool is a NoneType; it has to be the name of a pool"),
        ({"model": ""}, "model is ''"),
        ({"model": None}, "model is None"),
        ({"model": 7}, "model is 7"),
        ({"model": []}, r"model is \[\]"),
        ({"model": ["openai:x", 7]}, 'give "provider:model"'),
        ({"output_type": dict}, "output_type is <class 'dict'>"),
        ({"output_type": Answer(text="x")}, "it has to be a pydantic model"),
        ({"usage_limits": {"cost": 1}}, "usage_limits is a dict; it has to be a UsageLimits"),
        ({"model_settings": [1]}, "model_settings is a list; it has to be a mapping"),
        ({"model_settings": {"a": {1}}}, r"cannot be carried as JSON.*a"),
        ({"llm_timeout": 0}, "llm_timeout is 0"),
        ({"llm_timeout": "9"}, "llm_timeout is a str"),
        ({"llm_retry": 3}, "llm_retry is a int; it has to be a RetryPolicy"),
        ({"replay_safe": 1}, "replay_safe is a int"),
        ({"tools": [look, look]}, "'look'"),
        ({"tools": [later]}, "later"),
        ({"approval_seconds": 0}, "approval_seconds is 0"),
        ({"approval_seconds": "9"}, "approval_seconds is '9'"),
        ({"needs_approval": later_async}, "needs_approval is async"),
        ({"on_terminal": later_async}, "on_terminal is async"),
        ({"on_admission": later_async}, "on_admission is async"),
        ({"filter_input": later_async}, "filter_input is async"),
    ],
)
def test_what_cannot_work_is_refused_by_class_and_attribute(
    declare: Declare, attributes: dict[str, Any], told: str
) -> None:
    with pytest.raises(ConfigurationError, match=told) as caught:
        declare(**attributes)
    assert "Declared" in str(caught.value)
    with pytest.raises(NotFoundError, match="Is its app in INSTALLED_APPS"):
        find_definition("tests.declared")


@pytest.mark.parametrize("value", [-1, True, "9", float("nan")])
def test_a_limit_is_a_number_from_zero(value: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"UsageLimits\.tool_calls"):
        UsageLimits(tool_calls=value)


def test_a_class_that_is_not_registered_says_what_to_do() -> None:
    cls = type("Forgotten", (Agent,), {"definition_id": "tests.forgotten", "model": ScriptedLLM(["x"])})
    for use in (lambda: cls.create("a"), lambda: cls.load("a"), lambda: cls.get("a")):
        with pytest.raises(ConfigurationError, match="decorate it with @register"):
            use()


def test_a_subclass_of_a_registered_agent_is_not_registered_by_that(declare: Declare) -> None:
    heir = type("Heir", (declare().agent_class,), {})
    with pytest.raises(ConfigurationError, match="Heir is not registered"):
        heir.load("a")


def test_the_same_class_may_be_registered_again(declare: Declare) -> None:
    first = declare(definition_version=1)
    second = declare(definition_version=2)
    assert find_definition("tests.declared") is second is not first
