"""One-off blocking work."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from phronomy_django.engine.errors import PhronomyError, RuntimeShutdownError
from phronomy_django.engine.results import TaskResult
from phronomy_django.engine.runtime import Runtime

__all__ = ["Blocking"]

T = TypeVar("T")


class Blocking:
    """Blocking work that has no pool of its own."""

    @staticmethod
    def call_async(
        function: Callable[[], T], *, runtime: Runtime | None = None, timeout: float | None = None
    ) -> TaskResult[T]:
        """Run ``function`` in the pool ``"default"`` of ``runtime``, the process's default one if None.

        Never waits for room: a refused admission, a closed pool and a missing runtime come back as a failed
        result. Safe on the loop's thread.
        """
        runtime = runtime if runtime is not None else Runtime.default()
        if runtime is None:
            return TaskResult.failed(
                RuntimeShutdownError("There is no default runtime in this process; nothing was started.")
            )
        try:
            return runtime.pool("default").submit(function, timeout=timeout, on_full="raise")
        except (PhronomyError, LookupError) as error:
            return TaskResult.failed(error, runtime.scheduler)
