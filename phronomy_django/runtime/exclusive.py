"""On SQLite one runtime only: an OS file lock beside the database elects it (HARD_POINTS 15)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from django.db import connections

from phronomy_django.domain.errors import ConfigurationError

try:
    import fcntl
except ImportError:  # pragma: no cover - not a POSIX system
    fcntl = None  # type: ignore[assignment]

__all__ = ["ExclusiveLock"]


class ExclusiveLock:
    """Held for as long as the runtime lives; the system frees it when the process dies, however it dies.

    ``acquire`` returns whether every other runtime of this database is thereby known to be dead; it raises
    ``ConfigurationError`` if another process holds the lock. For other databases, and for SQLite in memory, it does
    nothing and returns False.
    """

    def __init__(self, database: str) -> None:
        self._path = _lock_path(connections[database])
        self._file: int | None = None

    def acquire(self) -> bool:
        if self._path is None or fcntl is None:
            return False
        handle = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.read(handle, 200).decode("ascii", "replace")
            os.close(handle)
            raise ConfigurationError(
                f"Another process{f' ({holder})' if holder else ''} runs the agents of this SQLite database; on SQLite "
                f"only one runtime may. Stop it, or use PostgreSQL."
            ) from None
        os.ftruncate(handle, 0)
        os.write(handle, f"process {os.getpid()}".encode())
        self._file = handle
        return True

    def release(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None


def _lock_path(connection: Any) -> Path | None:
    name = str(connection.settings_dict.get("NAME", ""))
    if connection.vendor != "sqlite" or not name or ":memory:" in name or "mode=memory" in name:
        return None
    return Path(name.removeprefix("file:").split("?", 1)[0] + ".runtime-lock")
