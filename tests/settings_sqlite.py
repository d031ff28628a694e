"""Settings of the tests on SQLite, by the name that says so."""

from __future__ import annotations

from tests.settings import *  # noqa: F403
