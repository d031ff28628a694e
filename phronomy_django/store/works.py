"""What the durable writer is given and what it answers: frozen values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from phronomy_django.domain.errors import ConflictError, OutcomeUnknownError, PhronomyError
from phronomy_django.domain.records import OperationStep, Transition

__all__ = [
    "Beat",
    "CommitAnswer",
    "Committed",
    "HookError",
    "IdempotencyConflictError",
    "Refused",
    "Unknown",
    "Work",
    "describe_work",
    "operation_ids",
    "root_of",
]


class HookError(PhronomyError):
    """Application code inside a barrier raised; everything of that barrier was rolled back.

    ``cause`` is what it raised.
    """

    def __init__(self, message: str, cause: Exception) -> None:
        super().__init__(message)
        self.cause = cause


class IdempotencyConflictError(ConflictError):
    """Another execution of this agent has the idempotency key; read it and give its answer."""

    def __init__(self, message: str, idempotency_key: str | None) -> None:
        super().__init__(message)
        self.idempotency_key = idempotency_key


@dataclass(frozen=True, slots=True)
class Beat:
    """A sign of life of a runtime (HARD_POINTS 6). Refused when its row is not ``running`` any more."""

    runtime_id: str


@dataclass(frozen=True, slots=True)
class Committed:
    """All rows of the work are committed."""


@dataclass(frozen=True, slots=True)
class Refused:
    """No row of the work is or will be committed; ``error`` says why."""

    error: PhronomyError


@dataclass(frozen=True, slots=True)
class Unknown:
    """Whether the work was committed cannot be established now (DESIGN §3, rule 7)."""

    error: OutcomeUnknownError


CommitAnswer: TypeAlias = Committed | Refused | Unknown
Work: TypeAlias = Transition | OperationStep | Beat


def root_of(work: Transition | OperationStep) -> int:
    return work.root.id if isinstance(work, Transition) else work.root_id


def operation_ids(work: Transition | OperationStep) -> list[str]:
    """The operations that the work changes; two works that change one of them never share a batch."""
    changes = work.operation_changes if isinstance(work, Transition) else work.changes
    return [change.operation_id for change in changes]


def describe_work(work: Work) -> str:
    """How a message names a work."""
    if isinstance(work, Transition):
        return f"transition {work.transition_id} ({work.barrier}) of root {work.root.id}"
    if isinstance(work, OperationStep):
        return f"step {work.barrier} of operations {', '.join(operation_ids(work))}"
    return f"beat of runtime {work.runtime_id}"
