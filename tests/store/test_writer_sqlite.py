"""Busy databases and foreign writers on SQLite (HARD_POINTS 16)."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest
from django.db import connection, connections

from phronomy_django.domain.errors import StorageError
from phronomy_django.engine import ThreadScheduler
from phronomy_django.engine.failpoints import armed
from phronomy_django.models import AgentExecution
from phronomy_django.store import Committed, Refused
from tests.store.conftest import Answers
from tests.store.transitions import Agent

pytestmark = pytest.mark.sqlite


@pytest.fixture
def other(transactional_db: None) -> Iterator[sqlite3.Connection]:
    """Another connection to the same file."""
    with closing(sqlite3.connect(connection.settings_dict["NAME"], isolation_level=None)) as session:
        yield session


def impatient() -> None:
    connections["default"].connection.execute("PRAGMA busy_timeout = 1")


def test_a_write_lock_that_somebody_else_holds_is_waited_for(
    make_writer: Callable[..., Answers], runtime_id: str, other: sqlite3.Connection
) -> None:
    agents = [Agent.create(runtime_id) for _ in range(3)]
    writer = make_writer(start=False)
    other.execute("BEGIN IMMEDIATE")
    answers = writer.submit(*(agent.admission() for agent in agents))
    with armed("store.writer.taken", impatient):
        writer.writer.start()
        assert ThreadScheduler().wait(lambda: writer.writer.metrics.retries >= 4, 20)
        assert answers == [None] * 3
        other.execute("ROLLBACK")
        assert writer.wait(answers) == [Committed()] * 3
    assert AgentExecution.objects.count() == 3


def test_a_database_that_stays_locked_refuses_in_the_end(
    make_writer: Callable[..., Answers], agent: Agent, other: sqlite3.Connection
) -> None:
    writer = make_writer()
    other.execute("BEGIN IMMEDIATE")
    with armed("store.writer.taken", impatient):
        (answer,) = writer.commit(agent.note())
    other.execute("ROLLBACK")
    assert isinstance(answer, Refused) and isinstance(answer.error, StorageError)
    assert "locked" in str(answer.error)
    assert writer.commit(agent.note()) == [Committed()]


def test_a_lost_answer_is_read_back(make_writer: Callable[..., Answers], runtime_id: str) -> None:
    agents = [Agent.create(runtime_id) for _ in range(4)]
    writer = make_writer(start=False)
    answers = writer.submit(*(agent.admission() for agent in agents))
    with armed("store.batch.after_commit", "raise"):
        writer.writer.start()
        assert writer.wait(answers) == [Committed()] * 4
    assert AgentExecution.objects.count() == 4
    assert writer.writer.metrics.read_backs == 4
