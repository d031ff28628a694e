"""Transitions on PostgreSQL: any number of them in one statement, so in one round trip and one transaction.

The statement is its own transaction where none is open: there is no time in which it waits with locks held for
this process (HARD_POINTS 3), and no COMMIT that a missed comparison could let through (HARD_POINTS 1).
"""

# ruff: noqa: S608 - statements are put together from the names of our own models; values are parameters

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import psycopg
from psycopg.pq import TransactionStatus

from phronomy_django.domain.records import OperationStep, RootChange, Transition
from phronomy_django.store.literals import Encoder, booleans, encoder_for, integers
from phronomy_django.store.postgres_plain import PlainForm
from phronomy_django.store.tables import (
    EXECUTION_CHANGES,
    INSERTS,
    ROOT,
    UPDATES,
    RowGroup,
    rows_of,
)

__all__ = ["PostgresRows"]

_GROUPS = (*INSERTS, *UPDATES)


class PostgresRows:
    """Writes works through the psycopg connection below a Django connection."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._statements: dict[frozenset[str], str] = {}
        self._encoders: dict[str, tuple[Encoder, ...]] = {}
        self._types: dict[str, tuple[str, ...]] = {}
        for group in (ROOT, *_GROUPS):
            pairs = [encoder_for(group.field(name), connection) for name in group.columns]
            self._types[group.name] = tuple(kind for kind, _ in pairs)
            self._encoders[group.name] = tuple(encoder for _, encoder in pairs)
        self._plain = PlainForm(self._types)
        self.statement_count = 0

    # --- session ----------------------------------------------------------------------------------------

    def configure(self, *, lease_seconds: float) -> None:
        """Bound what one of our statements may wait for, and plan for any number of rows (once a connection).

        Joins are by hash and base tables by index, whatever the statistics said when the plan was made.
        """
        quarter = max(1, int(lease_seconds * 250))
        settings = {
            "lock_timeout": min(2000, quarter),
            "statement_timeout": quarter,
            "idle_in_transaction_session_timeout": quarter,
            "plan_cache_mode": "force_generic_plan",
            "enable_seqscan": "off",
            "enable_nestloop": "off",
            "jit": "off",
        }
        raw = self._raw()
        raw.prepare_threshold = 0  # Django turns prepared statements off for the sake of poolers
        raw.execute(
            "SELECT " + ", ".join(["set_config(%s, %s, false)"] * len(settings)),
            [str(item) for pair in settings.items() for item in pair],
        )

    def _raw(self) -> psycopg.Connection[Any]:
        self._connection.ensure_connection()
        raw: psycopg.Connection[Any] = self._connection.connection
        return raw

    # --- works ------------------------------------------------------------------------------------------

    def commit(self, works: Sequence[Transition | OperationStep]) -> list[bool]:
        """Write ``works`` in one transaction; says for each whether it is committed.

        One whose comparison missed, or whose row another transaction holds, has left no row and hindered no
        other; one that is alone may also raise for it (division by zero). Any error means that nothing at all was
        written, unless the connection was lost.
        """
        raw = self._raw()
        if raw.info.transaction_status is not TransactionStatus.IDLE:
            raise RuntimeError("The writer's connection is inside a transaction.")
        work = works[0]
        if len(works) == 1 and isinstance(work, Transition):
            plain = self._plain.statement(work)
            if plain is not None:
                self.statement_count += 1
                psycopg.RawCursor(raw).execute(*plain, prepare=True)
                return [True]
        return self.write(works)

    def write(self, works: Sequence[Transition | OperationStep]) -> list[bool]:
        """As ``commit``, inside the transaction that is open on this connection."""
        rows = rows_of(works)
        shape = frozenset(rows)
        statement = self._statements.get(shape)
        if statement is None:
            statement = self._statements[shape] = self._build(shape)
        cursor: psycopg.RawCursor[Any] = psycopg.RawCursor(self._raw())
        self.statement_count += 1
        cursor.execute(statement, self._parameters(works, rows), prepare=True)
        record = cursor.fetchone()
        done = set(record[0] or ()) if record is not None else set()
        return [position in done for position in range(len(works))]

    def _parameters(
        self, works: Sequence[Transition | OperationStep], rows: dict[str, tuple[list[int], list[Any]]]
    ) -> list[str]:
        roots = [work.root if isinstance(work, Transition) else _unmoved(work) for work in works]
        columns = [
            encode(column)
            for encode, column in zip(self._encoders["root"], zip(*roots, strict=True), strict=True)
        ]
        moves = booleans([isinstance(work, Transition) for work in works])
        parameters = [integers(range(len(works))), moves, *columns, columns[0]]
        for group in UPDATES:
            if group.name in rows:
                positions, changes = rows[group.name]
                columns = self._columns(group, changes)
                parameters += [integers(positions), *columns]
                if group is EXECUTION_CHANGES:
                    parameters.append(
                        booleans([_requires_no_stop(works[position]) for position in positions])
                    )
                if group.expected:
                    parameters.append(columns[group.columns.index(group.key)])
        for group in INSERTS:
            if group.name in rows:
                positions, added = rows[group.name]
                parameters += [integers(positions), *self._columns(group, added)]
        return parameters

    def _columns(self, group: RowGroup, rows: Sequence[Any]) -> list[str]:
        return [
            encode(column)
            for encode, column in zip(self._encoders[group.name], zip(*rows, strict=True), strict=True)
        ]

    # --- the statement ----------------------------------------------------------------------------------

    def _build(self, shape: frozenset[str]) -> str:
        """The one statement that moves roots and everything with them.

        ``good`` are the works whose root is ours by owner and token, at the expected revision and position,
        whose operations are at the expected state, attempt and claim, and whose execution is at the expected
        revision (with no stop requested where that is required). All rows are locked while they are compared,
        in the order of their ids; a row that somebody else holds is skipped, not waited for, and its work is not
        good. Whatever is written is written for good works only. The last expression divides by zero unless
        every update of a good work found its row, so that then nothing is committed.
        """
        parts = [self._want(), self._lock(ROOT, "root")]
        unmet: list[str] = []
        for group in UPDATES:
            if group.name in shape:
                parts.append(self._changes(group))
                if group.expected:
                    parts.append(self._lock(group, f"held_{group.name}"))
                    unmet.append(self._unmet(group))
        parts.append(self._good(unmet))
        parts += [self._insert(group) for group in INSERTS if group.name in shape]
        checks = ["(SELECT count(*) FROM moved) = (SELECT count(*) FROM good WHERE moves)"]
        parts.append(self._move())
        for group in UPDATES:
            if group.name in shape:
                parts.append(self._update(group))
                checks.append(
                    f"(SELECT count(*) FROM did_{group.name}) = "
                    f"(SELECT count(*) FROM {group.name} WHERE t IN (SELECT t FROM good))"
                )
        return _numbered(
            "WITH " + ",\n".join(parts) + "\nSELECT array_agg(t), 1 / (CASE WHEN "
            f"{' AND '.join(checks)} THEN 1 ELSE 0 END) FROM good"
        )

    def _want(self) -> str:
        return (
            f"want AS MATERIALIZED (SELECT * FROM {self._unnest('root', ('t', 'moves'), ('int', 'boolean'))})"
        )

    def _unnest(
        self,
        name: str,
        first: tuple[str, ...],
        kinds: tuple[str, ...],
        last: tuple[tuple[str, str], ...] = (),
    ) -> str:
        group = next(item for item in (ROOT, *_GROUPS) if item.name == name)
        all_kinds = (*kinds, *self._types[name], *(kind for _, kind in last))
        names = (*first, *group.columns, *(item for item, _ in last))
        arrays = ", ".join(f"%s::{kind}[]" for kind in all_kinds)
        return f"unnest({arrays}) AS x({', '.join(names)})"

    def _lock(self, group: RowGroup, name: str) -> str:
        columns = {column for _, column in group.expected} | {group.key}
        if group is EXECUTION_CHANGES:
            columns.add("stop_kind")
        kind = self._types[group.name][group.columns.index(group.key)]
        return (
            f"{name} AS MATERIALIZED (SELECT {', '.join(sorted(columns))} FROM {group.table} "
            f"WHERE {group.key} = ANY(%s::{kind}[]) ORDER BY {group.key} FOR NO KEY UPDATE SKIP LOCKED)"
        )

    def _changes(self, group: RowGroup) -> str:
        last = (("requires_no_stop", "boolean"),) if group is EXECUTION_CHANGES else ()
        source = self._unnest(group.name, ("t",), ("int",), last)
        return f"{group.name} AS MATERIALIZED (SELECT * FROM {source})"

    @staticmethod
    def _unmet(group: RowGroup) -> str:
        same = " AND ".join(
            f"h.{column} IS NOT DISTINCT FROM c.{name}"
            for name, column in group.expected
            if name == "expected_claim"
        )
        equal = [f"h.{column} = c.{name}" for name, column in group.expected if name != "expected_claim"]
        if group is EXECUTION_CHANGES:
            equal.append("(h.stop_kind = '' OR NOT c.requires_no_stop)")
        conditions = " AND ".join([f"h.{group.key} = c.{group.key}", *equal, *filter(None, [same])])
        return (
            f"SELECT c.t FROM {group.name} c LEFT JOIN held_{group.name} h ON {conditions} "
            f"WHERE h.{group.key} IS NULL"
        )

    @staticmethod
    def _good(unmet: Sequence[str]) -> str:
        without = "".join(f" AND w.t NOT IN ({query})" for query in unmet)
        return (
            "good AS MATERIALIZED (SELECT w.* FROM want w JOIN root r ON r.id = w.id "
            "AND r.owner_id = w.owner_id AND r.fencing_token = w.fencing_token WHERE (NOT w.moves "
            "OR (r.agent_revision = w.expected_agent_revision "
            f"AND r.journal_position = w.expected_journal_position)){without})"
        )

    def _insert(self, group: RowGroup) -> str:
        names = ", ".join(group.columns)
        contents = group.name == "contents"
        tail = " ORDER BY content_id ON CONFLICT (content_id) DO NOTHING" if contents else ""
        return (
            f"did_{group.name} AS (INSERT INTO {group.table} ({names}) SELECT {names} FROM "
            f"{self._unnest(group.name, ('t',), ('int',))} WHERE t IN (SELECT t FROM good){tail})"
        )

    @staticmethod
    def _move() -> str:
        assigned = ", ".join(f"{column} = good.{column}" for column in ROOT.assigned)
        return (
            f"moved AS (UPDATE {ROOT.table} AS target SET {assigned} FROM good "
            "WHERE target.id = good.id AND good.moves AND target.id = ANY(ARRAY(SELECT id FROM good)) "
            "RETURNING 1)"
        )

    @staticmethod
    def _update(group: RowGroup) -> str:
        assigned = ", ".join(f"{column} = c.{column}" for column in group.assigned)
        good = "SELECT t FROM good"
        return (
            f"did_{group.name} AS (UPDATE {group.table} AS target SET {assigned} "
            f"FROM (SELECT * FROM {group.name} WHERE t IN ({good})) AS c WHERE target.{group.key} = c.{group.key} "
            f"AND target.{group.key} = ANY(ARRAY(SELECT {group.key} FROM {group.name})) RETURNING 1)"
        )


def _unmoved(step: OperationStep) -> RootChange:
    return RootChange(step.root_id, step.owner_id, step.fencing_token, 0, 0, 0, 0, 0, 0, "")


def _requires_no_stop(work: Transition | OperationStep) -> bool:
    return isinstance(work, Transition) and work.requires_no_stop


def _numbered(statement: str) -> str:
    """``%s`` as ``$1``, ``$2``, …: the form that the driver sends as it is."""
    pieces = statement.split("%s")
    return "".join(f"{piece}${place}" for place, piece in enumerate(pieces[:-1], 1)) + pieces[-1]
