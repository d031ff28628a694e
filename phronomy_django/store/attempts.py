"""Attempts to commit: what becomes of works that failed, missed, or whose answer was lost (HARD_POINTS 1 to 4, 13).

Every job that is handed in here is either answered or back in the line when the call returns.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from django.db import connections, transaction

from phronomy_django.domain.errors import ConflictError, OutcomeUnknownError, PhronomyError, StorageError
from phronomy_django.domain.records import Transition
from phronomy_django.engine.clock import Clock
from phronomy_django.engine.failpoints import FailpointError, declare, failpoint
from phronomy_django.store.diagnosis import conflict_of, was_committed
from phronomy_django.store.failures import FailureKind, failure_kind, refusal
from phronomy_django.store.hooks import commit_with_hook
from phronomy_django.store.line import Job, Line
from phronomy_django.store.metrics import WriterMetrics
from phronomy_django.store.ownership import beat
from phronomy_django.store.rows import HeldError, WorkRows, rows_for
from phronomy_django.store.works import (
    Beat,
    CommitAnswer,
    Committed,
    HookError,
    Refused,
    Unknown,
    describe_work,
)

__all__ = ["BARRIERS", "Attempts"]

logger = logging.getLogger("phronomy_django.store")

#: The barriers of an agent; each has a failpoint on both sides of its commit.
BARRIERS = (
    "knowledge clear purge stop resume unresolved b1 b1_b2 b2 b3 b3_b2 b3_b4 b3_suspend b4 b5_b2 b3_b6 b6 claim"
).split()
_BEFORE = {name: f"agent.{name}.before_commit" for name in BARRIERS}
_AFTER = {name: f"agent.{name}.after_commit" for name in BARRIERS}
declare(
    "store.connect",
    "store.beat.before",
    "store.beat.after",
    "store.single.before_commit",
    "store.single.after_commit",
    "store.batch.before_commit",
    "store.batch.after_commit",
    *_BEFORE.values(),
    *_AFTER.values(),
)

_TRIES = 8
_FIRST_WAIT = 0.005
_LONGEST_WAIT = 1.0


class Attempts:
    """See the module. ``between`` is called between the single runs of a failed batch; beats go there.

    ``drop_beats`` answers the beats that wait when the database could not be reached for too long.
    """

    def __init__(
        self,
        *,
        database: str,
        clock: Clock,
        lease_seconds: float,
        give_up_seconds: float,
        inline: bool,
        counts: WriterMetrics,
        line: Line,
        answer: Callable[[Sequence[Job], CommitAnswer], None],
        between: Callable[[], None],
        drop_beats: Callable[[CommitAnswer], None],
    ) -> None:
        self._database = database
        self._clock = clock
        self._lease_seconds = lease_seconds
        self._give_up_seconds = give_up_seconds
        self._inline = inline
        self._counts = counts
        self._line = line
        self._answer = answer
        self._between = between
        self._drop_beats = drop_beats
        self._session: object = None
        self._unreachable_since: float | None = None
        self._outages = 0
        self.not_before = 0.0

    # --- connection -------------------------------------------------------------------------------------

    def connect(self) -> bool:
        """Have an open, configured connection. If there is none, say when to try again, and give up on works
        that have waited too long."""
        connection = connections[self._database]
        try:
            failpoint("store.connect")
            connection.ensure_connection()
            if not self._inline and connection.connection is not self._session:
                rows_for(self._database).configure(lease_seconds=self._lease_seconds)
                self._session = connection.connection
                self._counts.reconnects += 1
        except Exception as error:  # noqa: BLE001 - whatever it is, there is no connection to work with
            self._disconnect()
            self._unreachable(error)
            return False
        self._unreachable_since = None
        return True

    def _disconnect(self) -> None:
        self._session = None
        if not self._inline:
            try:
                connections[self._database].close()
            except Exception as error:  # noqa: BLE001 - it is broken already
                logger.info("Closing a broken connection failed: %s", error)

    def _unreachable(self, error: Exception) -> None:
        now = self._clock.monotonic()
        self._outages += 1
        self.not_before = now + self._wait(self._outages)
        if self._unreachable_since is None:
            self._unreachable_since = now
            logger.warning("The durable writer cannot reach the database %r: %s", self._database, error)
        if now - self._unreachable_since >= self._give_up_seconds:
            self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        no_beat = OutcomeUnknownError(f"No beat reached the database {self._database!r}: {error}")
        self._drop_beats(Unknown(no_beat))
        jobs = list(self._line)
        self._line.clear()
        for job in jobs:
            if job.settling:
                self._unknown(job, error)
            else:
                self._refuse(
                    job,
                    StorageError(
                        f"The database {self._database!r} could not be reached for {self._give_up_seconds:g} s; "
                        f"nothing of the {describe_work(job.work)} was sent. {error}"
                    ),
                )

    def _unknown(self, job: Job, error: Exception) -> None:
        self._counts.unknown += 1
        unknown = OutcomeUnknownError(
            f"Whether the {describe_work(job.work)} was committed cannot be established: the connection was lost "
            f"while it committed, and the database could not be reached since. {error}"
        )
        unknown.__cause__ = error
        self._answer([job], Unknown(unknown))

    @staticmethod
    def _wait(times: int) -> float:
        return float(min(_LONGEST_WAIT, _FIRST_WAIT * 2 ** min(times, 20)))

    # --- attempts ---------------------------------------------------------------------------------------

    def run(self, jobs: Sequence[Job]) -> None:
        """Commit ``jobs`` in one transaction; if that fails, find out which of them it was."""
        form = "single" if len(jobs) == 1 else "batch"
        rows = rows_for(self._database)
        before = rows.statement_count
        try:
            self._pass(f"store.{form}.before_commit", _BEFORE, jobs)
            done = self._commit(rows, jobs)
        except Exception as error:  # noqa: BLE001 - each kind has its consequence
            self._counts.statements += rows.statement_count - before
            self._failed(jobs, error)
            return
        self._counts.statements += rows.statement_count - before
        self._counts.commits += 1
        self._counts.batches += len(jobs) > 1
        self._counts.largest_batch = max(self._counts.largest_batch, len(jobs))
        try:
            self._pass(f"store.{form}.after_commit", _AFTER, jobs)
        except FailpointError as error:  # a test says that the answer was lost on its way
            self._lost(jobs, error)
            return
        self._outages = 0
        committed = [job for job, fits in zip(jobs, done, strict=True) if fits]
        self._counts.committed += len(committed)
        self._answer(committed, Committed())
        for job, fits in zip(jobs, done, strict=True):
            if not fits:
                self._missed(job)

    def _commit(self, rows: WorkRows, jobs: Sequence[Job]) -> list[bool]:
        works = [job.work for job in jobs]
        if not self._inline:
            return rows.commit(works)
        with transaction.atomic(using=self._database):
            return rows.write(works)

    @staticmethod
    def _pass(name: str, names: dict[str, str], jobs: Sequence[Job]) -> None:
        failpoint(name)
        for job in jobs:
            barrier = job.work.barrier
            if barrier in names:
                failpoint(names[barrier])

    def _failed(self, jobs: Sequence[Job], error: Exception) -> None:
        kind = failure_kind(error)
        if kind is FailureKind.LOST:
            self._lost(jobs, error)
        elif len(jobs) > 1:
            if kind is FailureKind.AGAIN and not any(job.tries for job in jobs):
                self._later(jobs)
                return
            self._counts.bisections += 1
            middle = len(jobs) // 2
            for half in (jobs[:middle], jobs[middle:]):
                self._between()
                self.run(half)
        elif kind in (FailureKind.AGAIN, FailureKind.CONTENT) and jobs[0].tries < _TRIES:
            jobs[0].alone = True
            self._later(jobs)
        elif kind is FailureKind.MISSED:
            self._missed(jobs[0])
        else:
            self._refuse(jobs[0], refusal(jobs[0].work, error))

    def _later(self, jobs: Sequence[Job]) -> None:
        now = self._clock.monotonic()
        for job in jobs:
            job.tries += 1
            job.due = now + self._wait(job.tries)
            if job.since is None:
                job.since = now
        self._counts.retries += len(jobs)
        self._line.put_back(jobs)

    def _lost(self, jobs: Sequence[Job], error: Exception) -> None:
        """HARD_POINTS 2: each is submitted again, alone; what then conflicts is looked up by its id."""
        self._disconnect()
        self._outages += 1
        self.not_before = self._clock.monotonic() + self._wait(self._outages)
        logger.warning("The answer to a commit of %d works was lost: %s", len(jobs), error)
        for job in jobs:
            job.settling = job.alone = True
        self._counts.read_backs += len(jobs)
        self._counts.retries += len(jobs)
        self._line.put_back(jobs)

    def _missed(self, job: Job) -> None:
        """The comparison of ``job`` missed: it conflicts, it is committed already, or a row of it is held."""
        try:
            error = conflict_of(job.work, self._database)
            committed = error is not None and job.settling and was_committed(job.work, self._database)
        except Exception as failure:  # noqa: BLE001 - the job is as it was; it comes again
            if failure_kind(failure) is FailureKind.LOST:
                self._disconnect()
            self._held(job)
            return
        if committed:
            self._counts.committed += 1
            self._answer([job], Committed())
        elif error is not None:
            self._counts.conflicts += 1
            self._refuse(job, error)
        else:
            self._held(job)

    def _held(self, job: Job) -> None:
        if job.since is not None and self._clock.monotonic() - job.since >= self._give_up_seconds:
            error = HeldError(
                f"Another transaction has held a row of the {describe_work(job.work)} for "
                f"{self._give_up_seconds:g} s. End that transaction and try again."
            )
            if job.settling:
                self._unknown(job, error)
            else:
                self._refuse(job, error)
        else:
            self._later([job])

    def _refuse(self, job: Job, error: PhronomyError) -> None:
        self._counts.refused += 1
        self._answer([job], Refused(error))

    # --- barriers with application code -----------------------------------------------------------------

    def run_hook(self, job: Job) -> Exception | None:
        """Commit a job that needs a transaction of its own; the error says why it was not. On any thread."""
        assert isinstance(job.work, Transition)  # noqa: S101 - only transitions have hooks
        try:
            self._pass("store.single.before_commit", _BEFORE, [job])
            commit_with_hook(
                job.work, self._database, lease_seconds=self._lease_seconds, durable=not self._inline
            )
        except Exception as error:  # noqa: BLE001 - the writer's thread decides what follows
            return error
        try:
            failpoint("store.hook.after_commit")
            self._pass("store.single.after_commit", _AFTER, [job])
        except FailpointError as error:
            return _AnswerLostError(str(error))
        return None

    def hook_ended(self, job: Job, error: Exception | None) -> None:
        """Answer a job that ran by itself, or put it back."""
        if error is None:
            self._counts.commits += 1
            self._counts.committed += 1
            self._answer([job], Committed())
        elif isinstance(error, HeldError):
            self._held(job)
        elif isinstance(error, ConflictError):
            self._missed(job)
        elif isinstance(error, HookError):
            self._refuse(job, error)
        elif isinstance(error, _AnswerLostError):
            self._lost([job], error)
        else:
            self._failed([job], error)

    # --- beats ------------------------------------------------------------------------------------------

    def beat(self, work: Beat) -> CommitAnswer | None:
        """Send a beat; None when it has to be sent again."""
        try:
            failpoint("store.beat.before")
            alive = beat(work.runtime_id, self._database)
            failpoint("store.beat.after")
        except Exception as error:  # noqa: BLE001 - a beat changes nothing but its time: it is sent again
            kind = failure_kind(error)
            if kind is FailureKind.LOST:
                self._disconnect()
                self._unreachable(error)
                return None
            return Refused(refusal(work, error))
        self._counts.beats += 1
        if alive:
            return Committed()
        return Refused(
            ConflictError(
                f"Runtime {work.runtime_id} is not running any more by its own row: another runtime has declared it "
                "lost, or it was stopped. Drop all live state and register as a new instance."
            )
        )


class _AnswerLostError(Exception):
    """A failpoint says that the answer to a commit was lost."""
