"""A barrier with application code in it: the code first, then our rows, then COMMIT (HARD_POINTS 12)."""

from __future__ import annotations

from django.db import connections, transaction

from phronomy_django.domain.records import Transition
from phronomy_django.engine.failpoints import declare, failpoint
from phronomy_django.store.connections import only_database
from phronomy_django.store.failures import FailureKind, failure_kind
from phronomy_django.store.rows import apply_in_current_transaction
from phronomy_django.store.works import HookError, describe_work

__all__ = ["commit_with_hook"]

declare(
    "store.hook.before_body", "store.hook.before_rows", "store.hook.before_commit", "store.hook.after_commit"
)


def commit_with_hook(work: Transition, using: str, *, lease_seconds: float, durable: bool) -> None:
    """Run the hook of ``work`` and commit it with the rows; everything or nothing.

    Raises ``HookError`` for what the hook raised, the comparison's ``ConflictError`` or ``HeldError``, and the
    database's own errors. A deadlock or a lost connection inside the hook is the database's error: run again.
    """
    with transaction.atomic(using=using, durable=durable):
        if durable:
            _bound_transaction(using, lease_seconds)
        failpoint("store.hook.before_body")
        if work.hook is not None:
            _run(work, using)
        failpoint("store.hook.before_rows")
        apply_in_current_transaction(work, using)
        failpoint("store.hook.before_commit")


def _run(work: Transition, using: str) -> None:
    assert work.hook is not None  # noqa: S101 - asked by the caller
    try:
        with only_database(using, f"The hook of {work.barrier}"):
            work.hook()
    except Exception as error:
        if failure_kind(error) in (FailureKind.AGAIN, FailureKind.LOST):
            raise
        raise HookError(
            f"The hook in the {describe_work(work)} raised {type(error).__name__}: {error}. Everything of it was "
            "rolled back.",
            error,
        ) from error


def _bound_transaction(using: str, lease_seconds: float) -> None:
    """HARD_POINTS 3: a process that stops inside this transaction holds its locks for a quarter of a lease."""
    connection = connections[using]
    if connection.vendor == "postgresql":
        quarter = str(max(1, int(lease_seconds * 250)))
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT set_config('lock_timeout', %s, true), set_config('statement_timeout', %s, true), "
                "set_config('idle_in_transaction_session_timeout', %s, true)",
                [quarter, quarter, quarter],
            )
