"""What really goes to the database, on every connection of this process: libpq's own trace, SQLite's own trace."""

from __future__ import annotations

import re
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.db import connections
from django.db.backends.signals import connection_created
from psycopg import pq

__all__ = ["Wire", "traced"]

_SENT = re.compile(r"^(?:[^\t\n]*\t)?F\t\d+\t(Query|Execute)\t(.*)$", re.MULTILINE)


class Wire:
    """Statements in the order of each connection; ``take`` gives what came since the last ``take``."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._files: list[Any] = []
        self._read: dict[int, int] = {}
        self._sqlite: list[str] = []

    def connected(self, connection: Any, **_: Any) -> None:
        raw = connection.connection
        if connection.vendor == "sqlite":
            raw.set_trace_callback(self._sqlite.append)
            return
        file = tempfile.TemporaryFile("w+")
        raw.pgconn.trace(file.fileno())
        with self._lock:
            self._files.append((raw.pgconn, file))

    def take(self) -> list[str]:
        """On PostgreSQL the text of a simple query, and ``execute`` for a prepared one.

        On SQLite, which traces each row of an ``executemany``, neighbours that differ in their values only are one.
        """
        shapes, self._sqlite[:] = [text[:60] for text in self._sqlite], []
        said = [text for text, before in zip(shapes, [None, *shapes], strict=False) if text != before]
        with self._lock:
            files = list(self._files)
        for number, (pgconn, file) in enumerate(files):
            if pgconn.status == pq.ConnStatus.OK:
                pgconn.untrace()  # libpq writes out what it has kept back
                pgconn.trace(file.fileno())
            file.seek(self._read.get(number, 0))
            text = file.read()
            self._read[number] = file.tell()
            said += [
                "execute" if kind == "Execute" else words.strip().strip('"')
                for kind, words in _SENT.findall(text)
            ]
        return said

    def close(self) -> None:
        for pgconn, file in self._files:
            if pgconn.status == pq.ConnStatus.OK:
                pgconn.untrace()
            file.close()


@contextmanager
def traced() -> Iterator[Wire]:
    """Trace every connection that is opened from now on; those of this thread are opened anew."""
    wire = Wire()
    connections.close_all()
    connection_created.connect(wire.connected)
    try:
        yield wire
    finally:
        connection_created.disconnect(wire.connected)
        connections.close_all()
        wire.close()
