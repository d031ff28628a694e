"""Running a tool's body with checked arguments."""

from __future__ import annotations

import inspect
from typing import Any

from phronomy_django.domain.errors import ConfigurationError
from phronomy_django.tools.arguments import BoundArguments
from phronomy_django.tools.context import ToolContext
from phronomy_django.tools.definition import ToolDefinition

__all__ = ["acall_tool", "call_tool"]


def call_tool(definition: ToolDefinition[..., Any], ctx: ToolContext, bound: BoundArguments) -> Any:
    """Run a tool that is a plain function and give what it returns; what it raises goes to the caller.

    Raises ``ConfigurationError``, before anything ran, for an ``async def`` tool and for arguments of another
    tool; and for a plain function that returned an awaitable, which is closed and not run.
    """
    if definition.is_async:
        raise ConfigurationError(f"The tool {definition.name!r} is async def; await acall_tool instead.")
    value = definition.function(**_keywords(definition, ctx, bound))
    if inspect.isawaitable(value):
        if inspect.iscoroutine(value):
            value.close()
        raise ConfigurationError(
            f"The tool {definition.name!r} is a plain function but returned an awaitable; make it async def."
        )
    return value


async def acall_tool(definition: ToolDefinition[..., Any], ctx: ToolContext, bound: BoundArguments) -> Any:
    """Run an ``async def`` tool and give what it returns; what it raises goes to the caller.

    Raises ``ConfigurationError``, before anything ran, for a plain function, which would block the loop, and
    for arguments of another tool.
    """
    if not definition.is_async:
        raise ConfigurationError(f"The tool {definition.name!r} is a plain function; use call_tool instead.")
    return await definition.function(**_keywords(definition, ctx, bound))


def _keywords(
    definition: ToolDefinition[..., Any], ctx: ToolContext, bound: BoundArguments
) -> dict[str, Any]:
    if bound.definition is not definition:
        raise ConfigurationError(
            f"The arguments were checked for the tool {bound.tool_name!r}, not for this {definition.name!r}."
        )
    keywords = bound.kwargs
    if definition.signature.context is not None:
        keywords[definition.signature.context] = ctx
    return keywords
