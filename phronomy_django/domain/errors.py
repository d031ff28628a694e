"""The exceptions of phronomy_django.

Every exception's docstring is its default message (STYLE rule 14). A message says what happened, to
which id, and what to do next. A person who lacks a right gets Django's own ``PermissionDenied``.
"""

from __future__ import annotations

from phronomy_django.engine.errors import (
    BackpressureError,
    EventLoopBlockingError,
    EventLoopReentrancyError,
    PhronomyError,
    RuntimeShutdownError,
)

__all__ = [
    "AgentAlreadyExistsError",
    "AgentBusyError",
    "AgentPurgedError",
    "BackpressureError",
    "ConfigurationError",
    "ConflictError",
    "DefinitionMismatchError",
    "EventLoopBlockingError",
    "EventLoopReentrancyError",
    "ExecutionCancelledError",
    "ExecutionFailedError",
    "ExecutionTimeoutError",
    "InputError",
    "NotFoundError",
    "OutcomeUnknownError",
    "PhronomyError",
    "RehydrationRequiredError",
    "ResolutionRequiredError",
    "RuntimeShutdownError",
    "SerializationError",
    "StorageError",
]


class ConfigurationError(PhronomyError):
    """A setting, a definition or the way of a call does not fit the installation."""


class InputError(PhronomyError, ValueError):
    """A value given by the caller is refused before anything is stored."""


class AgentBusyError(PhronomyError):
    """The agent already has a non-terminal top-level execution; nothing was queued."""


class AgentAlreadyExistsError(PhronomyError):
    """An agent with this agent_id already exists; load it instead."""


class AgentPurgedError(PhronomyError):
    """The agent was purged; its agent_id stays reserved and its records are gone."""


class NotFoundError(PhronomyError, LookupError):
    """No such record."""


class ConflictError(PhronomyError):
    """The record moved on since the revision that this change was based on; load it again and decide anew."""


class StorageError(PhronomyError):
    """The database could not take the change (lost connection, deadlock, full disk); nothing was applied."""


class SerializationError(PhronomyError, ValueError):
    """A value cannot be carried as canonical JSON; the message names its path."""


class RehydrationRequiredError(PhronomyError):
    """The live state of this agent is gone; load the agent again before you go on."""


class ExecutionFailedError(PhronomyError):
    """The execution ended without an output; its status and its error say why."""


class ExecutionTimeoutError(PhronomyError, TimeoutError):
    """The wait or the deadline ran out. A wait that ran out cancels nothing: the execution goes on."""


class ExecutionCancelledError(PhronomyError):
    """The execution was cancelled."""


class OutcomeUnknownError(PhronomyError):
    """It cannot be established whether the change was committed or the effect happened."""


class ResolutionRequiredError(PhronomyError):
    """An execution waits for a person, since nobody can know the outcome of one of its steps."""


class DefinitionMismatchError(PhronomyError):
    """The record was made by another definition or version than the one that this process has."""
