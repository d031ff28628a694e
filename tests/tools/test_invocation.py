"""Running a tool's body."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

import pytest

import phronomy_django.tools
from phronomy_django.domain.errors import ConfigurationError
from phronomy_django.tools import ToolContext, acall_tool, call_tool, parse_arguments, tool

CONTEXT = ToolContext(agent_id="a", execution_id="e", tool_invocation_id="i", tool_call_id="c")


@tool
def plain(ctx: ToolContext, number: int, tags: list[str] = []) -> Any:  # noqa: B006  copied for each call
    tags.append(ctx.idempotency_key)
    return number, tags


@tool
async def waiting(number: int, *, context: str = "mine") -> Any:
    await asyncio.sleep(0)
    return number, context


@tool
def failing() -> None:
    raise LookupError("gone")


@tool
async def afailing() -> None:
    raise LookupError("gone")


def test_a_plain_tool_gets_its_context_and_arguments() -> None:
    assert call_tool(plain, CONTEXT, parse_arguments(plain, '{"number": 3}')) == (3, ["i"])


def test_a_second_attempt_sees_the_arguments_as_they_were() -> None:
    bound = parse_arguments(plain, '{"number": 3, "tags": ["a"]}')

    assert call_tool(plain, CONTEXT, bound) == call_tool(plain, CONTEXT, bound) == (3, ["a", "i"])


def test_an_async_tool_is_awaited() -> None:
    bound = parse_arguments(waiting, '{"number": 3}')

    assert asyncio.run(acall_tool(waiting, CONTEXT, bound)) == (3, "mine")


def test_what_the_body_raises_reaches_the_caller() -> None:
    with pytest.raises(LookupError, match="gone"):
        call_tool(failing, CONTEXT, parse_arguments(failing, "{}"))
    with pytest.raises(LookupError, match="gone"):
        asyncio.run(acall_tool(afailing, CONTEXT, parse_arguments(afailing, "{}")))


def test_each_kind_of_tool_has_its_own_way_to_be_called() -> None:
    with pytest.raises(ConfigurationError, match="'waiting' is async def"):
        call_tool(waiting, CONTEXT, parse_arguments(waiting, '{"number": 3}'))
    with pytest.raises(ConfigurationError, match="'plain' is a plain function"):
        asyncio.run(acall_tool(plain, CONTEXT, parse_arguments(plain, '{"number": 3}')))


def test_arguments_checked_for_another_tool_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="checked for the tool 'failing', not for this 'plain'"):
        call_tool(plain, CONTEXT, parse_arguments(failing, "{}"))


def test_a_plain_function_that_returns_an_awaitable_is_refused_and_nothing_is_left_unawaited() -> None:
    made: list[Any] = []

    @tool
    def sly(number: int) -> Any:
        made.append(waiting(number))
        return made[0]

    with pytest.raises(ConfigurationError, match="returned an awaitable"):
        call_tool(sly, CONTEXT, parse_arguments(sly, '{"number": 3}'))
    assert inspect.getcoroutinestate(made[0]) == inspect.CORO_CLOSED


def test_the_exports_of_the_room_are_these() -> None:
    assert phronomy_django.tools.__all__ == [
        "BoundArguments",
        "CancellationSignal",
        "ToolArgumentError",
        "ToolContext",
        "ToolDefinition",
        "ToolError",
        "ToolResultTooLargeError",
        "ToolRetry",
        "acall_tool",
        "call_tool",
        "check_tools",
        "describe_failure",
        "parse_arguments",
        "render_result",
        "tool",
    ]
