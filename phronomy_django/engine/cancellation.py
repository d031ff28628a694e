"""CancellationToken: how one part asks others to stop."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from phronomy_django.engine.errors import TaskCancelledError

if TYPE_CHECKING:
    from phronomy_django.engine.timers import TimerHandle, Timers

__all__ = ["CancellationToken"]

logger = logging.getLogger("phronomy_django.engine")

_lock = threading.Lock()


class CancellationToken:
    """Cancelled once and for good; whoever watches it decides what that means for its own work."""

    __slots__ = ("__weakref__", "_callbacks", "_cancelled", "_timers", "reason")

    def __init__(self) -> None:
        self._cancelled = False
        self.reason: str | None = None
        self._callbacks: dict[object, Callable[[], object]] = {}
        self._timers: list[TimerHandle] = []

    @property
    def cancelled(self) -> bool:
        return self._cancelled

    def cancel(self, reason: str | None = None) -> bool:
        """Cancel, and call the callbacks on this thread; True if this did it, False if it came too late."""
        with _lock:
            if self._cancelled:
                return False
            self._cancelled = True
            self.reason = reason
            callbacks, self._callbacks = self._callbacks, {}
            timers, self._timers = self._timers, []
        for timer in timers:
            timer.cancel()
        for callback in callbacks.values():
            self._call(callback)
        return True

    def _call(self, callback: Callable[[], object]) -> None:
        try:
            callback()
        except Exception:
            logger.exception("A callback of a cancellation token failed; the others are still called")

    def on_cancel(self, callback: Callable[[], object]) -> Callable[[], None]:
        """Call ``callback()`` at the cancellation, at once if it was before; returns the undo."""
        key = object()
        with _lock:
            if not self._cancelled:
                self._callbacks[key] = callback
                return lambda: self._forget(key)
        self._call(callback)
        return lambda: None

    def _forget(self, key: object) -> None:
        with _lock:
            self._callbacks.pop(key, None)

    def timeout_after(self, seconds: float, timers: Timers) -> TimerHandle:
        """Cancel, with reason ``"timeout"``, when ``seconds`` have passed on the monotonic clock.

        The timer queue promotes the deadline: until it has, the token is not cancelled. Of several the
        earliest wins. The handle takes this deadline back.
        """
        handle = timers.call_later(seconds, lambda: self.cancel("timeout"))
        with _lock:
            if not self._cancelled:
                self._timers.append(handle)
                return handle
        handle.cancel()
        return handle

    def raise_if_cancelled(self) -> None:
        """Raise ``TaskCancelledError`` with the reason if the token is cancelled."""
        if self._cancelled:
            raise TaskCancelledError(self.reason)
