"""The rows of works on whatever database the alias names, and single statements for callers' transactions."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Protocol

from django.db import connections

from phronomy_django.domain.errors import ConfigurationError, StorageError
from phronomy_django.domain.records import OperationStep, Transition
from phronomy_django.models import AgentExecution, JournalRecord
from phronomy_django.store.diagnosis import conflict_of
from phronomy_django.store.works import describe_work

__all__ = ["HeldError", "WorkRows", "apply_in_current_transaction", "rows_for"]

_local = threading.local()


class WorkRows(Protocol):
    """How works become rows on one connection; the two dialects keep the same promises."""

    statement_count: int

    def configure(self, *, lease_seconds: float) -> None: ...

    def commit(self, works: Sequence[Transition | OperationStep]) -> list[bool]: ...

    def write(self, works: Sequence[Transition | OperationStep]) -> list[bool]: ...


class HeldError(StorageError):
    """A row of the change is locked by another transaction; nothing was applied. Try again."""


def rows_for(using: str) -> WorkRows:
    """The writer of rows on this thread's connection ``using``."""
    connection = connections[using]
    known: dict[str, tuple[object, WorkRows]] = _local.__dict__
    entry = known.get(using)
    if entry is None or entry[0] is not connection:
        entry = known[using] = (connection, _make(using))
    return entry[1]


def _make(using: str) -> WorkRows:
    connection = connections[using]
    if connection.vendor == "postgresql":
        from phronomy_django.store.postgres import PostgresRows  # psycopg is there only with PostgreSQL

        return PostgresRows(connection)
    if connection.vendor == "sqlite":
        from phronomy_django.store.sqlite import SqliteRows

        return SqliteRows(connection)
    raise ConfigurationError(
        f"The database {using!r} is {connection.display_name}; agents are kept in PostgreSQL or SQLite."
    )


def apply_in_current_transaction(work: Transition | OperationStep, using: str) -> None:
    """Write ``work`` inside the transaction that is open on ``using``; it commits or rolls back with it.

    Raises ``ConflictError`` when a comparison missed and ``HeldError`` when another transaction holds one of its
    rows; then the caller has to roll back. ``delete_agent_records`` is done first, under the root's lock.
    """
    connection = connections[using]
    if not connection.in_atomic_block:
        raise ConfigurationError(
            "Open a transaction (transaction.atomic) around apply_in_current_transaction."
        )
    if isinstance(work, Transition) and work.delete_agent_records:
        _delete_records(work.root.id, using)
    if rows_for(using).write([work]) == [True]:
        return
    conflict = conflict_of(work, using)
    if conflict is not None:
        raise conflict
    raise HeldError(f"Another transaction holds a row of the {describe_work(work)}; nothing was applied.")


def _delete_records(root_id: int, using: str) -> None:
    """Empty one agent's history, children first; its contents stay until they are pruned."""
    executions = AgentExecution.objects.using(using).filter(agent_id=root_id)
    JournalRecord.objects.using(using).filter(agent_id=root_id)._raw_delete(using)
    for relation in (
        "resolutions",
        "approval_requests",
        "events",
        "operations",
        "tool_invocations",
        "llm_calls",
    ):
        model = AgentExecution._meta.get_field(relation).related_model
        rows = model._default_manager.using(using).filter(execution__in=executions)  # type: ignore[union-attr]
        rows._raw_delete(using)
    executions.update(parent=None)
    executions._raw_delete(using)
