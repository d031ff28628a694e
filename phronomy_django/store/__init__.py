"""The store: the one durable writer, ownership, reads, and what runs in our transactions (DESIGN §5, §6, §8)."""

from phronomy_django.store.connections import close_connections, in_passing_thread, with_connections
from phronomy_django.store.metrics import WriterMetrics
from phronomy_django.store.ownership import (
    beat,
    claim_root,
    mark_lost,
    register_runtime,
    release_root,
    stop_runtime,
)
from phronomy_django.store.reads import (
    ContextItem,
    EventSnapshot,
    ExecutionSnapshot,
    RootSnapshot,
    create_root,
    find_by_idempotency_key,
    load_content,
    load_contents,
    load_context,
    load_events,
    load_execution,
    load_root,
)
from phronomy_django.store.rows import HeldError, apply_in_current_transaction
from phronomy_django.store.transactional import (
    BodyFailed,
    OutcomeRows,
    Recorded,
    record_operation_outcome,
    run_transactional,
)
from phronomy_django.store.works import (
    Beat,
    CommitAnswer,
    Committed,
    HookError,
    IdempotencyConflictError,
    Refused,
    Unknown,
    Work,
)
from phronomy_django.store.writer import DurableWriter

__all__ = [
    "Beat",
    "BodyFailed",
    "CommitAnswer",
    "Committed",
    "ContextItem",
    "DurableWriter",
    "EventSnapshot",
    "ExecutionSnapshot",
    "HeldError",
    "HookError",
    "IdempotencyConflictError",
    "OutcomeRows",
    "Recorded",
    "Refused",
    "RootSnapshot",
    "Unknown",
    "Work",
    "WriterMetrics",
    "apply_in_current_transaction",
    "beat",
    "claim_root",
    "close_connections",
    "create_root",
    "find_by_idempotency_key",
    "in_passing_thread",
    "load_content",
    "load_contents",
    "load_context",
    "load_events",
    "load_execution",
    "load_root",
    "mark_lost",
    "record_operation_outcome",
    "register_runtime",
    "release_root",
    "run_transactional",
    "stop_runtime",
    "with_connections",
]
