"""A few threads for barriers with application code, so that it holds up no other agent's commit."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable

from phronomy_django.engine.scheduling import Scheduler, WorkerHandle
from phronomy_django.store.connections import close_connections, with_connections

__all__ = ["HookThreads"]

logger = logging.getLogger("phronomy_django.store")


class HookThreads:
    """Runs tasks on up to ``size`` workers that start when they are needed. Tasks do not raise."""

    def __init__(self, *, scheduler: Scheduler, size: int) -> None:
        self._scheduler = scheduler
        self._size = size
        self.tasks: deque[Callable[[], None]] = deque()
        self.changed = threading.Condition(threading.Lock())
        self.closed = False
        self._handles: list[WorkerHandle] = []
        self._idle = 0

    def submit(self, task: Callable[[], None]) -> None:
        with self.changed:
            self.tasks.append(task)
            start = self._idle < len(self.tasks) and len(self._handles) < self._size
            self.changed.notify()
        if start:
            name = f"phronomy-hooks-{len(self._handles)}"
            self._handles.append(self._scheduler.start(_HookWorker(self, name)))

    def close(self) -> None:
        """End the threads once their tasks are done."""
        with self.changed:
            self.closed = True
            self.changed.notify_all()

    def take(self, *, block: bool) -> Callable[[], None] | None:
        with self.changed:
            self._idle += 1
            while block and not self.tasks and not self.closed:
                self.changed.wait()
            self._idle -= 1
            return self.tasks.popleft() if self.tasks else None


class _HookWorker:
    def __init__(self, threads: HookThreads, name: str) -> None:
        self._threads = threads
        self.name = name

    def run_step(self, *, block: bool) -> bool:
        task = self._threads.take(block=block)
        if task is None:
            return False
        try:
            with_connections(task)
        except Exception:
            logger.exception("A task of %s failed", self.name)
        return True

    def runnable(self) -> bool:
        return bool(self._threads.tasks)

    def finished(self) -> bool:
        return self._threads.closed and not self._threads.tasks

    def thread_ended(self) -> None:
        close_connections()
