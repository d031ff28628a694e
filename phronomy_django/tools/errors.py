"""What a model is told, word for word, when a tool call has no result."""

from __future__ import annotations

from collections.abc import Sequence

from phronomy_django.domain.errors import PhronomyError

__all__ = ["ToolArgumentError", "ToolError", "ToolResultTooLargeError"]


class ToolError(PhronomyError):
    """The tool could not do what was asked.

    Raised by a tool on purpose: its message is written for the model and shown to it as it is, where any
    other exception is shown with its type and cut short.
    """


class ToolArgumentError(ToolError, ValueError):
    """The arguments that the model sent do not fit the tool; the tool was not run.

    ``problems`` holds a pair (field, what is wrong and what was expected) for each thing that is wrong; the
    field is ``""`` where the arguments as a whole are meant. No message repeats a value that was sent.
    """

    def __init__(self, message: str | None = None, problems: Sequence[tuple[str, str]] = ()) -> None:
        super().__init__(message)
        self.problems = tuple(problems)


class ToolResultTooLargeError(ToolError):
    """The tool ran, but its result is larger than the tool allows, so the model is not shown it."""
