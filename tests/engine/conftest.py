"""The engine's tests: virtual time unless a test is about threads."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from phronomy_django.engine import EventLoop, Runtime, ThreadPool, ThreadScheduler, Timers
from phronomy_django.testing.scheduler import DeterministicScheduler
from tests.engine.support import Recorder


@pytest.fixture
def scheduler() -> DeterministicScheduler:
    return DeterministicScheduler()


@pytest.fixture
def loop(scheduler: DeterministicScheduler) -> EventLoop:
    return EventLoop("tested", scheduler=scheduler)


@pytest.fixture
def receiver(loop: EventLoop) -> Recorder:
    recorder = Recorder(loop)
    loop.register_receiver("recorder", recorder)
    return recorder


@pytest.fixture
def threads() -> Iterator[Runtime]:
    """A runtime on real threads, shut down at the end."""
    scheduler = ThreadScheduler()
    timers = Timers(scheduler=scheduler)
    pool = ThreadPool("default", size=2, queue_size=4, scheduler=scheduler, timers=timers)
    runtime = Runtime(scheduler=scheduler, pools={"default": pool}, timers=timers)
    yield runtime
    assert runtime.shutdown(5, 5).stopped
