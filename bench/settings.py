"""Django's settings of the measured process: the database is named by the variable ``BENCH_DATABASE``.

It is the URL of a PostgreSQL database, or the path of a file for SQLite.
"""

from __future__ import annotations

import os
from typing import Any

from tests.postgres import database_settings

_NAMED = os.environ["BENCH_DATABASE"]

SECRET_KEY = "only for benchmarks"
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
INSTALLED_APPS = [
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "phronomy_django",
    "bench",
]
_SQLITE: dict[str, Any] = {
    "ENGINE": "django.db.backends.sqlite3",
    "NAME": _NAMED,
    "OPTIONS": {
        "transaction_mode": "IMMEDIATE",
        "timeout": 20,
        "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL;",
    },
}
DATABASES = {"default": database_settings(_NAMED) if "://" in _NAMED else _SQLITE}
PHRONOMY = {"RUNTIME": "embedded", "POOLS": {"default": {"SIZE": 64}}}
