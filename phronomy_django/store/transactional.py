"""Bodies whose whole effect is in our transaction: it happened exactly if it is recorded (HARD_POINTS 3, 4, 16, 17)."""

from __future__ import annotations

import inspect
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeAlias, TypeVar

from django.db import connections, transaction
from django.db.models import F

from phronomy_django.domain.errors import ConfigurationError, ConflictError, OutcomeUnknownError, StorageError
from phronomy_django.domain.records import ContentRow, OperationChange, ToolInvocationChange
from phronomy_django.engine.failpoints import FailpointError, declare, failpoint
from phronomy_django.models import Content, OffloadOperation, ToolInvocation
from phronomy_django.store.connections import only_database
from phronomy_django.store.failures import FailureKind, failure_kind

__all__ = ["BodyFailed", "OutcomeRows", "Recorded", "record_operation_outcome", "run_transactional"]

declare(
    "store.transactional.before_body",
    "store.transactional.before_outcome",
    "store.transactional.before_commit",
    "store.transactional.after_commit",
)

T = TypeVar("T")
_GRACE_SECONDS = 5.0
_SETTLE_TRIES = 8
_sqlite_bodies = threading.Lock()


@dataclass(frozen=True, slots=True, kw_only=True)
class OutcomeRows:
    """What records the outcome of one operation: its own change, and what goes with it."""

    change: OperationChange
    contents: tuple[ContentRow, ...] = ()
    tool_invocation_change: ToolInvocationChange | None = None


@dataclass(frozen=True, slots=True)
class Recorded(Generic[T]):
    """The body's effect and its outcome are committed together."""

    value: T
    outcome: OutcomeRows


@dataclass(frozen=True, slots=True)
class BodyFailed:
    """The body raised ``error``; nothing of it was applied and nothing is recorded yet."""

    error: Exception


Result: TypeAlias = "Recorded[T] | BodyFailed"


def record_operation_outcome(
    using: str,
    *,
    change: OperationChange,
    contents: tuple[ContentRow, ...] = (),
    tool_invocation_change: ToolInvocationChange | None = None,
) -> None:
    """Record an outcome in the transaction that is open on ``using``: contents, then the comparison, last.

    The operation moves only while it is at the expected state, attempt and claim, and the tool invocation only with
    it, after it: the same order as in the writer. A miss raises ``ConflictError``; the caller rolls back.
    """
    objects = [Content(**row._asdict()) for row in sorted(contents)]
    Content.objects.using(using).bulk_create(objects, ignore_conflicts=True)
    failpoint("store.transactional.before_outcome")
    values = change._asdict()
    expected = {
        "pk": values.pop("operation_id"),
        "state": values.pop("expected_state"),
        "attempt": values.pop("expected_attempt"),
        "claim": values.pop("expected_claim"),
    }
    if OffloadOperation.objects.using(using).filter(**expected).update(**values) != 1:
        found = OffloadOperation.objects.using(using).filter(pk=change.operation_id)
        now = found.values_list("state", "attempt", "claim").first()
        raise ConflictError(
            f"Operation {change.operation_id} is not at state, attempt and claim {change.expected_state}, "
            f"{change.expected_attempt}, {change.expected_claim}; found {now}. This attempt was given up; nothing of it "
            "was applied."
        )
    if tool_invocation_change is not None:
        values = tool_invocation_change._asdict()
        pk = values.pop("tool_invocation_id")
        if ToolInvocation.objects.using(using).filter(pk=pk).update(**values) != 1:
            raise ConflictError(f"Tool invocation {pk} does not exist any more; nothing was applied.")


