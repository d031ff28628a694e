"""What a database error means to the writer: run again, settle, refuse (DESIGN §5, HARD_POINTS 2 and 4)."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum, auto

from django.db import Error as DjangoError

from phronomy_django.domain.errors import AgentBusyError, ConflictError, PhronomyError, StorageError
from phronomy_django.domain.records import Transition
from phronomy_django.store.works import IdempotencyConflictError, Work, describe_work

__all__ = ["FailureKind", "failure_kind", "refusal"]

_ADMISSION = "phronomy_execution_admission"
_IDEMPOTENCY = "phronomy_execution_idempotency"
#: SQLite names the columns of a violated unique index, not the index.
_SQLITE_UNIQUE = {
    "UNIQUE constraint failed: phronomy_agentexecution.agent_id": _ADMISSION,
    "UNIQUE constraint failed: phronomy_agentexecution.agent_id, phronomy_agentexecution.idempotency_key": (
        _IDEMPOTENCY
    ),
}
_LOST = ("08", "57P01", "57P02", "57P03", "57P05")
_AGAIN = ("40001", "40P01", "55P03", "57014")
_SQLITE_AGAIN = ("SQLITE_BUSY", "SQLITE_LOCKED")


class FailureKind(Enum):
    LOST = auto()
    """The connection is gone; what was sent may have been committed."""
    AGAIN = auto()
    """A deadlock, a lock or a timeout: the same may succeed when it is run again."""
    CONTENT = auto()
    """Named content is missing: another transaction pruned it; insert it and run again."""
    MISSED = auto()
    """A compare-and-swap raised in SQL; nothing was applied."""
    REFUSED = auto()
    """The database cannot take it."""


def failure_kind(error: BaseException) -> FailureKind:
    """What ``error``, raised while rows were written, asks for."""
    if isinstance(error, ConflictError):
        return FailureKind.MISSED
    for cause in _causes(error):
        sqlstate = getattr(cause, "sqlstate", None)
        if sqlstate is not None:
            return _by_sqlstate(sqlstate, _constraint(cause))
        name = getattr(cause, "sqlite_errorname", None)
        if name is not None:
            return _by_sqlite_name(name)
    for cause in _causes(error):
        if type(cause).__name__ == "OperationalError" or type(cause).__name__ == "InterfaceError":
            return FailureKind.LOST
    return FailureKind.REFUSED


def _by_sqlstate(sqlstate: str, constraint: str) -> FailureKind:
    if sqlstate.startswith(_LOST):
        return FailureKind.LOST
    if sqlstate in _AGAIN:
        return FailureKind.AGAIN
    if sqlstate == "22012":
        return FailureKind.MISSED
    if sqlstate == "23503" and "content" in constraint:
        return FailureKind.CONTENT
    return FailureKind.REFUSED


def _by_sqlite_name(name: str) -> FailureKind:
    if name.startswith(_SQLITE_AGAIN):
        return FailureKind.AGAIN
    if name == "SQLITE_CONSTRAINT_FOREIGNKEY":
        return FailureKind.CONTENT
    return FailureKind.REFUSED


def refusal(work: Work, error: BaseException) -> PhronomyError:
    """The error that answers ``work`` when the database refused it with ``error``."""
    if isinstance(error, PhronomyError):
        return error
    constraint = _violated(error)
    if isinstance(work, Transition) and work.execution is not None:
        execution = work.execution
        if constraint == _ADMISSION:
            return AgentBusyError(
                f"Root {work.root.id} already has a non-terminal execution; {execution.execution_id} was not "
                "started and is not queued. Wait for the running one or cancel it."
            )
        if constraint == _IDEMPOTENCY:
            return IdempotencyConflictError(
                f"Root {work.root.id} already has an execution with idempotency key "
                f"{execution.idempotency_key!r}; {execution.execution_id} was not started.",
                execution.idempotency_key,
            )
    refused = StorageError(
        f"The database refused {describe_work(work)}; nothing of it was applied. {_text(error)}"
    )
    refused.__cause__ = error
    return refused


def _text(error: BaseException) -> str:
    first = str(error).strip().splitlines()
    return f"{type(error).__name__}: {first[0] if first else ''}"[:500]


def _violated(error: BaseException) -> str:
    for cause in _causes(error):
        name = _constraint(cause)
        if name:
            return name
        if getattr(cause, "sqlite_errorname", "").startswith("SQLITE_CONSTRAINT"):
            return _SQLITE_UNIQUE.get(str(cause), "")
    return ""


def _constraint(error: BaseException) -> str:
    return getattr(getattr(error, "diag", None), "constraint_name", None) or ""


def _causes(error: BaseException) -> Iterator[BaseException]:
    """``error``, and below Django's wrapper the driver's own."""
    found: BaseException | None = error
    while found is not None:
        yield found
        found = found.__cause__ if isinstance(found, DjangoError) else None
