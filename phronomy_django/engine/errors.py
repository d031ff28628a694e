"""The engine's own exceptions, and the root of the package's exception tree.

They live in ``engine`` because it imports nothing above it; users import them from
``phronomy_django.errors`` (or ``phronomy_django.domain.errors``).
"""

from __future__ import annotations

import inspect

__all__ = [
    "BackpressureError",
    "DeadlockError",
    "EventLoopBlockingError",
    "EventLoopReentrancyError",
    "PhronomyError",
    "RegistrationError",
    "RuntimeShutdownError",
    "SessionEndedError",
    "SessionTableError",
    "TaskCancelledError",
    "TaskPendingError",
    "TaskTimeoutError",
]


class PhronomyError(Exception):
    """Something went wrong in phronomy_django."""

    def __init__(self, message: str | None = None) -> None:
        super().__init__(
            message if message is not None else inspect.getdoc(type(self)) or type(self).__name__
        )


class BackpressureError(PhronomyError):
    """A bounded queue is full; nothing was started. Try again later or allow waiting."""


class DeadlockError(PhronomyError):
    """Nothing can run any more, no timer is pending, and what is waited for did not happen."""


class EventLoopReentrancyError(PhronomyError):
    """A blocking API was called on the event loop thread; use its asynchronous form there."""


class EventLoopBlockingError(PhronomyError):
    """The event loop thread may not block: move the query or the wait into an offload pool."""


class RegistrationError(PhronomyError):
    """This receiver or session may not be registered here; register each once, with its own loop."""


class RuntimeShutdownError(PhronomyError):
    """The runtime is shutting down or has stopped; nothing new is admitted."""


class SessionEndedError(PhronomyError):
    """The session ended without success; ``ending`` and ``state`` say how."""

    def __init__(self, message: str | None = None, *, ending: str = "", state: str = "") -> None:
        super().__init__(message)
        self.ending = ending
        self.state = state


class SessionTableError(PhronomyError, ValueError):
    """A session table contradicts itself; the message names the state and the event."""


class TaskCancelledError(PhronomyError):
    """The task was cancelled before it had a result."""


class TaskPendingError(PhronomyError):
    """The task has no result yet; wait for it, or register with on_complete."""


class TaskTimeoutError(PhronomyError, TimeoutError):
    """The time ran out. A wait that ran out cancels nothing: the work goes on."""
