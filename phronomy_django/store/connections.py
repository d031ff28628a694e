"""Database connections of threads that are ours (DESIGN §8)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, TypeVar

from django.db import connections

from phronomy_django.domain.errors import ConfigurationError

__all__ = ["close_connections", "in_passing_thread", "only_database", "with_connections"]

T = TypeVar("T")


def with_connections(body: Callable[[], T]) -> T:
    """Run one body of a pool thread between Django's checks of the thread's connections.

    A connection that is broken or too old is closed before the body and after it, so that a restart of the
    database costs at most the body that was running. A connection inside a transaction (of a test, or of the
    caller in whose thread the inline mode runs the body) is left alone; Django's own function would close it.
    """
    _close_old()
    try:
        return body()
    finally:
        _close_old()


def _close_old() -> None:
    for connection in connections.all(initialized_only=True):
        if not connection.in_atomic_block:
            connection.close_if_unusable_or_obsolete()


def close_connections() -> None:
    """Close all connections of this thread; the last thing that a thread of ours does."""
    connections.close_all()


async def in_passing_thread(function: Callable[..., T], *arguments: Any) -> T:
    """Await ``function(*arguments)`` on a thread that asyncio keeps: nothing of a database stays open there."""

    def call() -> T:
        try:
            return function(*arguments)
        finally:
            close_connections()

    return await asyncio.to_thread(call)


@contextmanager
def only_database(using: str, what: str) -> Iterator[None]:
    """Refuse every query of this thread on another alias, and a replaced or ended transaction of ``using``.

    Application code in our transaction may use only the database that our tables are in: an effect on another
    one would not be undone with it (HARD_POINTS 17).
    """
    connection = connections[using]
    before = connection.connection

    def refuse(execute: Any, sql: Any, params: Any, many: Any, context: Any) -> Any:
        alias = context["connection"].alias
        raise ConfigurationError(
            f"{what} used the database {alias!r}; it may use only {using!r}, whose transaction it is part of."
        )

    with ExitStack() as stack:
        for alias in connections:
            if alias != using:
                stack.enter_context(connections[alias].execute_wrapper(refuse))
        yield
    gone = connection.closed_in_transaction or not connection.in_atomic_block
    if gone or connection.connection is not before:
        raise ConfigurationError(
            f"{what} closed or replaced the connection of the transaction that it is part of."
        )
    status = getattr(getattr(before, "info", None), "transaction_status", None)
    inside = before.in_transaction if status is None else status.name == "INTRANS"
    if not inside:
        raise ConfigurationError(
            f"{what} ended the transaction that it is part of, or went on after an error in it."
        )
