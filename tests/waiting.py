"""Waiting in tests: until something is so, with a deadline; never for a length of time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

__all__ = ["wait_until"]


def wait_until(is_so: Callable[[], object], what: str = "it", seconds: float = 30.0) -> None:
    """Return once ``is_so()`` is true; fail with ``what`` when ``seconds`` are over."""
    until = time.monotonic() + seconds
    pause = threading.Event()
    while not is_so():
        if time.monotonic() > until:
            raise AssertionError(f"{what} did not come within {seconds} s")
        pause.wait(0.005)
