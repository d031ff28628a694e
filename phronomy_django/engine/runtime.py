"""The Runtime: one event loop, named pools, timers, and everything that a shutdown has to visit."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar, Protocol, runtime_checkable

from phronomy_django.engine.current import refuse_on_loop_thread
from phronomy_django.engine.errors import PhronomyError, RegistrationError, RuntimeShutdownError
from phronomy_django.engine.loop import EventLoop
from phronomy_django.engine.metrics import RuntimeDiagnostics, RuntimeMetrics
from phronomy_django.engine.pools import OffloadPool
from phronomy_django.engine.scheduling import Scheduler
from phronomy_django.engine.timers import Timers

__all__ = [
    "AfterShutdown",
    "Runtime",
    "ShutdownParticipant",
    "ShutdownResult",
    "diagnostics_snapshot",
    "metrics_snapshot",
]

logger = logging.getLogger("phronomy_django.engine")


class ShutdownParticipant(Protocol):
    """Something that a shutdown closes and waits for, between the loop's executions and the pools."""

    def begin_draining(self) -> None:
        """Admit nothing more from outside. Called under the lifecycle lock: short, and no calls back."""

    def wait_until_idle(self, deadline: float) -> bool:
        """Wait until nothing is left to do; False at ``deadline`` (monotonic seconds)."""


