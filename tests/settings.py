"""Settings of the tests, on SQLite. ``tests.settings_postgres`` is the same on PostgreSQL.

The database is a file, since an in-memory one cannot be shared by threads. ``PHRONOMY_TEST_SQLITE`` names
it for a process that a test starts.
"""

from __future__ import annotations

import atexit
import os
import tempfile
from pathlib import Path
from typing import Any

SECRET_KEY = "only for tests"
USE_TZ = True
TIME_ZONE = "UTC"
ROOT_URLCONF = "example_project.urls"
STATIC_URL = "static/"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "rest_framework",
    "phronomy_django",
    "example_project.support",
    "tests.testapp",
]
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]

_SQLITE = Path(tempfile.gettempdir()) / f"phronomy-tests-{os.getpid()}"


def _remove_locks() -> None:
    """The lock files beside the test databases, which a runtime leaves (removing one that is held would free it)."""
    for lock in _SQLITE.parent.glob(f"{_SQLITE.name}*.runtime-lock"):
        lock.unlink(missing_ok=True)


atexit.register(_remove_locks)

DATABASES: dict[str, dict[str, Any]] = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": os.environ.get("PHRONOMY_TEST_SQLITE") or f"{_SQLITE}-unused.sqlite3",
        "TEST": {"NAME": f"{_SQLITE}.sqlite3"},
        "OPTIONS": {
            "transaction_mode": "IMMEDIATE",
            "timeout": 20,
            "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL;",
        },
    }
}

PHRONOMY = {"RUNTIME": "embedded"}
