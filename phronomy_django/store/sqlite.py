"""Transitions on SQLite: compared first, then written, while nobody else can write.

``BEGIN IMMEDIATE`` takes the only write lock, so what was compared stays true until COMMIT. ``executemany``
returns no rows; the summed counts are compared with what was expected before COMMIT (HARD_POINTS 16).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Any

from django.db import models

from phronomy_django.domain.errors import ConflictError
from phronomy_django.domain.records import OperationStep, Transition
from phronomy_django.models.fields import IdField
from phronomy_django.store.tables import (
    APPROVAL_CHANGES,
    EXECUTION_CHANGES,
    INSERTS,
    OPERATION_CHANGES,
    ROOT,
    UPDATES,
    RowGroup,
    rows_of,
)
from phronomy_django.store.works import root_of

__all__ = ["SqliteRows"]

_VARIABLES = 500
#: Values of these are bound as they are: identities and JSON are the text that Django stores.
_IDENTICAL = (
    models.BinaryField,
    models.CharField,
    models.IntegerField,
    models.JSONField,
    models.TextField,
    IdField,
)


class SqliteRows:
    """Writes works through the ``sqlite3`` connection below a Django connection."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._statements: dict[str, str] = {}
        self._converters: dict[str, tuple[tuple[int, Callable[[Any], Any]], ...]] = {}
        for group in INSERTS:
            names = ", ".join(group.columns)
            marks = ", ".join("?" * len(group.columns))
            tail = " ON CONFLICT (content_id) DO NOTHING" if group.name == "contents" else ""
            self._statements[group.name] = f"INSERT INTO {group.table} ({names}) VALUES ({marks}){tail}"  # noqa: S608
        for group in (ROOT, *UPDATES):
            self._statements[group.name] = self._update(group)
        for group in (ROOT, *INSERTS, *UPDATES):
            self._converters[group.name] = tuple(self._conversions(group))
        self.statement_count = 0

    def configure(self, *, lease_seconds: float) -> None:
        """Nothing: the busy timeout and the journal mode are the site's settings (checked at start)."""

    def _raw(self) -> sqlite3.Connection:
        self._connection.ensure_connection()
        raw: sqlite3.Connection = self._connection.connection
        return raw

    def commit(self, works: Sequence[Transition | OperationStep]) -> list[bool]:
        """Write ``works`` in one transaction; says for each whether it is committed.

        One whose comparison missed has left no row and hindered no other. Any error means that nothing at all
        was written.
        """
        raw = self._raw()
        raw.execute("BEGIN IMMEDIATE")
        try:
            done = self.write(works)
            raw.execute("COMMIT")
        except BaseException:
            if raw.in_transaction:
                raw.execute("ROLLBACK")
            raise
        return done

    def write(self, works: Sequence[Transition | OperationStep]) -> list[bool]:
        """As ``commit``, inside the transaction that is open on this connection."""
        good = self._good(works)
        chosen = [work for work, fits in zip(works, good, strict=True) if fits]
        rows = rows_of(chosen)
        roots = [work.root for work in chosen if isinstance(work, Transition)]
        if roots:
            self._change(ROOT, roots)
        for group in UPDATES:
            if group.name in rows:
                self._change(group, rows[group.name][1])
        for group in INSERTS:
            if group.name in rows:
                added = rows[group.name][1]
                self._execute(self._statements[group.name], self._converted(group, added))
        return good

    # --- comparison -------------------------------------------------------------------------------------

    def _good(self, works: Sequence[Transition | OperationStep]) -> list[bool]:
        """Which works may be written: the comparison of ``PostgresRows``, by reading under the write lock."""
        rows = rows_of(works)
        roots = self._current(ROOT, (root_of(work) for work in works))
        executions: dict[Any, Any] = {}
        if "execution_change" in rows:
            ids = (row.execution_id for row in rows["execution_change"][1])
            executions = self._current(EXECUTION_CHANGES, ids, "stop_kind")
        operations: dict[Any, Any] = {}
        if "operation_changes" in rows:
            ids = (row.operation_id for row in rows["operation_changes"][1])
            operations = self._current(OPERATION_CHANGES, ids)
        approvals: dict[Any, Any] = {}
        if "approval_changes" in rows:
            ids = (row.approval_request_id for row in rows["approval_changes"][1])
            approvals = self._current(APPROVAL_CHANGES, ids)
        return [
            _fits(work, roots, executions, operations) and _approvals_fit(work, approvals) for work in works
        ]

    def _current(self, group: RowGroup, ids: Iterable[Any], *more: str) -> dict[Any, tuple[Any, ...]]:
        """The compared columns of these rows, by key, in the order of ``group.expected``, then ``more``."""
        wanted = list(dict.fromkeys(ids))
        names = ", ".join((group.key, *(column for _, column in group.expected), *more))
        found: dict[Any, tuple[Any, ...]] = {}
        for start in range(0, len(wanted), _VARIABLES):
            part = wanted[start : start + _VARIABLES]
            marks = ", ".join("?" * len(part))
            self.statement_count += 1
            cursor = self._raw().execute(
                f"SELECT {names} FROM {group.table} WHERE {group.key} IN ({marks})",  # noqa: S608
                part,
            )
            found.update((row[0], tuple(row[1:])) for row in sqlite3.Cursor.fetchall(cursor))
        return found

    # --- writing ----------------------------------------------------------------------------------------

    def _change(self, group: RowGroup, rows: Sequence[Any]) -> None:
        order = (*group.assigned, group.key)
        places = [group.columns.index(name) for name in order]
        values = [tuple(row[place] for place in places) for row in self._converted(group, rows)]
        count = self._execute(self._statements[group.name], values)
        if count != len(rows):
            raise ConflictError(
                f"{count} of {len(rows)} rows of {group.table} were there to be changed; nothing was applied. "
                "A record that the transition names does not exist: load the agent again."
            )

    def _execute(self, statement: str, rows: Sequence[Sequence[Any]]) -> int:
        self.statement_count += 1
        cursor = self._raw().cursor()
        return sqlite3.Cursor.executemany(cursor, statement, rows).rowcount

    def _converted(self, group: RowGroup, rows: Sequence[Any]) -> Sequence[Any]:
        converters = self._converters[group.name]
        if not converters:
            return rows
        converted = []
        for row in rows:
            values = list(row)
            for place, convert in converters:
                if values[place] is not None:
                    values[place] = convert(values[place])
            converted.append(values)
        return converted

    def _conversions(self, group: RowGroup) -> Iterable[tuple[int, Callable[[Any], Any]]]:
        for place, name in enumerate(group.columns):
            field = group.field(name)
            if isinstance(field, models.DateTimeField):
                yield place, self._moment
            elif isinstance(field, models.BooleanField):
                yield place, bool
            elif not isinstance(field, _IDENTICAL):
                yield place, self._adapted(field)

    def _moment(self, value: datetime) -> str | None:
        text: str | None = self._connection.ops.adapt_datetimefield_value(value)
        return text

    def _adapted(self, field: models.Field[Any, Any]) -> Callable[[Any], Any]:
        return lambda value: field.get_db_prep_save(value, self._connection)

    @staticmethod
    def _update(group: RowGroup) -> str:
        assigned = ", ".join(f"{name} = ?" for name in group.assigned)
        return f"UPDATE {group.table} SET {assigned} WHERE {group.key} = ?"  # noqa: S608


