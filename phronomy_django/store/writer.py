"""The one durable writer of a runtime (DESIGN §6): group commit, one answer for each work.

Everything here but ``submit`` and ``close`` happens on the writer's own thread. It never sleeps: what has to be
tried again has a time at which it is due, so the writer runs in virtual time like everything else.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace

from django.db import connections

from phronomy_django.domain.errors import RuntimeShutdownError
from phronomy_django.engine.failpoints import declare, failpoint
from phronomy_django.engine.scheduling import Scheduler, WorkerHandle
from phronomy_django.store.attempts import Attempts
from phronomy_django.store.connections import close_connections
from phronomy_django.store.hook_threads import HookThreads
from phronomy_django.store.line import Job, Line
from phronomy_django.store.metrics import WriterMetrics
from phronomy_django.store.works import Beat, CommitAnswer, Refused, Work

__all__ = ["DurableWriter"]

logger = logging.getLogger("phronomy_django.store")

declare("store.writer.taken")


class DurableWriter:
    """Commits works in the order in which each root submitted them; an engine worker, and a shutdown participant.

    ``batch_limit``: works in one transaction at most; nothing waits to fill a batch. ``lease_seconds`` bounds what
    a statement may wait for (a quarter of it) and, as ``give_up_seconds``, how long an unreachable database is tried
    before a work is answered ``Unknown`` (its commit's answer was lost) or refused (it was never sent).
    ``hook_threads``: barriers with application code that may run side by side on PostgreSQL.
    ``inline``: work runs on the connection of whichever thread drives the writer, inside ``atomic`` savepoints, also
    within a transaction of the caller's; its answers hold as far as that transaction does.
    """

    def __init__(
        self,
        *,
        scheduler: Scheduler,
        database: str = "default",
        batch_limit: int = 256,
        lease_seconds: float = 30.0,
        give_up_seconds: float | None = None,
        hook_threads: int = 4,
        inline: bool = False,
        name: str = "phronomy-writer",
    ) -> None:
        self.name = name
        self.database = database
        self._scheduler = scheduler
        self._batch_limit = batch_limit
        self._inline = inline
        self._counts = WriterMetrics()
        self._line = Line()
        self._beats: deque[tuple[Beat, Callable[[CommitAnswer], object]]] = deque()
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._incoming: deque[Job] = deque()
        self._finished_hooks: deque[tuple[Job, Exception | None]] = deque()
        self._sleeping = False
        self._closed = False
        self._submitted = 0
        self._answered = 0
        self._hooks = HookThreads(scheduler=scheduler, size=hook_threads)
        self._handle: WorkerHandle | None = None
        self._attempts = Attempts(
            database=database,
            clock=scheduler.clock,
            lease_seconds=lease_seconds,
            give_up_seconds=lease_seconds if give_up_seconds is None else give_up_seconds,
            inline=inline,
            counts=self._counts,
            line=self._line,
            answer=self._answer,
            between=self._send_beats,
            drop_beats=self._drop_beats,
        )

    # --- asked by others --------------------------------------------------------------------------------

    def start(self) -> None:
        """Let the writer run on its scheduler."""
        if self._handle is None:
            self._handle = self._scheduler.start(self)

    def submit(self, work: Work, on_done: Callable[[CommitAnswer], object]) -> None:
        """Have ``work`` committed. From any thread; never blocks.

        ``on_done`` is called exactly once, usually on the writer's thread, so it has to be short: post the answer to
        the loop. After ``close`` the work is refused at once.
        """
        with self._changed:
            closed = self._closed
            if not closed:
                self._submitted += 1
                if isinstance(work, Beat):
                    self._beats.append((work, on_done))
                else:
                    self._incoming.append(Job(work, on_done))
                if self._sleeping:
                    self._changed.notify()
        if closed:
            error = RuntimeShutdownError("The durable writer is closed; nothing of the change was applied.")
            on_done(Refused(error))

    def begin_draining(self) -> None:
        """Nothing closes yet: executions that still run need their commits until the loop has none left."""

    def wait_until_idle(self, deadline: float) -> bool:
        """Wait until every work has its answer; False at ``deadline`` (monotonic seconds)."""
        left = max(0.0, deadline - self._scheduler.clock.monotonic())
        return self._scheduler.wait(self.idle, left)

    def idle(self) -> bool:
        """Whether every work that was submitted has its answer."""
        with self._lock:
            return self._submitted == self._answered

    def close(self) -> None:
        """Refuse what is submitted from now on; the thread ends when all that came before is answered."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._scheduler.wake()

    def join(self, timeout: float | None = None) -> bool:
        """Wait for the thread to end after ``close``; False when ``timeout`` seconds were over first."""
        return self._handle is None or self._handle.join(timeout)

    @property
    def metrics(self) -> WriterMetrics:
        """A copy of the counts."""
        return replace(self._counts, queue_depth=self._submitted - self._answered)

    # --- worker -----------------------------------------------------------------------------------------

    def run_step(self, *, block: bool) -> bool:
        while True:
            with self._changed:
                ready = self._ready()
                if not ready and block and not self.finished():
                    self._sleep()
                    continue
                arrived, self._incoming = self._incoming, deque()
                hooks, self._finished_hooks = self._finished_hooks, deque()
            if not ready:
                return False
            self._line.append(arrived)
            for job, error in hooks:
                self._line.release(job.root)
                self._attempts.hook_ended(job, error)
            self._step()
            self._scheduler.wake()
            return True

    def runnable(self) -> bool:
        with self._lock:
            return self._ready()

    def finished(self) -> bool:
        done = self._closed and self._submitted == self._answered
        if done and not self._hooks.closed:
            self._hooks.close()
        return done

    def next_deadline(self) -> float | None:
        """When the writer has something to do by time alone."""
        with self._lock:
            return self._next_due()

    def thread_ended(self) -> None:
        close_connections()

    def _ready(self) -> bool:
        """Whether a step would do something now; called under the lock."""
        if self._finished_hooks:
            return True
        due = self._next_due()
        return due is not None and due <= self._scheduler.clock.monotonic()

    def _next_due(self) -> float | None:
        due = 0.0 if self._beats or self._incoming else self._line.next_due()
        return None if due is None else max(due, self._attempts.not_before)

    def _sleep(self) -> None:
        due = self._next_due()
        timeout = None if due is None else max(0.0, due - self._scheduler.clock.monotonic())
        self._sleeping = True
        self._changed.wait(timeout)
        self._sleeping = False

    def _step(self) -> None:
        now = self._scheduler.clock.monotonic()
        if now < self._attempts.not_before or not self._attempts.connect():
            return
        self._send_beats()
        jobs = self._line.take(self._batch_limit, now)
        if not jobs:
            return
        failpoint("store.writer.taken")
        if jobs[0].own_transaction:
            self._run_hook(jobs[0])
        else:
            self._attempts.run(jobs)

    def _send_beats(self) -> None:
        """Beats go ahead of everything that waits (HARD_POINTS 6)."""
        while self._beats:
            beat, on_done = self._beats[0]
            answer = self._attempts.beat(beat)
            if answer is None:
                return
            self._beats.popleft()
            self._answer_with(on_done, answer)

    def _drop_beats(self, answer: CommitAnswer) -> None:
        while self._beats:
            _, on_done = self._beats.popleft()
            self._answer_with(on_done, answer)

    def _run_hook(self, job: Job) -> None:
        self._counts.hooks += 1
        threaded = connections[self.database].vendor == "postgresql" and not (
            self._inline or self._scheduler.inline
        )
        if not threaded:
            self._attempts.hook_ended(job, self._attempts.run_hook(job))
            return
        self._line.hold(job.root)
        self._hooks.submit(lambda: self._hook_on_thread(job))

    def _hook_on_thread(self, job: Job) -> None:
        error = self._attempts.run_hook(job)
        with self._changed:
            self._finished_hooks.append((job, error))
            self._changed.notify()
        self._scheduler.wake()

    def _answer(self, jobs: Sequence[Job], answer: CommitAnswer) -> None:
        for job in jobs:
            self._answer_with(job.on_done, answer)

    def _answer_with(self, on_done: Callable[[CommitAnswer], object], answer: CommitAnswer) -> None:
        try:
            on_done(answer)
        except Exception:
            logger.exception("A receiver of the durable writer's answer failed")
        with self._lock:
            self._answered += 1
