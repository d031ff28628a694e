"""The tables of a transition by the names that the models give them: one place for both dialects."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from django.db import models

from phronomy_django.domain import records
from phronomy_django.domain.records import OperationStep, Transition
from phronomy_django.models import (
    AgentExecution,
    AgentRoot,
    ApprovalRequest,
    Content,
    ExecutionEvent,
    JournalRecord,
    LLMCall,
    OffloadOperation,
    ToolInvocation,
)

__all__ = [
    "APPROVAL_CHANGES",
    "EXECUTION_CHANGES",
    "INSERTS",
    "LLM_CALL_CHANGES",
    "OPERATION_CHANGES",
    "ROOT",
    "TOOL_INVOCATION_CHANGES",
    "UPDATES",
    "RowGroup",
    "rows_of",
]


@dataclass(frozen=True)
class RowGroup:
    """Rows of one kind in a transition: their table, and which of their columns decide and which are set.

    ``key`` is the primary key of an update. ``expected`` maps the fields that prove an update to columns.
    """

    name: str
    model: type[models.Model]
    columns: tuple[str, ...]
    key: str = ""
    expected: tuple[tuple[str, str], ...] = ()

    @property
    def table(self) -> str:
        return f'"{self.model._meta.db_table}"'

    @cached_property
    def assigned(self) -> tuple[str, ...]:
        """The columns that an update sets."""
        names = {name for name, _ in self.expected}
        return tuple(name for name in self.columns if name != self.key and name not in names)

    def field(self, name: str) -> models.Field[Any, Any]:
        """The model's field for a field of the row, followed through foreign keys."""
        column = dict(self.expected).get(name, name)
        field: Any = next(f for f in self.model._meta.concrete_fields if f.column == column)
        while field.remote_field is not None:
            field = field.target_field
        found: models.Field[Any, Any] = field
        return found


def _insert(name: str, model: type[models.Model], row: Any) -> RowGroup:
    return RowGroup(name, model, row._fields)


INSERTS = (
    _insert("contents", Content, records.ContentRow),
    _insert("execution", AgentExecution, records.ExecutionRow),
    _insert("llm_calls", LLMCall, records.LLMCallRow),
    _insert("tool_invocations", ToolInvocation, records.ToolInvocationRow),
    _insert("operations", OffloadOperation, records.OperationRow),
    _insert("approvals", ApprovalRequest, records.ApprovalRow),
    _insert("journal", JournalRecord, records.JournalRow),
    _insert("events", ExecutionEvent, records.EventRow),
)
EXECUTION_CHANGES = RowGroup(
    "execution_change",
    AgentExecution,
    records.ExecutionChange._fields,
    "execution_id",
    (("expected_revision", "execution_revision"),),
)
LLM_CALL_CHANGES = RowGroup("llm_call_changes", LLMCall, records.LLMCallChange._fields, "llm_call_id")
TOOL_INVOCATION_CHANGES = RowGroup(
    "tool_invocation_changes", ToolInvocation, records.ToolInvocationChange._fields, "tool_invocation_id"
)
OPERATION_CHANGES = RowGroup(
    "operation_changes",
    OffloadOperation,
    records.OperationChange._fields,
    "operation_id",
    (("expected_state", "state"), ("expected_attempt", "attempt"), ("expected_claim", "claim")),
)
APPROVAL_CHANGES = RowGroup(
    "approval_changes",
    ApprovalRequest,
    records.ApprovalChange._fields,
    "approval_request_id",
    (("expected_state", "state"),),
)
UPDATES = (
    EXECUTION_CHANGES,
    LLM_CALL_CHANGES,
    TOOL_INVOCATION_CHANGES,
    OPERATION_CHANGES,
    APPROVAL_CHANGES,
)
ROOT = RowGroup(
    "root",
    AgentRoot,
    records.RootChange._fields,
    "id",
    (
        ("owner_id", "owner_id"),
        ("fencing_token", "fencing_token"),
        ("expected_agent_revision", "agent_revision"),
        ("expected_journal_position", "journal_position"),
    ),
)


def rows_of(works: Sequence[Transition | OperationStep]) -> dict[str, tuple[list[int], list[Any]]]:
    """The rows of all works by group, each with the position of its work; groups without rows are missing."""
    found: dict[str, tuple[list[int], list[Any]]] = {}

    def add(name: str, position: int, rows: Sequence[Any]) -> None:
        group = found.get(name)
        if group is None:
            group = found[name] = ([], [])
        group[0].extend([position] * len(rows))
        group[1].extend(rows)

    for position, work in enumerate(works):
        if isinstance(work, OperationStep):
            add("operation_changes", position, work.changes)
            continue
        add("journal", position, work.journal)
        if work.contents:
            add("contents", position, work.contents)
        if work.execution is not None:
            add("execution", position, (work.execution,))
        if work.execution_change is not None:
            add("execution_change", position, (work.execution_change,))
        if work.llm_calls:
            add("llm_calls", position, work.llm_calls)
        if work.llm_call_changes:
            add("llm_call_changes", position, work.llm_call_changes)
        if work.tool_invocations:
            add("tool_invocations", position, work.tool_invocations)
        if work.tool_invocation_changes:
            add("tool_invocation_changes", position, work.tool_invocation_changes)
        if work.operations:
            add("operations", position, work.operations)
        if work.operation_changes:
            add("operation_changes", position, work.operation_changes)
        if work.approvals:
            add("approvals", position, work.approvals)
        if work.approval_changes:
            add("approval_changes", position, work.approval_changes)
        if work.events:
            add("events", position, work.events)
    return found
