"""Locks, lost answers and killed backends on a real PostgreSQL (HARD_POINTS 1 to 4)."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from django.db import connection, connections

from phronomy_django.domain.errors import OutcomeUnknownError, StorageError
from phronomy_django.engine import ThreadScheduler
from phronomy_django.engine.failpoints import FailpointError, armed
from phronomy_django.models import AgentExecution, JournalRecord
from phronomy_django.store import Beat, Committed, HeldError, Refused, Unknown
from phronomy_django.store.postgres import PostgresRows
from tests.store.conftest import Answers
from tests.store.transitions import Agent

pytestmark = pytest.mark.postgres
scheduler = ThreadScheduler()


@pytest.fixture
def other(transactional_db: None) -> Iterator[psycopg.Connection[Any]]:
    """Another session on the same database."""
    parameters = connection.get_connection_params()
    keys = ("dbname", "host", "port", "user", "password")
    with psycopg.connect(**{key: parameters[key] for key in keys if parameters.get(key)}) as session:
        yield session


def waiting_backends() -> list[int]:
    """The backends of this database that wait for a lock."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        )
        return [row[0] for row in cursor.fetchall()]


def insert_content_uncommitted(session: psycopg.Connection[Any], content: Any) -> None:
    session.execute(
        "INSERT INTO phronomy_content (content_id, body, size, media_type, canonicalization_version) "
        "VALUES (%s, %s, %s, %s, %s)",
        tuple(content),
    )


@pytest.mark.parametrize("others", [0, 9], ids=["alone", "in a batch"])
def test_a_root_that_another_session_holds_stops_nobody_else(
    make_writer: Callable[..., Answers], runtime_id: str, other: psycopg.Connection[Any], others: int
) -> None:
    held, *free = (Agent.create(runtime_id) for _ in range(others + 1))
    writer = make_writer(start=False)
    other.execute("SELECT 1 FROM phronomy_agentroot WHERE id = %s FOR UPDATE", [held.root_id])
    answers = writer.submit(*(agent.admission() for agent in (held, *free)))
    writer.writer.start()
    assert scheduler.wait(lambda: writer.writer.metrics.retries >= 2, 20)
    assert answers == [None, *[Committed()] * others]
    other.commit()
    assert writer.wait(answers) == [Committed()] * (others + 1)


def test_a_held_operation_lets_its_transition_come_again(
    make_writer: Callable[..., Answers], agent: Agent, other: psycopg.Connection[Any]
) -> None:
    writer = make_writer()
    first = agent.admission()
    writer.commit(first)
    agent.advance(first)
    other.execute(
        "SELECT 1 FROM phronomy_offloadoperation WHERE operation_id = %s FOR UPDATE", [agent.operation_id]
    )
    answers = writer.submit(agent.ending())
    assert scheduler.wait(lambda: writer.writer.metrics.retries >= 1, 20)
    other.commit()
    assert writer.wait(answers) == [Committed()]


def test_a_root_that_is_held_for_too_long_is_refused(
    make_writer: Callable[..., Answers], agent: Agent, other: psycopg.Connection[Any]
) -> None:
    writer = make_writer(give_up_seconds=0.05)
    other.execute("SELECT 1 FROM phronomy_agentroot WHERE id = %s FOR UPDATE", [agent.root_id])
    (answer,) = writer.commit(agent.note())
    assert isinstance(answer, Refused) and isinstance(answer.error, HeldError)
    other.rollback()
    assert writer.commit(agent.note()) == [Committed()]


def test_a_killed_backend_costs_no_transition(
    make_writer: Callable[..., Answers], runtime_id: str, other: psycopg.Connection[Any]
) -> None:
    agents = [Agent.create(runtime_id) for _ in range(5)]
    works = [agent.admission() for agent in agents]
    insert_content_uncommitted(other, works[2].contents[0])
    writer = make_writer(start=False)
    answers = writer.submit(*works)
    writer.writer.start()
    assert scheduler.wait(lambda: len(waiting_backends()) == 1, 20)
    (pid,) = waiting_backends()
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_terminate_backend(%s)", [pid])
    other.rollback()
    assert writer.wait(answers) == [Committed()] * 5
    assert AgentExecution.objects.count() == 5
    assert writer.writer.metrics.read_backs == 5


