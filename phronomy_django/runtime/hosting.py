"""The composition root: builds the runtime of this process from the settings, and ends it.

Embedded and inline for now; ``hosted`` comes with ``phronomy_runtime``. Everything else is given its parts here.
"""

from __future__ import annotations

import atexit
import logging
import os
import socket
import threading
from collections.abc import Callable
from typing import Any

from django.db import connections

from phronomy_django import __version__
from phronomy_django.agents.client import recoverable
from phronomy_django.agents.host import Host, set_host_provider
from phronomy_django.agents.messages import RecoverAll, ResumeExecution
from phronomy_django.agents.receiver import AGENTS, AgentsReceiver
from phronomy_django.agents.services import Services
from phronomy_django.conf import PhronomySettings, PoolSettings, phronomy_settings
from phronomy_django.domain.errors import (
    ConfigurationError,
    ConflictError,
    PhronomyError,
    RuntimeShutdownError,
)
from phronomy_django.domain.ids import new_id
from phronomy_django.engine import (
    BoundedPool,
    DeterministicScheduler,
    EventLoop,
    Runtime,
    Scheduler,
    ShutdownResult,
    SystemClock,
    ThreadPool,
    ThreadScheduler,
    Timers,
)
from phronomy_django.models import RuntimeInstance
from phronomy_django.offload.asyncio_pool import AsyncioPool
from phronomy_django.runtime.exclusive import ExclusiveLock
from phronomy_django.runtime.guard import install_loop_guard
from phronomy_django.store import (
    Beat,
    CommitAnswer,
    Committed,
    DurableWriter,
    Refused,
    close_connections,
    expire_approvals,
    list_decided,
    mark_lost,
    register_runtime,
    stop_runtime,
    with_connections,
)

__all__ = ["Hosting", "current_hosting", "reset_runtime", "start_hosting"]

logger = logging.getLogger("phronomy_django.runtime")


class Hosting:
    """One Runtime with its writer, pools and receivers, registered in the database as ``runtime_id``."""

    def __init__(self, settings: PhronomySettings, *, scheduler: Scheduler | None = None) -> None:
        self.settings = settings
        self.inline = settings.runtime == "inline"
        if scheduler is None:
            scheduler = (
                DeterministicScheduler(clock=SystemClock(), real_time=True)
                if self.inline
                else ThreadScheduler()
            )
        self.scheduler = scheduler
        self.runtime_id = new_id()
        self._lock = ExclusiveLock(settings.database)
        self._beat_timer: Any = None
        self._ended: ShutdownResult | None = None
        self._check_pools()
        self._register()
        try:
            self._build(scheduler)
        except BaseException:
            self._lock.release()
            stop_runtime(self.runtime_id, using=settings.database)
            raise

    def _build(self, scheduler: Scheduler) -> None:
        settings = self.settings
        timers = Timers(scheduler=scheduler)
        loop = EventLoop(scheduler=scheduler)
        pools = {name: self._pool(name, options, timers) for name, options in settings.pools.items()}
        readers = ThreadPool(
            "phronomy-readers",
            size=settings.reader_threads,
            queue_size=100_000,
            scheduler=scheduler,
            around=with_connections,
            on_thread_end=close_connections,
            timers=timers,
        )
        self.runtime = Runtime(
            scheduler=scheduler, loop=loop, pools={**pools, readers.name: readers}, timers=timers
        )
        self.writer = DurableWriter(
            scheduler=scheduler,
            database=settings.database,
            batch_limit=settings.writer_batch,
            lease_seconds=settings.lease_seconds,
            inline=self.inline,
        )
        self.services = Services(
            scheduler=scheduler,
            loop=loop,
            writer=self.writer,
            timers=timers,
            pools=pools,
            readers=readers,
            coroutine_pools=frozenset(name for name, pool in pools.items() if isinstance(pool, AsyncioPool)),
            runtime_id=self.runtime_id,
            database=settings.database,
            lease_seconds=settings.lease_seconds,
            max_live_agents=0 if self.inline else settings.max_live_agents,
        )
        self.receiver = AgentsReceiver(self.services)
        self.host = Host(self.services, self.receiver, self.inline)
        loop.register_receiver(AGENTS, self.receiver)
        self.runtime.add_participant(self.writer)
        self.writer.start()
        if not self.inline:
            self._beat_later()

    def _register(self) -> None:
        """Make this runtime known. On SQLite the lock proves that all others are dead."""
        using = self.settings.database
        alone = not self.inline and self._lock.acquire()
        try:
            if alone:
                mark_lost(0.0, using)
            register_runtime(
                runtime_id=self.runtime_id,
                host=socket.gethostname(),
                pid=os.getpid(),
                mode=self.settings.runtime,
                version=__version__,
                using=using,
            )
        except BaseException:
            self._lock.release()
            raise

    def _check_pools(self) -> None:
        for name, options in self.settings.pools.items():
            if options.backend == "celery":
                raise ConfigurationError(
                    f"The pool {name!r} has the backend 'celery', which this version does not run yet; use 'thread' or "
                    f"'asyncio'."
                )

    def _pool(self, name: str, options: PoolSettings, timers: Timers) -> BoundedPool:
        if options.backend == "asyncio":
            return AsyncioPool(
                name,
                size=options.size,
                queue_size=options.queue_size,
                scheduler=self.scheduler,
                on_thread_end=close_connections,
                timers=timers,
            )
        return ThreadPool(
            name,
            size=options.size,
            queue_size=options.queue_size,
            scheduler=self.scheduler,
            around=with_connections,
            on_thread_end=close_connections,
            timers=timers,
        )

    # --- what waits in the rows --------------------------------------------------------------------------

    def recover(self) -> None:
        """Look in the rows for what an earlier process left, and take it up (DESIGN §7)."""
        self._scan(lambda: recoverable(self.services))

    def _sweep(self) -> None:
        """What time and people have decided, whoever was told: a hint may be lost, the rows are not."""
        using = self.settings.database

        def due() -> list[ResumeExecution]:
            found = {*expire_approvals(using), *list_decided(using)}
            return recoverable(self.services, found) if found else []

        self._scan(due)

    def _scan(self, job: Callable[[], list[ResumeExecution]]) -> None:
        def done(requests: list[ResumeExecution] | None, error: BaseException | None) -> None:
            if error is not None:
                logger.warning("The rows could not be scanned for unfinished executions: %s", error)
            elif requests:
                self.receiver.post(RecoverAll(requests))

        try:
            self.services.read(job, done)
        except PhronomyError as error:
            logger.warning("The rows could not be scanned for unfinished executions: %s", error)

    # --- the beat ---------------------------------------------------------------------------------------

    def _beat_later(self) -> None:
        self._beat_timer = self.services.timers.call_later(self.settings.lease_seconds / 3, self._beat)

    def _beat(self) -> None:
        try:
            self.writer.submit(Beat(self.runtime_id), self._beaten)
            self._sweep()
            self._beat_later()
        except RuntimeShutdownError:
            return

    def _beaten(self, answer: CommitAnswer) -> None:
        """A refused beat: this runtime was declared lost. Drop all that is live; the next call makes a new one."""
        if isinstance(answer, Committed) or self.ended:
            return
        logger.critical("Runtime %s could not renew its lease: %s", self.runtime_id, answer.error)
        if isinstance(answer, Refused) and isinstance(answer.error, ConflictError):
            threading.Thread(target=self._drop, name="phronomy-lost", daemon=True).start()

    def _drop(self) -> None:
        try:
            self.shutdown(0.0)
        finally:
            close_connections()

    # --- the end ------------------------------------------------------------------------------------------

    @property
    def ended(self) -> bool:
        return self._ended is not None

    def shutdown(
        self, drain_timeout: float | None = None, stop_timeout: float | None = None
    ) -> ShutdownResult:
        """Drain, stop, give the roots back, and close the writer. Idempotent."""
        if self._ended is not None:
            return self._ended
        if self._beat_timer is not None:
            self._beat_timer.cancel()
        settings = self.settings
        result = self.runtime.shutdown(
            settings.drain_seconds if drain_timeout is None else drain_timeout,
            settings.stop_seconds if stop_timeout is None else stop_timeout,
        )
        self.writer.close()
        self.writer.join(settings.stop_seconds)
        if result.cleanup_complete:
            try:
                stop_runtime(self.runtime_id, using=settings.database)
            except Exception:
                logger.exception("Runtime %s could not give its agents back", self.runtime_id)
        self._lock.release()
        self._ended = result
        return result

    def forget_lock(self) -> None:
        """In a forked child: close its copy of the lock, which stays the parent's."""
        self._lock.release()