@runtime_checkable
class AfterShutdown(Protocol):
    """A participant that also wants to hear of a shutdown in which everything succeeded."""

    def after_runtime_shutdown(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ShutdownResult:
    """``drained``: every execution had ended. ``cleanup_complete``: no thread, delivery or body of this
    runtime is left, and nothing that was told of the end failed."""

    drained: bool
    stopped: bool
    pools_closed: bool
    cleanup_complete: bool
    errors: tuple[BaseException, ...] = ()


class Runtime:
    """Holds one event loop, named pools, timers and shutdown participants. Its shutdown is terminal.

    One runtime may be the process's default. A child of ``fork`` has none: threads do not cross a fork.
    """

    _default: ClassVar[Runtime | None] = None
    _default_lock: ClassVar[threading.Lock] = threading.Lock()

    def __init__(
        self,
        *,
        scheduler: Scheduler,
        loop: EventLoop | None = None,
        pools: Mapping[str, OffloadPool] | None = None,
        timers: Timers | None = None,
    ) -> None:
        self.scheduler = scheduler
        self.loop = loop if loop is not None else EventLoop(scheduler=scheduler)
        self.timers = timers if timers is not None else Timers(scheduler=scheduler)
        self._pools: dict[str, OffloadPool] = dict(pools or {})
        self._participants: list[ShutdownParticipant] = []
        self._lifecycle = threading.Lock()
        self._closing = False
        self._result: ShutdownResult | None = None

    # --- parts ------------------------------------------------------------------------------------------

    @property
    def pools(self) -> Mapping[str, OffloadPool]:
        return MappingProxyType(self._pools)

    def pool(self, name: str) -> OffloadPool:
        """The pool of that name; raises ``LookupError`` with the names that there are."""
        try:
            return self._pools[name]
        except KeyError:
            names = ", ".join(sorted(self._pools)) or "none"
            raise LookupError(f"There is no pool {name!r} in this runtime; there are: {names}.") from None

    def add_pool(self, pool: OffloadPool) -> OffloadPool:
        """Add a pool under its own name. Closes atomically with the start of a shutdown."""
        with self._lifecycle:
            self._refuse_when_closing()
            if pool.name in self._pools:
                raise RegistrationError(f"This runtime has a pool {pool.name!r} already.")
            self._pools[pool.name] = pool
        return pool

    def add_participant(self, participant: ShutdownParticipant) -> None:
        """Let shutdowns visit ``participant``, in order of registration; closes as ``add_pool`` does."""
        with self._lifecycle:
            self._refuse_when_closing()
            if participant in self._participants:
                raise RegistrationError(f"The participant {participant!r} is registered already.")
            self._participants.append(participant)

    def _refuse_when_closing(self) -> None:
        if self._closing:
            raise RuntimeShutdownError(
                "This runtime is shutting down; it takes no further pool or participant."
            )

    # --- shutdown ---------------------------------------------------------------------------------------

    @property
    def shutting_down(self) -> bool:
        return self._closing

    @property
    def shutdown_result(self) -> ShutdownResult | None:
        """The result of the shutdown, None until it has ended."""
        return self._result

    def shutdown(self, drain_timeout: float = 30.0, stop_timeout: float = 10.0) -> ShutdownResult:
        """Close admission everywhere, drain, stop the loop, close the pools, tell who wants to hear.

        Draining has ``drain_timeout`` seconds, and all of it shares one monotonic deadline ``stop_timeout``
        later. Everyone is visited even after a failure. Terminal and idempotent: a second call waits for the
        first, returns the same result and runs nothing again. Refused on the loop's thread.
        """
        refuse_on_loop_thread("Shutting the runtime down")
        errors: list[BaseException] = []
        with self._lifecycle:
            first = not self._closing
            if first:
                self._closing = True
                self.loop.begin_draining()
                for participant in self._participants:
                    try:
                        participant.begin_draining()
                    except Exception as error:
                        logger.exception("The participant %r failed to begin draining", participant)
                        errors.append(error)
        if not first:
            self.scheduler.wait(lambda: self._result is not None)
        else:
            now = self.scheduler.clock.monotonic()
            self._result = self._shut_down(now + drain_timeout, now + drain_timeout + stop_timeout, errors)
            self.scheduler.wake()
        assert self._result is not None  # noqa: S101 - set by the first call
        return self._result

    def _shut_down(
        self, drain_deadline: float, deadline: float, errors: list[BaseException]
    ) -> ShutdownResult:
        idle = self._drain(drain_deadline, errors)
        drained = self.loop.idle() and self.loop.error is None
        stop = self.loop.stop(deadline)
        errors.extend(stop.errors)
        if self.loop.error is not None:
            errors.append(self.loop.error)
        pools_closed = self._close_pools(deadline, errors)
        complete = idle and stop.stopped and pools_closed and not errors
        if complete and drained:
            complete = self._tell_after(errors)
        return ShutdownResult(
            drained=drained,
            stopped=stop.stopped,
            pools_closed=pools_closed,
            cleanup_complete=complete,
            errors=tuple(errors),
        )

    def _drain(self, deadline: float, errors: list[BaseException]) -> bool:
        """Executions first, then the participants in order; again if those made the loop busy once more.

        Whether all participants became idle.
        """
        failed: set[int] = set()
        while True:
            self.loop.wait_until_idle(deadline)
            all_idle = not failed
            for index, participant in enumerate(self._participants):
                if index in failed:
                    continue
                try:
                    all_idle &= participant.wait_until_idle(deadline)
                except Exception as error:
                    logger.exception(
                        "The participant %r failed to drain; the others are still visited", participant
                    )
                    errors.append(error)
                    failed.add(index)
                    all_idle = False
            if self.loop.idle() or self.loop.error is not None:
                return all_idle
            if self.scheduler.clock.monotonic() >= deadline:
                return all_idle

    def _close_pools(self, deadline: float, errors: list[BaseException]) -> bool:
        """All are closed before any is waited for; the timers end last, since pools use them."""
        closed = True
        for pool in self._pools.values():
            try:
                pool.begin_close()
            except Exception as error:
                logger.exception("The pool %s failed to close; the others are still closed", pool.name)
                errors.append(error)
                closed = False
        for pool in self._pools.values():
            try:
                closed &= pool.wait_closed(deadline)
            except Exception as error:
                logger.exception("Waiting for the pool %s failed; the others are still waited for", pool.name)
                errors.append(error)
                closed = False
        self.timers.close()
        return self.timers.wait_closed(deadline) and closed

    def _tell_after(self, errors: list[BaseException]) -> bool:
        for participant in self._participants:
            if isinstance(participant, AfterShutdown):
                try:
                    participant.after_runtime_shutdown()
                except Exception as error:
                    logger.exception("The participant %r failed after the shutdown", participant)
                    errors.append(error)
        return not errors

    # --- the default one --------------------------------------------------------------------------------

    @classmethod
    def default(cls) -> Runtime | None:
        """The process's default runtime; never makes one."""
        return cls._default

    @classmethod
    def set_default(cls, runtime: Runtime | None) -> Runtime | None:
        """Make ``runtime`` the default and return the one before.

        Refused while the one before is not shut down with its cleanup complete: what it left running could
        meet its successor.
        """
        with cls._default_lock:
            before = cls._default
            if before is not None and before is not runtime:
                result = before.shutdown_result
                if result is None or not result.cleanup_complete:
                    raise PhronomyError(
                        "The default runtime may not be replaced: "
                        + ("it was not shut down." if result is None else "its cleanup is incomplete.")
                    )
            cls._default = runtime
            return before

    @classmethod
    def forget_default(cls) -> None:
        """Drop the default without conditions; for the child of a fork, where none of its threads exist."""
        cls._default_lock = threading.Lock()
        cls._default = None

    # --- readings ---------------------------------------------------------------------------------------

    def metrics_snapshot(self) -> RuntimeMetrics:
        """The numbers as they are; creates nothing and reopens nothing."""
        return RuntimeMetrics(
            loop=self.loop.metrics(),
            pools={name: pool.metrics() for name, pool in list(self._pools.items())},
            pending_timers=self.timers.pending,
        )

    def diagnostics_snapshot(self) -> RuntimeDiagnostics:
        """What is live, by name; creates nothing and reopens nothing."""
        return RuntimeDiagnostics(
            loop_state=self.loop.state.value,
            loop_error="" if self.loop.error is None else repr(self.loop.error),
            idle=self.loop.idle(),
            sessions=self.loop.live_sessions(),
            receivers=self.loop.live_receivers(),
            participants=tuple(type(participant).__name__ for participant in self._participants),
            pools={name: pool.metrics() for name, pool in list(self._pools.items())},
            shutting_down=self._closing,
        )


def metrics_snapshot() -> RuntimeMetrics:
    """The numbers of the default runtime; zeros if there is none."""
    runtime = Runtime.default()
    return RuntimeMetrics() if runtime is None else runtime.metrics_snapshot()


def diagnostics_snapshot() -> RuntimeDiagnostics:
    """What is live in the default runtime; empty if there is none."""
    runtime = Runtime.default()
    return RuntimeDiagnostics() if runtime is None else runtime.diagnostics_snapshot()


os.register_at_fork(after_in_child=Runtime.forget_default)