def test_a_commit_that_the_server_finishes_late_is_found(
    make_writer: Callable[..., Answers],
    agent: Agent,
    other: psycopg.Connection[Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """HARD_POINTS 2: the client is cut off while the server still executes what it was sent."""
    used: list[Any] = []
    commit = PostgresRows.commit

    def remember(self: PostgresRows, works: Any) -> list[bool]:
        used.append(self._raw())
        return commit(self, works)

    monkeypatch.setattr(PostgresRows, "commit", remember)
    work = agent.admission()
    insert_content_uncommitted(other, work.contents[0])
    writer = make_writer()
    answers = writer.submit(work)
    assert scheduler.wait(lambda: len(waiting_backends()) == 1, 20)
    with socket.socket(fileno=os.dup(used[0].fileno())) as line:
        line.shutdown(socket.SHUT_RD)
    assert scheduler.wait(lambda: len(used) >= 3, 20), "it was not submitted again while the first one runs"
    assert answers == [None]
    other.commit()
    assert writer.wait(answers) == [Committed()]
    assert AgentExecution.objects.count() == 1
    assert JournalRecord.objects.count() == 2


@pytest.mark.parametrize("executed", [True, False])
@pytest.mark.parametrize("size", [1, 6], ids=["alone", "in a batch"])
def test_a_lost_answer_is_settled_for_each(
    make_writer: Callable[..., Answers],
    runtime_id: str,
    monkeypatch: pytest.MonkeyPatch,
    executed: bool,
    size: int,
) -> None:
    commit, losses = PostgresRows.commit, [True]

    def lose(self: PostgresRows, works: Any) -> list[bool]:
        if not losses:
            return commit(self, works)
        losses.clear()
        if executed:
            commit(self, works)
        self._raw().close()
        raise psycopg.OperationalError("server closed the connection unexpectedly")

    monkeypatch.setattr(PostgresRows, "commit", lose)
    agents = [Agent.create(runtime_id) for _ in range(size)]
    stale = Agent.create(runtime_id)
    stale.revision = 5
    writer = make_writer(start=False)
    answers = writer.submit(*(agent.admission() for agent in agents), stale.admission())
    writer.writer.start()
    *good, refused = writer.wait(answers)
    assert good == [Committed()] * size
    assert isinstance(refused, Refused)
    assert AgentExecution.objects.count() == size


def test_a_step_whose_answer_was_lost_is_read_back_by_its_claim(
    make_writer: Callable[..., Answers], agent: Agent
) -> None:
    writer = make_writer()
    for make in (agent.admission, agent.tool_dispatch):
        transition = make()
        writer.commit(transition)
        agent.advance(transition)
    with armed("store.single.after_commit", _Once()):
        assert writer.commit(agent.claim_step(0)) == [Committed()]
    assert writer.writer.metrics.read_backs == 1


class _Once:
    """Raises at the first call only."""

    def __init__(self) -> None:
        self.called = False

    def __call__(self) -> None:
        if not self.called:
            self.called = True
            raise FailpointError("lost")


def test_an_unreachable_database_leaves_a_lost_answer_unknown_and_refuses_the_rest(
    make_writer: Callable[..., Answers], runtime_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone, at_commit = threading.Event(), threading.Event()

    def refuse() -> None:
        if gone.is_set():
            raise psycopg.OperationalError("connection refused")

    def cut() -> None:
        gone.set()
        at_commit.set()
        raise psycopg.OperationalError("server closed the connection unexpectedly")

    agents = [Agent.create(runtime_id) for _ in range(2)]
    writer = make_writer(give_up_seconds=0.1)
    with armed("store.connect", refuse), armed("store.single.before_commit", cut):
        lost = writer.submit(agents[0].note())
        assert at_commit.wait(20)
        rest = writer.submit(agents[1].note(), Beat(runtime_id))
        (unknown,), (refused, beat) = writer.wait(lost), writer.wait(rest)
        assert isinstance(beat, Unknown)
        assert isinstance(unknown, Unknown) and isinstance(unknown.error, OutcomeUnknownError)
        assert isinstance(refused, Refused) and isinstance(refused.error, StorageError)
        gone.clear()
    assert writer.commit(agents[0].note(), agents[1].note()) == [Committed()] * 2


def test_content_that_another_transaction_pruned_is_inserted_again(
    make_writer: Callable[..., Answers], agent: Agent, other: psycopg.Connection[Any]
) -> None:
    """HARD_POINTS 4: the row was there when we inserted, and gone when we committed."""
    work = agent.note()
    insert_content_uncommitted(other, work.contents[0])
    other.commit()
    other.execute("DELETE FROM phronomy_content WHERE content_id = %s", [work.contents[0].content_id])
    writer = make_writer()
    answers = writer.submit(work)
    other.commit()
    assert writer.wait(answers) == [Committed()]


def test_two_writers_never_both_move_a_root(make_writer: Callable[..., Answers], runtime_id: str) -> None:
    agents = [Agent.create(runtime_id) for _ in range(40)]
    one, two = make_writer(), make_writer()
    first = one.submit(*(agent.admission() for agent in agents))
    second = two.submit(*(agent.admission() for agent in reversed(agents)))
    done = [*one.wait(first), *two.wait(second)]
    assert sum(answer == Committed() for answer in done) == 40
    assert AgentExecution.objects.count() == 40


def test_a_run_of_three_commits_takes_three_statements(
    make_writer: Callable[..., Answers], agent: Agent
) -> None:
    writer = make_writer()
    for make in (agent.admission, agent.tool_dispatch):
        transition = make()
        assert writer.commit(transition) == [Committed()]
        agent.advance(transition)
    assert writer.commit(agent.claim_step(0)) == [Committed()]
    metrics = writer.writer.metrics
    assert (metrics.commits, metrics.statements) == (3, 3)


def test_the_writers_session_is_bounded_again_after_a_reconnect(
    make_writer: Callable[..., Answers], agent: Agent
) -> None:
    seen: list[dict[str, str]] = []

    def look() -> None:
        with connections["default"].cursor() as cursor:
            cursor.execute(
                "SELECT name, setting FROM pg_settings WHERE name IN "
                "('lock_timeout', 'statement_timeout', 'idle_in_transaction_session_timeout')"
            )
            seen.append(dict(cursor.fetchall()))

    writer = make_writer(lease_seconds=8.0)
    with armed("store.single.before_commit", look):
        first = agent.note()
        writer.commit(first)
        agent.advance(first)
        with armed("store.single.after_commit", _Once()):
            second = agent.note()
            assert writer.commit(second) == [Committed()]
    assert seen[0] == {
        "lock_timeout": "2000",
        "statement_timeout": "2000",
        "idle_in_transaction_session_timeout": "2000",
    }
    assert len(seen) >= 3 and all(item == seen[0] for item in seen)
    assert writer.writer.metrics.reconnects == 2