_guard = threading.RLock()
_hosting: Hosting | None = None
_inline = threading.local()


def current_hosting(start: bool = True) -> Hosting | None:
    """The hosting of this process (of this thread in inline mode), made now if ``start``."""
    global _hosting
    settings = phronomy_settings()
    if settings.runtime == "inline":
        return _inline_hosting(settings, start)
    found = _hosting
    if found is not None and not found.ended:
        return found
    if not start:
        return None
    if settings.runtime == "hosted":
        raise ConfigurationError(
            "PHRONOMY['RUNTIME'] is 'hosted', which this version does not run yet; use 'embedded'."
        )
    with _guard:
        if _hosting is None or _hosting.ended:
            _hosting = Hosting(settings)
            _hosting.recover()
        return _hosting


def start_hosting() -> Hosting:
    """The hosting of this process, started if it has to be."""
    found = current_hosting()
    assert found is not None  # noqa: S101 - start=True makes it or raises
    return found


def _inline_hosting(settings: PhronomySettings, start: bool) -> Hosting | None:
    found: Hosting | None = getattr(_inline, "hosting", None)
    if found is not None and found.settings is settings and not start:
        return found
    if found is not None and found.settings is settings and _is_registered(found):
        return found
    if not start:
        return None
    fresh = Hosting(settings)
    _inline.hosting = fresh
    return fresh


def _is_registered(found: Hosting) -> bool:
    """A test that was rolled back took the runtime's own row with it."""
    rows = RuntimeInstance.objects.using(found.settings.database)
    return rows.filter(pk=found.runtime_id).exists()


def reset_runtime() -> None:
    """End the runtime of this process, if there is one; the next use makes a new one (tests, reloads)."""
    global _hosting
    with _guard:
        found, _hosting = _hosting, None
    if found is not None:
        found.shutdown()
    _inline.__dict__.pop("hosting", None)


def _provide(start: bool) -> Host | None:
    found = current_hosting(start)
    return None if found is None else found.host


def _at_exit() -> None:
    found = _hosting
    if found is not None and not found.ended:
        found.shutdown()


def _after_fork() -> None:
    """A child has none of the parent's threads; it must not use the parent's connections either."""
    global _hosting, _guard
    _guard = threading.RLock()
    if _hosting is not None:
        _hosting.forget_lock()
    _hosting = None
    _inline.__dict__.clear()
    for connection in connections.all(initialized_only=True):
        connection.connection = None


def wire() -> None:
    """Called once by the app: guard the loop, tell callers where the runtime is, end it with the process."""
    install_loop_guard()
    set_host_provider(_provide)
    atexit.register(_at_exit)
    os.register_at_fork(after_in_child=_after_fork)
