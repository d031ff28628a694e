"""Every field of every row comes back through the ORM as it was given, on both databases and through each form."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.db import models, transaction

from phronomy_django.domain.errors import ConfigurationError, ConflictError
from phronomy_django.domain.records import Transition
from phronomy_django.models import (
    AgentExecution,
    AgentRoot,
    Content,
    ExecutionEvent,
    JournalRecord,
    LLMCall,
    OffloadOperation,
    ToolInvocation,
)
from phronomy_django.store import Committed, apply_in_current_transaction
from phronomy_django.store.tables import INSERTS, UPDATES
from tests.store.conftest import Answers
from tests.store.transitions import NOW, Agent

AWKWARD = 'a "quoted" {brace}, back\\slash, \' NULL , ü 漢 \U0001f600 \n\t end'
Commit = Callable[[Transition], None]
KEYS: dict[type[models.Model], str] = {
    AgentExecution: "execution_id",
    Content: "content_id",
    ExecutionEvent: "sequence",
    JournalRecord: "record_id",
    LLMCall: "llm_call_id",
    OffloadOperation: "operation_id",
    ToolInvocation: "tool_invocation_id",
}


@pytest.fixture(params=["plain", "batch", "caller's transaction"])
def commit(request: pytest.FixtureRequest, make_writer: Callable[..., Answers], runtime_id: str) -> Commit:
    """Each way in which a transition becomes rows."""

    def in_batch(work: Transition) -> None:
        writer = make_writer(start=False)
        answers = writer.submit(work, Agent.create(runtime_id).note(), Agent.create(runtime_id).note())
        writer.writer.start()
        assert writer.wait(answers) == [Committed()] * 3
        assert writer.writer.metrics.largest_batch == 3

    def in_transaction(work: Transition) -> None:
        with transaction.atomic():
            apply_in_current_transaction(work, "default")

    def plain(work: Transition) -> None:
        assert make_writer().commit(work) == [Committed()]

    return {"plain": plain, "batch": in_batch, "caller's transaction": in_transaction}[request.param]


def stored(model: type[models.Model], key: str, value: Any) -> Any:
    return model._default_manager.get(**{key: value})


def assert_row(model: type[models.Model], row: Any, names: Sequence[str]) -> None:
    key = KEYS[model]
    found = stored(model, key, getattr(row, key))
    for name in names:
        expected = getattr(row, name)
        field = next(field for field in model._meta.concrete_fields if field.column == name)
        if isinstance(field, models.JSONField):
            expected = json.loads(expected)
        actual = getattr(found, field.attname)
        actual = bytes(actual) if isinstance(actual, memoryview) else actual
        assert actual == expected, f"{model.__name__}.{name}"


def assert_stored(work: Transition) -> None:
    for group in INSERTS:
        rows = getattr(work, group.name)
        rows = rows if isinstance(rows, tuple) and not hasattr(rows, "_fields") else (rows,) if rows else ()
        for row in rows:
            assert_row(group.model, row, group.columns)
    for group in UPDATES:
        changes = getattr(work, group.name)
        changes = changes if not hasattr(changes, "_fields") else (changes,)
        for change in changes or ():
            assert_row(group.model, change, group.assigned)


def test_the_rows_of_a_run_with_tools_come_back_as_they_were_given(commit: Commit, agent: Agent) -> None:
    user = get_user_model().objects.create_user("somebody")
    deadline = datetime(2031, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)
    first = agent.admission(
        created_by_id=user.pk,
        deadline=deadline,
        idempotency_key=AWKWARD,
        durable_context=json.dumps({"text": AWKWARD, "n": 1.5, "none": None}),
    )
    event = first.events[0]._replace(payload=json.dumps({"text": AWKWARD}, ensure_ascii=False))
    record = first.journal[1]._replace(kind="", role="", data=json.dumps({AWKWARD: [AWKWARD]}))
    first = replace_rows(first, events=(event,), journal=(first.journal[0], record))
    commit(first)
    assert_stored(first)
    agent.advance(first)
    second = agent.tool_dispatch(("lookup_order", AWKWARD))
    commit(second)
    assert_stored(second)
    agent.advance(second)
    change = agent.execution_change(
        second.transition_id,
        expected_revision=2,
        execution_revision=3,
        stop_kind="cancel",
        stop_reason=AWKWARD,
        stop_requested_by_id=user.pk,
        stop_requested_at=NOW,
        cost=Decimal("12345.0123456789"),
        terminal_reason=AWKWARD,
        recovery_disposition="resolution_required",
        event_sequence=1,
    )
    changes = [agent.tool_changes(0), agent.tool_changes(1)]
    third = replace_rows(
        agent.note(),
        barrier="b6",
        execution_change=change,
        operation_changes=tuple(
            item[0]._replace(expected_state="queued", expected_claim=None, abandoned=True) for item in changes
        ),
        tool_invocation_changes=tuple(item[1] for item in changes),
        contents=(*agent.note().contents, *(item[2] for item in changes)),
    )
    third = replace_rows(third, journal=(third.journal[0]._replace(content_id=third.contents[0].content_id),))
    commit(third)
    assert_stored(third)
    root = AgentRoot.objects.get(pk=agent.root_id)
    assert (root.agent_revision, root.context_revision, root.journal_position) == third.root[5:8]
    assert (root.transcript_generation, root.lifecycle_status) == third.root[8:]


def replace_rows(work: Transition, **rows: Any) -> Transition:
    from dataclasses import replace

    return replace(work, **rows)


def test_content_of_every_byte_and_of_megabytes_is_stored_exactly(commit: Commit, agent: Agent) -> None:
    from phronomy_django.domain.records import ContentRow

    contents = (ContentRow.of(bytes(range(256))), ContentRow.of(b""), ContentRow.of(b"\\x00" * 500_000))
    note = agent.note()
    commit(replace_rows(note, contents=(*note.contents, *contents)))
    for row in contents:
        assert_row(Content, row, row._fields)


def test_a_stale_transition_in_a_callers_transaction_undoes_what_the_caller_did(agent: Agent) -> None:
    other = get_user_model()
    agent.position = 9
    with pytest.raises(ConflictError, match="position 9; found"), transaction.atomic():
        other.objects.create_user("undone")
        apply_in_current_transaction(agent.note(), "default")
    assert not other.objects.filter(username="undone").exists()
    assert not JournalRecord.objects.exists()


def test_outside_a_transaction_nothing_is_applied(agent: Agent) -> None:
    with pytest.raises(ConfigurationError, match=r"transaction\.atomic"):
        apply_in_current_transaction(agent.note(), "default")
    assert not JournalRecord.objects.exists()


def test_the_rows_carry_the_columns_that_the_models_have() -> None:
    for group in (*INSERTS, *UPDATES):
        for name in group.columns:
            assert group.field(name) is not None
