"""What the durable writer counts."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["WriterMetrics"]


@dataclass(slots=True, kw_only=True)
class WriterMetrics:
    """Counts since the start. ``commits`` are transactions; ``committed`` are the works in them.

    ``statements`` are those that write works (comparisons on SQLite included), not BEGIN and COMMIT.
    ``retries`` are works put back (held rows, deadlocks, lost connections), ``read_backs`` those among them whose
    commit's answer was lost.
    """

    commits: int = 0
    committed: int = 0
    statements: int = 0
    batches: int = 0
    largest_batch: int = 0
    bisections: int = 0
    hooks: int = 0
    beats: int = 0
    conflicts: int = 0
    refused: int = 0
    unknown: int = 0
    retries: int = 0
    read_backs: int = 0
    reconnects: int = 0
    queue_depth: int = 0
