"""The line before the durable writer: what waits, in order, and what may commit together now."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator

from phronomy_django.domain.records import OperationStep, Transition
from phronomy_django.store.works import CommitAnswer, operation_ids, root_of

__all__ = ["Job", "Line"]

#: Bytes of content in one batch; beyond it a batch ends early, so that one statement stays in bounds.
MAX_BATCH_BYTES = 16 * 1024 * 1024


class Job:
    """One work that waits for its answer. ``alone``: it failed once and joins no batch again (HARD_POINTS 13).

    ``settling``: its commit's answer was lost, so a refusal has to be read back before it is believed.
    ``due`` and ``since`` are monotonic seconds.
    """

    __slots__ = ("alone", "due", "on_done", "root", "settling", "since", "tries", "work")

    def __init__(self, work: Transition | OperationStep, on_done: Callable[[CommitAnswer], object]) -> None:
        self.work = work
        self.on_done = on_done
        self.root = root_of(work)
        self.alone = False
        self.settling = False
        self.tries = 0
        self.due = 0.0
        self.since: float | None = None

    @property
    def own_transaction(self) -> bool:
        """Whether it is committed by a transaction of its own: application code, or a purge."""
        work = self.work
        return isinstance(work, Transition) and (work.hook is not None or work.delete_agent_records)

    @property
    def content_bytes(self) -> int:
        work = self.work
        if isinstance(work, OperationStep):
            return 0
        return sum([len(row.body) for row in work.contents])


class Line:
    """Keeps the order of each root. Used on the writer's thread only; knows no database."""

    def __init__(self) -> None:
        self._waiting: deque[Job] = deque()
        self._busy: set[int] = set()

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[Job]:
        return iter(self._waiting)

    def append(self, jobs: Iterable[Job]) -> None:
        self._waiting.extend(jobs)

    def put_back(self, jobs: Iterable[Job]) -> None:
        """Return jobs to the head: nothing of their roots overtakes them."""
        self._waiting.extendleft(reversed(list(jobs)))

    def hold(self, root: int) -> None:
        """Give out nothing of this root until it is released."""
        self._busy.add(root)

    def release(self, root: int) -> None:
        self._busy.discard(root)

    def take(self, limit: int, now: float) -> list[Job]:
        """The next jobs that may commit in one transaction, in their order.

        At most one transition of a root, no operation twice, nothing that is not due, and nothing that
        overtakes an earlier job of its root. A job that has to be alone, or brings application code, is given
        out by itself.
        """
        taken: list[Job] = []
        kept: list[Job] = []
        blocked, moved = set(self._busy), set[int]()
        operations = set[str]()
        size = 0
        waiting = self._waiting
        while waiting and len(taken) < limit:
            job = waiting.popleft()
            single = job.alone or job.own_transaction
            changed = operation_ids(job.work)
            moves = isinstance(job.work, Transition)
            if (
                job.root in blocked
                or job.due > now
                or (moves and job.root in moved)
                or (single and taken)
                or not operations.isdisjoint(changed)
            ):
                blocked.add(job.root)
                kept.append(job)
                continue
            size += job.content_bytes
            if taken and size > MAX_BATCH_BYTES:
                kept.append(job)
                break
            taken.append(job)
            if single:
                break
            if moves:
                moved.add(job.root)
            operations.update(changed)
        waiting.extendleft(reversed(kept))
        return taken

    def next_due(self) -> float | None:
        """When the earliest job is due that is the first of its root and free to go; None when none is."""
        seen = set(self._busy)
        earliest: float | None = None
        for job in self._waiting:
            if job.root not in seen:
                seen.add(job.root)
                if earliest is None or job.due < earliest:
                    earliest = job.due
                    if not earliest:
                        break
        return earliest

    def clear(self) -> None:
        """Take everything out."""
        self._waiting.clear()
