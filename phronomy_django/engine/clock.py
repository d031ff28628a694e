"""Where the engine takes its time from."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Protocol

__all__ = ["Clock", "SystemClock"]


class Clock(Protocol):
    """Two readings: a monotonic one in seconds, for deadlines, and the date, for records."""

    def monotonic(self) -> float:
        """Seconds that never go back; only differences mean something."""

    def now(self) -> datetime:
        """The date and time, aware, in UTC."""


class SystemClock:
    """The machine's own clocks."""

    monotonic = staticmethod(time.monotonic)

    @staticmethod
    def now() -> datetime:
        return datetime.now(UTC)
