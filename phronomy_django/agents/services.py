"""What the agents room is given by the composition root: loop, writer, pools, readers, timers, identity."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from phronomy_django.engine import EventLoop, OffloadPool, Scheduler, Timers
from phronomy_django.store import DurableWriter

__all__ = ["Services"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """The parts of one runtime. ``coroutine_pools``: names of pools whose bodies may be coroutines.

    ``readers`` is the pool for loads; ``runtime_id`` names the ``RuntimeInstance`` that owns the roots.
    """

    scheduler: Scheduler
    loop: EventLoop
    writer: DurableWriter
    timers: Timers
    pools: Mapping[str, OffloadPool]
    readers: OffloadPool
    coroutine_pools: frozenset[str]
    runtime_id: str
    database: str
    lease_seconds: float
    max_live_agents: int

    def now(self) -> datetime:
        return self.scheduler.clock.now()

    def pool_names(self) -> frozenset[str]:
        return frozenset(self.pools)

    def read(self, job: Callable[[], Any], done: Callable[[Any, BaseException | None], None]) -> None:
        """Run ``job`` in the readers; ``done(value, error)`` is called on a pool thread: post from it."""
        self.readers.submit(job, on_full="raise").on_complete(
            lambda result: (
                done(None, result.error) if result.error is not None else done(result.result(), None)
            )
        )