def run_transactional(
    *,
    using: str,
    body: Callable[[], T],
    outcome_of: Callable[[T], OutcomeRows],
    timeout: float,
    durable: bool = True,
) -> Result[T]:
    """Run ``body`` in the transaction that records its outcome.

    What the body raises undoes its writes and comes back as ``BodyFailed``. An outcome whose comparison misses undoes
    everything and raises ``ConflictError``. The transaction may stay idle for ``timeout`` and a grace, no longer; a body
    that took longer is undone with a ``TimeoutError``. If the answer to COMMIT is lost, the row is read back under its
    lock: recorded, ``StorageError`` (not committed), or ``OutcomeUnknownError`` while the database cannot be reached.
    An ``async def`` body, another alias and a replaced connection are refused. ``durable=False`` is for a caller who
    holds a transaction (the inline mode).
    """
    if inspect.iscoroutinefunction(body):
        raise ConfigurationError(
            "A transactional body cannot be async def: its connection belongs to one thread."
        )
    connection = connections[using]
    if not connection.in_atomic_block:
        connection.close_if_unusable_or_obsolete()
    if connection.vendor != "sqlite" or not durable:
        return _run(using, body, outcome_of, timeout, durable)
    if not _sqlite_bodies.acquire(timeout=timeout + _GRACE_SECONDS):
        raise StorageError(f"Another transactional body has held the SQLite database for over {timeout:g} s.")
    try:
        return _run(using, body, outcome_of, timeout, durable)
    finally:
        _sqlite_bodies.release()


def _run(
    using: str, body: Callable[[], T], outcome_of: Callable[[T], OutcomeRows], timeout: float, durable: bool
) -> Result[T]:
    committing: list[tuple[T, OutcomeRows]] = []
    try:
        with transaction.atomic(using=using, durable=durable):
            if durable:
                _bound_transaction(using, timeout + _GRACE_SECONDS)
            value = _run_body(using, body, timeout)
            outcome = outcome_of(value)
            record_operation_outcome(
                using,
                change=outcome.change,
                contents=outcome.contents,
                tool_invocation_change=outcome.tool_invocation_change,
            )
            failpoint("store.transactional.before_commit")
            committing.append((value, outcome))
        failpoint("store.transactional.after_commit")
    except _BodyError as failed:
        return BodyFailed(failed.error)
    except Exception as error:
        lost = failure_kind(error) is FailureKind.LOST or isinstance(error, FailpointError)
        if not committing or not lost:
            raise
        _settle(using, committing[0][1].change, error)
    value, outcome = committing[0]
    return Recorded(value, outcome)


class _BodyError(Exception):
    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error


def _run_body(using: str, body: Callable[[], T], timeout: float) -> T:
    started = time.monotonic()
    try:
        with transaction.atomic(using=using), only_database(using, "A transactional body"):
            failpoint("store.transactional.before_body")
            value = body()
            if inspect.isawaitable(value):
                close = getattr(value, "close", None)
                if close is not None:
                    close()
                raise ConfigurationError(
                    "A transactional body returned an awaitable; it has to be synchronous."
                )
            if time.monotonic() - started > timeout:
                raise TimeoutError(f"The transactional body took longer than {timeout:g} s; it was undone.")
            return value
    except ConfigurationError:
        raise
    except Exception as error:
        if failure_kind(error) in (FailureKind.LOST, FailureKind.AGAIN):
            raise
        raise _BodyError(error) from error


def _bound_transaction(using: str, seconds: float) -> None:
    connection = connections[using]
    if connection.vendor == "postgresql":
        limit = str(int(seconds * 1000))
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT set_config('lock_timeout', %s, true), set_config('statement_timeout', %s, true), "
                "set_config('idle_in_transaction_session_timeout', %s, true)",
                [limit, limit, limit],
            )


def _settle(using: str, change: OperationChange, error: Exception) -> None:
    """The answer to COMMIT was lost (HARD_POINTS 2).

    The lost transaction held the operation's lock when COMMIT was sent. Once the row can be locked by us, that
    transaction is over, and what the row says is final.
    """
    for attempt in range(_SETTLE_TRIES):
        try:
            connections[using].close()
            with transaction.atomic(using=using):
                _bound_transaction(using, 2.0)
                row = OffloadOperation.objects.using(using).filter(pk=change.operation_id)
                row.update(abandoned=F("abandoned"))
                found = row.values_list("state", "attempt", "claim").first()
        except Exception as failure:  # noqa: BLE001 - tried again, then told as unknown
            error = failure
            threading.Event().wait(min(1.0, 0.02 * 2**attempt))
            continue
        if found == (change.state, change.attempt, change.claim):
            return
        raise StorageError(
            f"The connection was lost while the outcome of operation {change.operation_id} was committed, and it was "
            "not committed: nothing of this attempt was applied."
        ) from error
    raise OutcomeUnknownError(
        f"Whether the outcome of operation {change.operation_id} was committed cannot be established: the database "
        "could not be reached after the connection was lost."
    ) from error