def _approvals_fit(work: Transition | OperationStep, approvals: dict[Any, tuple[Any, ...]]) -> bool:
    return isinstance(work, OperationStep) or all(
        approvals.get(item.approval_request_id) == (item.expected_state,) for item in work.approval_changes
    )


def _fits(
    work: Transition | OperationStep,
    roots: dict[Any, tuple[Any, ...]],
    executions: dict[Any, tuple[Any, ...]],
    operations: dict[Any, tuple[Any, ...]],
) -> bool:
    if isinstance(work, OperationStep):
        root, changes = roots.get(work.root_id), work.changes
        fits = root is not None and root[:2] == (work.owner_id, work.fencing_token)
    else:
        move, change, changes = work.root, work.execution_change, work.operation_changes
        expected = (
            move.owner_id,
            move.fencing_token,
            move.expected_agent_revision,
            move.expected_journal_position,
        )
        fits = roots.get(move.id) == expected
        if fits and change is not None:
            execution = executions.get(change.execution_id)
            fits = execution is not None and execution[0] == change.expected_revision
            fits = fits and not (work.requires_no_stop and execution is not None and execution[1])
    return fits and all(
        operations.get(item.operation_id) == (item.expected_state, item.expected_attempt, item.expected_claim)
        for item in changes
    )
