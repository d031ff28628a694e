"""Rule 2, enforced in every environment: a query on the event loop thread raises ``EventLoopBlockingError``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.db.backends.signals import connection_created

from phronomy_django.engine import EventLoop, EventLoopBlockingError

__all__ = ["install_loop_guard"]

_MESSAGE = (
    "A database query was made on the event loop thread. Move it into an offload pool: a tool that is not cooperative, "
    "a preparation method, or a hook."
)


def _refuse_on_loop(execute: Callable[..., Any], sql: str, params: Any, many: bool, context: Any) -> Any:
    if EventLoop.on_loop_thread():
        raise EventLoopBlockingError(_MESSAGE)
    return execute(sql, params, many, context)


def _guard_connection(sender: Any, connection: Any, **_: Any) -> None:
    if EventLoop.on_loop_thread():
        connection.close()
        raise EventLoopBlockingError(_MESSAGE)
    if _refuse_on_loop not in connection.execute_wrappers:
        connection.execute_wrappers.append(_refuse_on_loop)


def install_loop_guard() -> None:
    """Guard every connection that is opened from now on; idempotent."""
    connection_created.connect(_guard_connection, dispatch_uid="phronomy_django.loop_guard")
