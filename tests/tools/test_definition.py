"""The decorator: what it makes of a function, and what it refuses when the module is imported."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from decimal import Decimal
from functools import partial
from typing import Annotated, Any, Optional

import pytest
from pydantic import BaseModel, Field, SecretStr

from phronomy_django.domain.errors import ConfigurationError
from phronomy_django.tools import ToolContext, ToolDefinition, ToolRetry, check_tools, tool

CONTEXT = ToolContext(agent_id="a", execution_id="e", tool_invocation_id="i", tool_call_id="c")


class Opaque:
    """A type that pydantic knows nothing of."""


class Excluding(BaseModel):
    kept: int
    secret: SecretStr


def plain(order_id: int, note: str = "") -> str:
    """Look at an order."""
    return f"{order_id}{note}"


def test_a_bare_decorator_takes_name_and_description_from_the_function() -> None:
    definition = tool(plain)

    assert isinstance(definition, ToolDefinition)
    assert (definition.name, definition.description) == ("plain", "Look at an order.")
    assert (definition.spec.name, definition.spec.description) == ("plain", "Look at an order.")


def test_the_defaults_of_a_tool_are_the_careful_ones() -> None:
    definition = tool(plain)

    assert not definition.requires_approval
    assert not definition.replay_safe
    assert not definition.transactional
    assert not definition.cooperative
    assert not definition.is_async
    assert definition.pool is definition.timeout is definition.retry is definition.facts is None
    assert definition.max_result_bytes == 256 * 1024
    assert definition.on_rejection == "tell"
    assert definition.redact == frozenset()


def test_every_option_is_kept_on_the_definition() -> None:
    retry = ToolRetry(max_attempts=2)
    options: dict[str, Any] = {
        "name": "look-up",
        "description": "Other words.",
        "requires_approval": True,
        "pool": "tools",
        "timeout": 2.5,
        "replay_safe": True,
        "transactional": True,
        "cooperative": False,
        "retry": retry,
        "max_result_bytes": 10,
        "on_rejection": "end",
        "facts": print,
    }

    definition = tool(redact=("note",), **options)(plain)

    assert {key: getattr(definition, key) for key in options} == options
    assert definition.redact == frozenset({"note"})
    assert definition.spec.description == "Other words."
    assert definition.spec.name == "look-up"


def test_a_definition_is_called_like_its_function() -> None:
    @tool
    def refund(ctx: ToolContext, order_id: int, amount: Decimal = Decimal(1)) -> str:
        return f"{ctx.agent_id} {order_id} {amount}"

    assert refund(CONTEXT, 1, amount=Decimal("2.5")) == "a 1 2.5"


def test_an_async_function_is_recognised() -> None:
    @tool
    async def wait(seconds: int) -> None: ...

    assert wait.is_async


def test_a_definition_cannot_be_changed_stored_or_sent() -> None:
    definition = tool(plain)

    with pytest.raises(AttributeError):
        definition.name = "other"  # type: ignore[misc]
    with pytest.raises(TypeError, match="'plain' is code"):
        pickle.dumps(definition)
    with pytest.raises(TypeError, match="'plain' is code"):
        copy.deepcopy(definition)
    assert repr(definition) == "<tool 'plain'>"


def unannotated(order_id):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201, RUF100
    """Has no hints."""


def starred(*order_ids: int) -> None: ...


def double_starred(**order_ids: int) -> None: ...


def positional(order_id: int, /) -> None: ...


def opaque(order_id: Opaque) -> None: ...


def callback(order_id: Callable[[], None]) -> None: ...


def a_set(order_id: set[str]) -> None: ...


def a_nested_set(order_id: dict[str, list[frozenset[int]]]) -> None: ...


def a_secret(order_id: SecretStr) -> None: ...


def a_nested_secret(order_id: Excluding) -> None: ...


def unresolvable(order_id: Missing) -> None: ...  # type: ignore[name-defined]  # noqa: F821


def not_a_hint(order_id: 3) -> None: ...  # type: ignore[valid-type]


def bad_syntax(order_id: "int or else") -> None: ...  # type: ignore[valid-type]  # noqa: F722


def opaque_default(order_id: Any = Opaque()) -> None: ...  # noqa: B008


def infinite_default(order_id: Any = float("inf")) -> None: ...


def huge_default(order_id: int = 2**60) -> None: ...


def unfit_default(order_id: int = "many") -> None: ...  # type: ignore[assignment]


def null_default(order_id: int = None) -> None: ...  # type: ignore[assignment]  # noqa: RUF013


def out_of_range_default(order_id: Annotated[int, Field(ge=1)] = 0) -> None: ...


def field_default(order_id: int = Field(3)) -> None: ...


def renamed(order_id: Annotated[int, Field(alias="order")]) -> None: ...


def excluded(order_id: Annotated[int, Field(exclude=True)] = 1) -> None: ...


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (unannotated, "no type hint"),
        (starred, r"\*args and \*\*kwargs"),
        (double_starred, r"\*args and \*\*kwargs"),
        (positional, "positional-only"),
        (opaque, "cannot come from JSON"),
        (callback, "cannot come from JSON"),
        (a_set, "use a list"),
        (a_nested_set, "use a list"),
        (a_secret, "redact"),
        (a_nested_secret, "redact"),
        (unresolvable, "cannot be resolved.*Missing"),
        (not_a_hint, "not a usable type hint|cannot come from JSON"),
        (bad_syntax, "not a usable type hint"),
        (opaque_default, "JSON cannot carry the default"),
        (infinite_default, "JSON cannot carry the default"),
        (huge_default, "JSON cannot carry the default"),
        (unfit_default, "default 'many'"),
        (null_default, "default None"),
        (out_of_range_default, "default 0 does not fit"),
        (field_default, "Annotated"),
        (renamed, "may not rename"),
        (excluded, "may not rename or exclude"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_parameter_that_cannot_work_is_refused_by_name(function: Callable[..., Any], reason: str) -> None:
    with pytest.raises(
        ConfigurationError, match=rf"(?s)Tool '{function.__name__}', parameter.*{reason}"
    ) as caught:
        tool(function)

    assert "order_id" in str(caught.value)


@pytest.mark.parametrize("name", ["", "a b", "refund!", "x" * 65, "größe", "a\n", 3, b"refund"])
def test_a_name_that_providers_do_not_take_is_refused(name: Any) -> None:
    with pytest.raises(ConfigurationError, match="tool name"):
        tool(name=name)(plain)


@pytest.mark.parametrize("name", ["a", "x" * 64, "get_Order-2"])
def test_a_name_that_providers_take_is_accepted(name: str) -> None:
    assert tool(name=name)(plain).spec.name == name


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"retry": ToolRetry()}, "replay_safe=True"),
        ({"retry": 3}, "ToolRetry"),
        ({"transactional": True, "cooperative": True}, "cannot be cooperative"),
        ({"redact": ("card_number",)}, "'card_number'.*does not exist.*order_id, note"),
        ({"redact": "note"}, "tuple of parameter names"),
        ({"redact": 1}, "tuple of parameter names"),
        ({"timeout": 0}, "timeout is 0"),
        ({"timeout": -1.0}, "timeout is -1.0"),
        ({"timeout": float("nan")}, "timeout is nan"),
        ({"timeout": float("inf")}, "timeout is inf"),
        ({"timeout": "3"}, "timeout is '3'"),
        ({"timeout": True}, "timeout is True"),
        ({"pool": ""}, "pool is ''"),
        ({"pool": 1}, "pool is 1"),
        ({"max_result_bytes": 0}, "max_result_bytes is 0"),
        ({"max_result_bytes": 1.5}, "max_result_bytes is 1.5"),
        ({"max_result_bytes": True}, "max_result_bytes is True"),
        ({"on_rejection": "ignore"}, '"tell" or "end"'),
        ({"facts": 3}, "facts is 3"),
        ({"description": 3}, "description is 3"),
        ({"description": "\ud800"}, "lone surrogate"),
        ({"requires_approval": "yes"}, "requires_approval is 'yes'"),
        ({"replay_safe": 1}, "replay_safe is 1"),
    ],
    ids=str,
)
def test_an_option_that_cannot_work_is_refused_by_name(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigurationError, match=f"(?s)Tool 'plain'.*{reason}"):
        tool(**options)(plain)


@pytest.mark.parametrize("option", ["transactional", "cooperative"])
def test_an_async_tool_is_refused_where_its_body_has_to_run_in_one_go(option: str) -> None:
    async def wait(seconds: int) -> None: ...

    with pytest.raises(ConfigurationError, match=r"'wait'.*cannot be async def"):
        tool(**{option: True})(wait)


def test_generators_are_refused() -> None:
    def pages(start: int) -> Any:
        yield start

    async def apages(start: int) -> Any:
        yield start

    for function in (pages, apages):
        with pytest.raises(ConfigurationError, match="is a generator"):
            tool(function)


@pytest.mark.parametrize("thing", [Opaque, 3, tool(plain), staticmethod(plain)])
def test_what_is_no_function_is_refused(thing: Any) -> None:
    with pytest.raises(ConfigurationError, match="takes a function"):
        tool(thing)


def test_an_unknown_option_is_refused() -> None:
    with pytest.raises(TypeError, match="requires_aproval"):
        tool(requires_aproval=True)(plain)  # type: ignore[call-overload]


def test_a_partial_is_a_tool_under_a_name_of_its_own() -> None:
    definition = tool(name="first_order")(partial(plain, note="!"))

    assert definition.signature.parameters == ("order_id", "note")
    assert definition(1) == "1!"


class TestContextParameter:
    def test_it_is_recognised_by_its_annotation_and_left_out_of_the_schema(self) -> None:
        def look(context: ToolContext, order_id: int) -> None: ...

        definition = tool(look)

        assert definition.signature.context == "context"
        assert list(definition.spec.parameters["properties"]) == ["order_id"]

    def test_it_is_recognised_by_its_name_without_an_annotation(self) -> None:
        def look(ctx, order_id: int) -> None: ...  # type: ignore[no-untyped-def]

        assert tool(look).signature.context == "ctx"

    def test_an_annotation_imported_for_type_checking_only_is_enough(self) -> None:
        def look(c: tools.ToolContext | None, order_id: int) -> None: ...  # type: ignore[name-defined]  # noqa: F821

        assert tool(look).signature.context == "c"

    def test_an_evaluated_annotation_is_recognised_too(self) -> None:
        def look(c, order_id: int) -> None: ...  # type: ignore[no-untyped-def]

        for hint in (ToolContext, Optional[ToolContext]):  # noqa: UP045  both forms are in use
            look.__annotations__["c"] = hint
            assert tool(look).signature.context == "c"
        look.__annotations__["c"] = int
        assert tool(look).signature.context is None

    def test_any_is_accepted_for_ctx(self) -> None:
        def look(ctx: Any) -> None: ...

        assert tool(look).signature.context == "ctx"

    def test_ctx_of_another_type_is_refused_as_ambiguous(self) -> None:
        def look(ctx: str) -> None: ...

        with pytest.raises(ConfigurationError, match=r"'look', parameter 'ctx'.*rename it"):
            tool(look)

    def test_it_has_to_come_first(self) -> None:
        def look(order_id: int, ctx: ToolContext) -> None: ...

        with pytest.raises(ConfigurationError, match=r"'look', parameter 'ctx'.*first parameter"):
            tool(look)


class TestCheckTools:
    def test_tools_come_back_as_a_tuple_in_their_order(self) -> None:
        first, second = tool(plain), tool(name="other")(plain)

        assert check_tools([first, second]) == (first, second)
        assert check_tools(iter(())) == ()

    def test_a_name_used_twice_is_refused_and_both_functions_are_named(self) -> None:
        def other(order_id: int) -> None: ...

        with pytest.raises(ConfigurationError, match=r"'plain' .*test_definition\.plain and .*other\)"):
            check_tools([tool(plain), tool(name="plain")(other)])

    @pytest.mark.parametrize("tools", [[plain], ["plain"], "plain", None, 3, tool(plain)])
    def test_what_is_no_list_of_tools_is_refused(self, tools: Any) -> None:
        with pytest.raises(ConfigurationError, match="tool"):
            check_tools(tools)
