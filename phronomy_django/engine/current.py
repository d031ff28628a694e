"""Which event loop this thread is dispatching right now: the ground of every guard against blocking it."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from phronomy_django.engine.errors import EventLoopReentrancyError

if TYPE_CHECKING:
    from phronomy_django.engine.loop import EventLoop

__all__ = ["current_event_loop", "refuse_on_loop_thread"]


class _Current(threading.local):
    loop: EventLoop | None = None


_current = _Current()


def current_event_loop() -> EventLoop | None:
    """The loop that this thread is dispatching at this moment, or None; also true to life in virtual time."""
    return _current.loop


def set_current_event_loop(loop: EventLoop | None) -> None:
    """For the loop alone: called around each batch that it dispatches."""
    _current.loop = loop


def refuse_on_loop_thread(what: str) -> None:
    """Raise ``EventLoopReentrancyError`` if this thread is dispatching an event loop (DESIGN §3, rule 2)."""
    loop = _current.loop
    if loop is not None:
        raise EventLoopReentrancyError(
            f"{what} would block the event loop {loop.name!r}, on whose thread it was called; "
            f"use the asynchronous form and continue in a delivery."
        )
