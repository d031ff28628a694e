"""When a tool that failed is run again: a pure function of the error and the attempt."""

from __future__ import annotations

import math
from dataclasses import dataclass

from phronomy_django.domain.errors import ConfigurationError
from phronomy_django.engine.errors import PhronomyError
from phronomy_django.tools.errors import ToolError

__all__ = ["ToolRetry"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolRetry:
    """At most ``max_attempts`` attempts of one tool invocation, exponentially further apart.

    After attempt n the wait is ``base * factor ** (n - 1)`` seconds, at most ``max_delay``. Only errors of
    the types in ``retry_on`` are tried again. A ``ToolError`` says what it says on purpose, and the package's
    own errors (a cancellation, a shutdown) are no failures of the tool: those two are tried again only if
    ``retry_on`` names them or a type below them. A tool with a retry has to be ``replay_safe``.
    """

    max_attempts: int = 3
    base: float = 0.2
    factor: float = 2.0
    max_delay: float = 10.0
    retry_on: tuple[type[Exception], ...] = (Exception,)

    def __post_init__(self) -> None:
        if (
            not isinstance(self.max_attempts, int)
            or isinstance(self.max_attempts, bool)
            or self.max_attempts < 1
        ):
            raise ConfigurationError(
                f"ToolRetry.max_attempts is {self.max_attempts!r}; it has to be a whole number from 1."
            )
        for name, least in (("base", 0.0), ("factor", 1.0), ("max_delay", 0.0)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise ConfigurationError(f"ToolRetry.{name} is {value!r}; it has to be a number.")
            if not math.isfinite(value) or value < least:
                raise ConfigurationError(
                    f"ToolRetry.{name} is {value!r}; it has to be finite, from {least:g}."
                )
        kinds = self.retry_on
        if not isinstance(kinds, tuple) or not kinds or not all(map(_is_error_type, kinds)):
            raise ConfigurationError(
                f"ToolRetry.retry_on is {kinds!r}; it has to be a tuple of exception types."
            )

    def delay(self, attempt: int) -> float | None:
        """Seconds to wait after ``attempt`` (the first is 1) failed, or None if that was the last one."""
        if attempt < 1:
            raise ValueError(f"attempt {attempt}: the first attempt is 1")
        if attempt >= self.max_attempts:
            return None
        try:
            return min(self.base * self.factor ** (attempt - 1), self.max_delay)
        except OverflowError:
            return self.max_delay

    def delay_after(self, error: BaseException, attempt: int) -> float | None:
        """Seconds to wait before ``error`` of ``attempt`` is answered by another attempt; None: by none."""
        for family in (ToolError, PhronomyError):
            if isinstance(error, family):
                named = tuple(kind for kind in self.retry_on if issubclass(kind, family))
                return self.delay(attempt) if isinstance(error, named) else None
        return self.delay(attempt) if isinstance(error, self.retry_on) else None


def _is_error_type(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, Exception)
