"""The rows of operations inside a barrier: a fresh one, and the end of one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from phronomy_django.agents.draft import Draft
from phronomy_django.agents.run import Work
from phronomy_django.domain.ids import new_id
from phronomy_django.domain.records import OperationChange, OperationRow
from phronomy_django.domain.statuses import OperationState

__all__ = ["OperationRows"]


@dataclass(frozen=True, slots=True)
class OperationRows:
    """``work_for(pool)`` gives a fresh operation, ``started`` if a slot of the pool is reserved (HARD_POINTS 7).

    ``current(work)`` is the attempt and claim that count now; ``still_runs(work)`` says whether its body, given up,
    has not ended. ``left_open`` holds the operations whose answer was recorded while their body ran: their rows are
    closed when the run ends, which waits for them.
    """

    owner_id: str
    work_for: Callable[[str], Work]
    current: Callable[[Work], Work]
    still_runs: Callable[[Work], bool]
    left_open: dict[str, Work]

    @staticmethod
    def on_loop() -> Work:
        """An operation that the loop itself performs (a cooperative tool): it needs no slot."""
        return Work(operation_id=new_id(), pool="", claim=new_id(), state=OperationState.STARTED)

    def insert(
        self, draft: Draft, execution_id: str, work: Work, kind: str, subject_id: str, request: str
    ) -> None:
        started = work.state is OperationState.STARTED
        row = OperationRow(
            work.operation_id,
            execution_id,
            kind,
            subject_id,
            work.pool,
            work.state,
            work.attempt,
            work.claim,
            self.owner_id if started else None,
            "",
            request,
            draft.now,
            draft.now,
            draft.now if started else None,
        )
        draft.operations.append(row)

    def close(self, draft: Draft, work: Work, state: OperationState, outcome: str | None) -> None:
        started = work.state is OperationState.STARTED
        still_runs = state is OperationState.STARTED
        change = OperationChange(
            work.operation_id,
            work.state,
            work.attempt,
            work.claim,
            state,
            work.attempt,
            work.claim,
            self.owner_id if started else None,
            "",
            outcome,
            still_runs,
            draft.now,
            (work.started_at or draft.now) if started else None,
            None if still_runs else draft.now,
        )
        draft.operation_changes.append(change)
        if still_runs:
            self.left_open[work.operation_id] = work
