"""Tools: the decorator, the schema that a model sees, argument checks, results. No Django, no threads."""

from __future__ import annotations

from phronomy_django.tools.arguments import BoundArguments, parse_arguments
from phronomy_django.tools.context import CancellationSignal, ToolContext
from phronomy_django.tools.definition import ToolDefinition, check_tools, tool
from phronomy_django.tools.errors import ToolArgumentError, ToolError, ToolResultTooLargeError
from phronomy_django.tools.invocation import acall_tool, call_tool
from phronomy_django.tools.results import describe_failure, render_result
from phronomy_django.tools.retry import ToolRetry

__all__ = [
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
