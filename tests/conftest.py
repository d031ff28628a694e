"""What all tests share: the choice of tests for each database, and the way to it for other processes."""

from __future__ import annotations

import os
from collections.abc import Mapping

import pytest
from django.conf import settings
from django.db import connection
from django.test import TransactionTestCase

from tests.postgres import with_database

_DATABASE_FIXTURES = frozenset(
    {"db", "transactional_db", "django_db_reset_sequences", "django_db_serialized_rollback", "live_server"}
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--database-only",
        action="store_true",
        help="run only the tests that use the database (the others ran on another one already)",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "sqlite: needs the SQLite database")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect what is marked for the other database and, with ``--database-only``, what needs none."""
    other = "sqlite" if "postgresql" in settings.DATABASES["default"]["ENGINE"] else "postgres"
    only = config.getoption("--database-only")
    kept = [
        item for item in items if not item.get_closest_marker(other) and (uses_database(item) or not only)
    ]
    if len(kept) < len(items):
        config.hook.pytest_deselected(items=[item for item in items if item not in set(kept)])
        items[:] = kept


def uses_database(item: pytest.Item) -> bool:
    """Whether a test asks for the database: by mark, by fixture, or as one of Django's test cases."""
    if any(item.get_closest_marker(mark) for mark in ("django_db", "postgres", "sqlite")):
        return True
    if not _DATABASE_FIXTURES.isdisjoint(getattr(item, "fixturenames", ())):
        return True
    case = getattr(item, "cls", None)
    return isinstance(case, type) and issubclass(case, TransactionTestCase)


@pytest.fixture
def subprocess_environment(transactional_db: None) -> Mapping[str, str]:
    """The environment in which another Python process, with the same settings, uses this test's database."""
    name = str(connection.settings_dict["NAME"])
    environment = os.environ | {"DJANGO_SETTINGS_MODULE": os.environ["DJANGO_SETTINGS_MODULE"]}
    if connection.vendor == "postgresql":
        return environment | {"DATABASE_URL": with_database(os.environ["DATABASE_URL"], name)}
    return environment | {"PHRONOMY_TEST_SQLITE": name}
