"""The engine's own exceptions, and the root of the package's exception tree.

They live in ``engine`` because it imports nothing above it; users import them from
``phronomy_django.errors`` (or ``phronomy_django.domain.errors``).
"""

from __future__ import annotations

import inspect

__all__ = [
    "BackpressureError",
    "EventLoopBlockingError",
    "EventLoopReentrancyError",
    "PhronomyError",
    "RuntimeShutdownError",
]


class PhronomyError(Exception):
    """Something went wrong in phronomy_django."""

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message if message is not None else inspect.getdoc(type(self)) or type(self).__name__)


class BackpressureError(PhronomyError):
    """A bounded queue is full; nothing was started. Try again later or allow waiting."""


class EventLoopReentrancyError(PhronomyError):
    """A blocking API was called on the event loop thread; use its asynchronous form there."""


class EventLoopBlockingError(PhronomyError):
    """The event loop thread may not block: move the query or the wait into an offload pool."""


class RuntimeShutdownError(PhronomyError):
    """The runtime is shutting down or has stopped; nothing new is admitted."""
