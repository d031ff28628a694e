"""The plain form: one transition alone, as one statement of scalar values, where a missed comparison raises in SQL.

With nothing else to commit, the set-based form's arrays and joins cost more than the rows. The statement is its own
transaction; a miss divides by zero, so that nothing of it can be committed (HARD_POINTS 1).
"""

# ruff: noqa: S608 - statements are put together from the names of our own models; values are parameters

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from phronomy_django.domain.records import Transition
from phronomy_django.store.tables import EXECUTION_CHANGES, INSERTS, ROOT, UPDATES, RowGroup

__all__ = ["PlainForm"]

Shape = tuple[int, ...]
#: With more rows than this the set-based form is as fast, and its statements are fewer.
MAX_ROWS = 24


class PlainForm:
    """Builds and remembers one statement for each shape: the number of rows of each kind in a transition."""

    def __init__(self, types: Mapping[str, Sequence[str]]) -> None:
        self._types = types
        self._writers = {name: tuple(map(_writer, kinds)) for name, kinds in types.items()}
        self._statements: dict[Shape, str] = {}

    def statement(self, work: Transition) -> tuple[str, list[Any]] | None:
        """The statement and its parameters; None for a transition that is too large for this form."""
        groups = _rows(work)
        shape = (*map(len, groups), work.requires_no_stop)
        if sum(shape) > MAX_ROWS:
            return None
        statement = self._statements.get(shape)
        if statement is None:
            statement = self._statements[shape] = self._build(shape)
        parameters = self._values(ROOT, work.root)
        for group, rows in zip((*UPDATES, *INSERTS), groups, strict=True):
            for row in rows:
                parameters += self._values(group, row)
        return statement, parameters

    def _values(self, group: RowGroup, row: Sequence[Any]) -> list[Any]:
        return [
            None if value is None else value if write is None else write(value)
            for write, value in zip(self._writers[group.name], row, strict=True)
        ]

    def _build(self, shape: Shape) -> str:
        """The one statement that moves one root and everything with it.

        The root moves only while owner, token, revision and position are the expected ones; the execution at the
        expected revision (with no stop requested where that is required); each operation at the expected state,
        attempt and claim; and each changed row has to exist. A row that another transaction holds is not waited
        for. If any of these did not change exactly one row, the last expression divides by zero.
        """
        *counts, requires_no_stop = shape
        place = 0
        parts: list[str] = []
        changed: list[str] = []

        def numbers(group: RowGroup) -> dict[str, str]:
            nonlocal place
            names = {
                name: f"${place + offset}::{kind}"
                for offset, (name, kind) in enumerate(
                    zip(group.columns, self._types[group.name], strict=True), 1
                )
            }
            place += len(names)
            return names

        for group, count in zip((ROOT, *UPDATES), (1, *counts), strict=False):
            for number in range(count):
                name = f"{group.name}_{number}"
                no_stop = bool(requires_no_stop) and group is EXECUTION_CHANGES
                parts.append(f"{name} AS ({_update(group, numbers(group), no_stop)})")
                changed.append(f"(SELECT count(*) FROM {name})")
        for group, count in zip(INSERTS, counts[len(UPDATES) :], strict=True):
            if count:
                parts.append(f"{group.name}_0 AS ({_insert(group, [numbers(group) for _ in range(count)])})")
        return f"WITH {', '.join(parts)} SELECT 1 / ({' * '.join(changed)})"


def _rows(work: Transition) -> tuple[Sequence[Any], ...]:
    """The rows in the order of ``UPDATES`` and ``INSERTS``; contents by id, so that two writers cannot deadlock."""
    return (
        () if work.execution_change is None else (work.execution_change,),
        work.llm_call_changes,
        work.tool_invocation_changes,
        work.operation_changes,
        work.approval_changes,
        work.contents if len(work.contents) < 2 else sorted(work.contents, key=_content_id),
        () if work.execution is None else (work.execution,),
        work.llm_calls,
        work.tool_invocations,
        work.operations,
        work.approvals,
        work.journal,
        work.events,
    )


def _content_id(row: Any) -> str:
    content_id: str = row.content_id
    return content_id


def _update(group: RowGroup, values: Mapping[str, str], no_stop: bool) -> str:
    assigned = ", ".join(f"{name} = {values[name]}" for name in group.assigned)
    key = values[group.key]
    conditions = [
        f"{column} IS NOT DISTINCT FROM {values[name]}"
        if name == "expected_claim"
        else f"{column} = {values[name]}"
        for name, column in group.expected
    ]
    if no_stop:
        conditions.append("stop_kind = ''")
    row = key
    if conditions:
        row = (
            f"(SELECT {group.key} FROM {group.table} WHERE {group.key} = {key} FOR NO KEY UPDATE SKIP LOCKED)"
        )
    where = " AND ".join([f"{group.key} = {row}", *conditions])
    return f"UPDATE {group.table} SET {assigned} WHERE {where} RETURNING 1"


def _insert(group: RowGroup, rows: Iterable[Mapping[str, str]]) -> str:
    names = ", ".join(group.columns)
    values = ", ".join("(" + ", ".join(row[name] for name in group.columns) + ")" for row in rows)
    tail = " ON CONFLICT (content_id) DO NOTHING" if group.name == "contents" else ""
    return f"INSERT INTO {group.table} ({names}) VALUES {values}{tail}"


def _writer(kind: str) -> Callable[[Any], Any] | None:
    """How a value is sent: as text, so that a statement is prepared once whatever the size of a number."""
    match kind:
        case "integer" | "bigint" | "smallint" | "numeric":
            return str
        case "timestamp with time zone":
            return _moment
        case _:
            return None


def _moment(value: Any) -> str:
    text: str = value.isoformat()
    return text
