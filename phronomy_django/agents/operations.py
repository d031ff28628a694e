"""Operations on their way through the pools: slot, claim, attempts, physical end.

Owns the live operations of one runtime (loop thread only). A session asks it to start or to cancel work and
hears of each operation exactly one answer and one physical end. It knows attempts, claims and pools; it knows
nothing of what a tool or a model is.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, TypeAlias

from phronomy_django.agents.run import Work
from phronomy_django.domain.errors import BackpressureError
from phronomy_django.domain.ids import new_id
from phronomy_django.domain.records import OperationChange, OperationStep
from phronomy_django.domain.statuses import OperationState
from phronomy_django.engine import CancellationToken, OffloadPool, TaskResult, Timers
from phronomy_django.store import CommitAnswer, Committed, DurableWriter

__all__ = ["Operation", "OperationMessage", "OperationRunner"]

logger = logging.getLogger("phronomy_django.agents")

Body: TypeAlias = Callable[[], Any]


@dataclass(slots=True, kw_only=True)
class Operation:
    """One live operation. The session fills the upper part, the runner keeps the lower one.

    ``body(attempt)`` gives the function for the pool; ``retry(error, attempt)`` the seconds until the next
    attempt, or None; ``ended(value, error, over)`` takes the one answer (``over``: the body runs no more);
    ``over()`` is called when the body of an operation that was given up has ended, or was withdrawn.
    ``interruptible``: the token really stops the body (a coroutine); a thread's body is waited for instead.
    """

    work: Work
    root_id: int
    fencing_token: int
    body: Callable[[int], Body]
    retry: Callable[[BaseException, int], float | None]
    ended: Callable[[Any, BaseException | None, bool], None]
    over: Callable[[], None]
    timeout: float | None = None
    interruptible: bool = False
    token: CancellationToken = field(default_factory=CancellationToken)

    reservation: Any = None
    waiting: Any = None
    running: bool = False
    answered: bool = False
    body_over: bool = False


@dataclass(frozen=True, slots=True)
class SlotGranted:
    operation_id: str
    reservation: Any


@dataclass(frozen=True, slots=True)
class StepAnswered:
    operation_id: str
    work: Work
    answer: CommitAnswer


@dataclass(frozen=True, slots=True)
class BodyEnded:
    """A pool has answered for an attempt."""

    operation_id: str
    attempt: int
    value: Any
    error: BaseException | None


@dataclass(frozen=True, slots=True)
class BodyOver:
    """The body of an attempt runs no more."""

    operation_id: str
    attempt: int


@dataclass(frozen=True, slots=True)
class RetryDue:
    operation_id: str
    attempt: int


OperationMessage: TypeAlias = SlotGranted | StepAnswered | BodyEnded | BodyOver | RetryDue


class OperationRunner:
    """See the module. ``post`` puts a message on the loop, from any thread."""

    def __init__(
        self,
        *,
        pools: Mapping[str, OffloadPool],
        writer: DurableWriter,
        timers: Timers,
        owner_id: str,
        now: Callable[[], datetime],
        post: Callable[[OperationMessage], object],
    ) -> None:
        self._pools = pools
        self._writer = writer
        self._timers = timers
        self._owner_id = owner_id
        self._now = now
        self._post = post
        self._reservations: dict[str, Any] = {}
        self._live: dict[str, Operation] = {}
        self._ended: dict[str, Work] = {}
        self._bodies: set[str] = set()

    # --- asked by sessions ------------------------------------------------------------------------------

    def fresh(self, pool: str) -> Work:
        """A new operation for ``pool``: ``started`` if a slot is free and now reserved, else ``queued``."""
        operation_id = new_id()
        reservation = self._pools[pool].try_reserve()
        if reservation is None:
            return Work(operation_id=operation_id, pool=pool)
        self._reservations[operation_id] = reservation
        return Work(
            operation_id=operation_id,
            pool=pool,
            claim=new_id(),
            state=OperationState.STARTED,
            started_at=self._now(),
        )

    def release(self, operation_ids: frozenset[str]) -> None:
        """Give back the slots of operations whose dispatch was not committed or is not wanted any more."""
        for operation_id in operation_ids:
            reservation = self._reservations.pop(operation_id, None)
            if reservation is not None:
                reservation.release()

    def start(self, operation: Operation) -> None:
        """Run a committed operation: at once if its slot is reserved, else as soon as there is one."""
        self._live[operation.work.operation_id] = operation
        operation.reservation = self._reservations.pop(operation.work.operation_id, None)
        if operation.reservation is not None:
            self._submit(operation)
        else:
            self._await_slot(operation)

    def cancel(self, operation_id: str) -> bool:
        """Withdraw an operation that has not started (True), or tell its body that it is cancelled (False)."""
        operation = self._live.get(operation_id)
        if operation is None:
            return False
        operation.token.cancel()
        if operation.running:
            return False
        if operation.waiting is not None:
            operation.waiting.cancel()
            self._withdraw(operation)
        return True

    def knows(self, operation_id: str) -> bool:
        """Whether the operation was started here and has not ended."""
        return operation_id in self._live

    def current(self, work: Work) -> Work:
        """The attempt and the claim that count now."""
        operation = self._live.get(work.operation_id)
        return self._ended.get(work.operation_id, work) if operation is None else operation.work

    def still_runs(self, work: Work) -> bool:
        """Whether the operation has its answer while its body, given up, has not ended."""
        operation = self._live.get(work.operation_id)
        return operation is not None and operation.answered

    def forget(self, operation_ids: frozenset[str]) -> None:
        """A session is gone: cancel its work and expect nothing more of it."""
        self.release(operation_ids)
        for operation_id in operation_ids:
            self._ended.pop(operation_id, None)
            operation = self._live.pop(operation_id, None)
            if operation is not None:
                operation.token.cancel()
                if operation.waiting is not None:
                    operation.waiting.cancel()
                if operation.reservation is not None and not operation.running:
                    operation.reservation.release()

    @property
    def count(self) -> int:
        return len(self._live)

    # --- told by pools, timers and the writer (on the loop) -------------------------------------------------

    @property
    def bodies(self) -> frozenset[str]:
        """The operations whose bodies run in this process now, wanted or given up."""
        return frozenset(self._bodies)

    def deliver(self, message: OperationMessage) -> None:
        if isinstance(message, BodyOver):
            self._bodies.discard(message.operation_id)
        operation = self._live.get(message.operation_id)
        match message:
            case SlotGranted():
                self._claim(operation, message.reservation)
            case StepAnswered() if operation is not None:
                self._claimed(operation, message)
            case BodyEnded() if operation is not None and operation.work.attempt == message.attempt:
                self._body_ended(operation, message)
            case BodyOver() if operation is not None and operation.work.attempt == message.attempt:
                self._body_over(operation)
            case RetryDue() if operation is not None and operation.work.attempt == message.attempt:
                operation.waiting = None
                self._await_slot(operation)
            case _:
                logger.info("Dropped a late answer for operation %s", message.operation_id)

    # --- steps ------------------------------------------------------------------------------------------

    def _await_slot(self, operation: Operation) -> None:
        operation_id = operation.work.operation_id
        try:
            operation.waiting = self._pools[operation.work.pool].reserve_later(
                lambda reservation: self._post(SlotGranted(operation_id, reservation))
            )
        except BackpressureError as error:
            self._answer(operation, None, error, over=True)

    def _claim(self, operation: Operation | None, reservation: Any) -> None:
        """HARD_POINTS 7: from ``queued`` (or an ended attempt) to ``started``, committed before the body."""
        if isinstance(reservation, BaseException):
            if operation is not None:
                operation.waiting = None
                self._answer(operation, None, reservation, over=True)
            return
        if operation is None or operation.token.cancelled:
            reservation.release()
            return
        operation.waiting = None
        operation.reservation = reservation
        before, now = operation.work, self._now()
        again = before.state is OperationState.STARTED
        after = replace(
            before,
            attempt=before.attempt + again,
            claim=new_id(),
            state=OperationState.STARTED,
            started_at=now,
        )
        change = OperationChange(
            before.operation_id,
            before.state,
            before.attempt,
            before.claim,
            after.state,
            after.attempt,
            after.claim,
            self._owner_id,
            "",
            None,
            False,
            now,
            now,
            None,
        )
        step = OperationStep(
            root_id=operation.root_id,
            owner_id=self._owner_id,
            fencing_token=operation.fencing_token,
            changes=(change,),
            barrier="claim",
        )
        operation_id = before.operation_id
        self._writer.submit(step, lambda answer: self._post(StepAnswered(operation_id, after, answer)))

    def _claimed(self, operation: Operation, message: StepAnswered) -> None:
        if isinstance(message.answer, Committed):
            operation.work = message.work
            if operation.token.cancelled:
                operation.reservation.release()
                self._withdraw(operation)
            else:
                self._submit(operation)
            return
        operation.reservation.release()
        self._answer(operation, None, message.answer.error, over=True)

    def _submit(self, operation: Operation) -> None:
        operation_id, attempt = operation.work.operation_id, operation.work.attempt
        operation.running = True
        operation.body_over = False
        self._bodies.add(operation_id)
        reservation, operation.reservation = operation.reservation, None

        def ended(result: TaskResult[Any]) -> None:
            error = result.error
            value = None if error is not None else result.result()
            self._post(BodyEnded(operation_id, attempt, value, error))

        self._pools[operation.work.pool].submit(
            operation.body(attempt),
            timeout=operation.timeout,
            cancellation_token=operation.token if operation.interruptible else None,
            reservation=reservation,
            on_physical_end=lambda: self._post(BodyOver(operation_id, attempt)),
        ).on_complete(ended)

    def _body_ended(self, operation: Operation, message: BodyEnded) -> None:
        error = message.error
        if error is not None and not operation.token.cancelled:
            delay = operation.retry(error, message.attempt) if operation.body_over else None
            if delay is not None:
                operation.running = False
                due = RetryDue(operation.work.operation_id, message.attempt)
                operation.waiting = self._timers.call_later(delay, lambda: self._post(due))
                return
        self._answer(operation, message.value, error, over=operation.body_over)

    def _body_over(self, operation: Operation) -> None:
        operation.body_over = True
        if operation.answered:
            self._leave(operation)
            operation.over()

    def _answer(self, operation: Operation, value: Any, error: BaseException | None, *, over: bool) -> None:
        operation.answered = True
        if over:
            self._leave(operation)
        operation.ended(value, error, over)

    def _withdraw(self, operation: Operation) -> None:
        self._leave(operation)
        operation.over()

    def _leave(self, operation: Operation) -> None:
        """No longer live; its attempt and claim are kept until its row is closed and the session forgets it."""
        work = operation.work
        del self._live[work.operation_id]
        self._ended[work.operation_id] = work
