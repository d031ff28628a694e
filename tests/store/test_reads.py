"""Reads for pool threads: what they find, what they say when there is nothing, and which index they use."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from phronomy_django.domain.errors import AgentAlreadyExistsError, AgentPurgedError, NotFoundError
from phronomy_django.domain.ids import new_id
from phronomy_django.models import AgentRoot, JournalRecord
from phronomy_django.store import (
    Committed,
    create_root,
    find_by_idempotency_key,
    load_content,
    load_contents,
    load_context,
    load_events,
    load_execution,
    load_root,
    with_connections,
)
from tests.store.conftest import Answers
from tests.store.transitions import NOW, Agent


@pytest.fixture
def ended(writer: Answers, agent: Agent) -> Agent:
    """An agent with one finished run."""
    for make in (lambda: agent.admission(idempotency_key="key"), agent.ending):
        transition = make()
        assert writer.commit(transition) == [Committed()]
        agent.advance(transition)
    return agent


def test_a_new_agent_is_idle_at_revision_zero(transactional_db: None) -> None:
    made = create_root(agent_id="a", definition_id="d", definition_version=2, metadata={"tenant": "x"})
    assert made == load_root("a")
    assert (made.agent_revision, made.journal_position, made.lifecycle_status) == (0, 0, "idle")
    assert (made.owner_id, made.fencing_token, made.metadata) == (None, 0, {"tenant": "x"})
    with pytest.raises(AgentAlreadyExistsError, match="'a' already exists"):
        create_root(agent_id="a", definition_id="d", definition_version=2)


def test_a_missing_and_a_purged_agent_are_told_apart(agent: Agent) -> None:
    with pytest.raises(NotFoundError, match="'nobody'"):
        load_root("nobody")
    AgentRoot.objects.update(lifecycle_status="purged")
    with pytest.raises(AgentPurgedError, match="stays reserved"):
        load_root(agent.agent_id)


def test_an_execution_is_read_with_the_bytes_of_its_result(ended: Agent) -> None:
    found = load_execution(ended.execution_id)
    assert (found.status, found.result, found.error) == ("completed", b'"It is on its way."', None)
    assert (found.agent_id, found.root_id, found.execution_revision) == (ended.agent_id, ended.root_id, 2)
    assert found == find_by_idempotency_key(ended.root_id, "key")
    assert find_by_idempotency_key(ended.root_id, "other") is None
    with pytest.raises(NotFoundError):
        load_execution(new_id())


def test_contents_are_read_together_and_a_missing_one_is_named(ended: Agent) -> None:
    ids = list(JournalRecord.objects.values_list("content_id", flat=True))
    assert set(load_contents(ids)) == set(ids)
    assert load_content(str(ids[0])) == load_contents(ids)[ids[0]]
    with pytest.raises(NotFoundError, match="sha256:no"):
        load_contents([*ids, "sha256:no"])


def test_events_are_read_after_a_sequence(ended: Agent) -> None:
    assert [event.type for event in load_events(ended.execution_id)] == ["status", "message", "end"]
    assert [event.sequence for event in load_events(ended.execution_id, 1, limit=1)] == [2]
    assert load_events(ended.execution_id)[0].payload == {"status": "active", "text": '{"\\"}'}


def test_the_context_is_all_knowledge_and_the_newest_of_the_transcript(writer: Answers, ended: Agent) -> None:
    ended.execution_id = ""
    for text in ("first", "second"):
        note = ended.note(text)
        assert writer.commit(note) == [Committed()]
        ended.advance(note)
    items = load_context(ended.root_id, 0, 1)
    assert [(item.channel, item.role) for item in items] == [
        ("knowledge", "user"),
        ("knowledge", "user"),
        ("transcript", "assistant"),
    ]
    assert [item.sequence for item in load_context(ended.root_id, 0, 10)] == [5, 6, 1, 3]
    assert b"first" in items[0].body
    assert [item.channel for item in load_context(ended.root_id, 1, 10)] == ["knowledge", "knowledge"]


def test_the_context_is_read_through_its_partial_index(writer: Answers, agent: Agent) -> None:
    note = agent.note()
    assert writer.commit(note) == [Committed()]
    content = note.contents[0].content_id
    JournalRecord.objects.bulk_create(
        JournalRecord(
            agent_id=agent.root_id,
            sequence=sequence,
            record_id=new_id(),
            kind="filler",
            channel="transcript" if sequence % 100 == 0 else "control",
            role="user",
            content_id=content,
            context_candidate=sequence % 100 == 0,
            created_at=NOW,
        )
        for sequence in range(2, 20_002)
    )
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE phronomy_journalrecord" if connection.vendor == "postgresql" else "ANALYZE")
    with CaptureQueriesContext(connection) as queries:
        items = load_context(agent.root_id, 0, 20)
    assert [item.sequence for item in items[1:]] == [sequence * 100 for sequence in range(181, 201)]
    assert len(queries) == 2
    for query in queries:
        with connection.cursor() as cursor:
            explain = "EXPLAIN " if connection.vendor == "postgresql" else "EXPLAIN QUERY PLAN "
            cursor.execute(explain + query["sql"])
            plan = "\n".join(str(row[-1]) for row in cursor.fetchall())
        assert "phronomy_journal_context" in plan, plan
        assert not re.search(r"(Seq Scan on|SCAN) phronomy_journalrecord", plan), plan


def test_a_read_in_a_pool_thread_leaves_a_usable_connection(ended: Agent) -> None:
    read: Callable[[], object] = lambda: load_root(ended.agent_id)  # noqa: E731
    assert with_connections(read) == load_root(ended.agent_id)
    with pytest.raises(NotFoundError):
        with_connections(lambda: load_root("nobody"))


def test_a_connection_that_broke_in_a_body_is_replaced_for_the_next(ended: Agent) -> None:
    def breaks() -> None:
        connection.ensure_connection()
        connection.errors_occurred = True
        connection.connection.close()

    with_connections(breaks)
    assert connection.connection is None
    assert with_connections(lambda: load_root(ended.agent_id)).agent_id == ended.agent_id


def test_a_body_in_a_callers_transaction_keeps_its_connection(agent: Agent) -> None:
    with transaction.atomic():
        AgentRoot.objects.update(definition_version=9)
        assert with_connections(lambda: load_root(agent.agent_id)).definition_version == 9
    assert load_root(agent.agent_id).definition_version == 9


def test_a_purged_history_leaves_no_context(writer: Answers, ended: Agent) -> None:
    ended.execution_id = ""
    purge = replace(ended.note(), barrier="purge", delete_agent_records=True, root=ended.root(1, "purged"))
    purge = replace(purge, journal=(purge.journal[0]._replace(context_candidate=False),))
    assert writer.commit(purge) == [Committed()]
    assert load_context(ended.root_id, 0, 10) == ()
