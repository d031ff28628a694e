"""Settings of the tests on PostgreSQL: ``DATABASE_URL``, or a server that is started for this process."""

from __future__ import annotations

from tests.postgres import database_settings, database_url
from tests.settings import *  # noqa: F403

DATABASES = {"default": database_settings(database_url())}
