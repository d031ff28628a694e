"""The machine and the versions that a figure belongs to; nothing that names the machine or a path on it."""

from __future__ import annotations

import os
import platform
import sqlite3
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psycopg

__all__ = ["DURABLE", "assert_durable", "describe"]

DURABLE = ("fsync", "synchronous_commit", "full_page_writes")
_PACKAGES = ("Django", "psycopg", "dbos", "langgraph", "langgraph-checkpoint-postgres")


def assert_durable(connection: psycopg.Connection) -> None:
    """Raise ``RuntimeError`` unless a commit on this server waits for the disk."""
    for setting in DURABLE:
        found = _setting(connection, setting)
        if found != "on":
            raise RuntimeError(
                f"PostgreSQL's {setting} is {found!r}: these figures would say nothing. Turn it on."
            )


def describe(connection: psycopg.Connection) -> dict[str, Any]:
    """What docs/benchmarks.md says about where it was measured."""
    return {
        "cores": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30),
        "processor": _processor(),
        "system": f"{platform.system()} {platform.machine()}",
        "load_before": round(os.getloadavg()[0], 2),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "postgresql": _setting(connection, "server_version").split()[0],
        "postgresql_settings": {name: _setting(connection, name) for name in (*DURABLE, "wal_sync_method")},
        "sqlite": sqlite3.sqlite_version,
        "packages": {name: version(name) for name in _PACKAGES},
    }


def _setting(connection: psycopg.Connection, name: str) -> str:
    row = connection.execute("SELECT current_setting(%s)", [name]).fetchone()
    assert row is not None
    return str(row[0])


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or "unknown"
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
