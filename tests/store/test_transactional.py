"""A body in the transaction that records its outcome: it happened exactly if it is recorded (HARD_POINTS 17)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from django.db import connection, connections, transaction
from django.db.backends.utils import CursorWrapper

from phronomy_django.domain.errors import ConfigurationError, ConflictError, OutcomeUnknownError, StorageError
from phronomy_django.engine.failpoints import FailpointError, armed
from phronomy_django.models import Content, OffloadOperation, ToolInvocation
from phronomy_django.store import (
    BodyFailed,
    Committed,
    OutcomeRows,
    Recorded,
    record_operation_outcome,
    run_transactional,
)
from tests.store.conftest import Answers
from tests.store.transitions import Agent
from tests.testapp.models import LedgerEntry


@pytest.fixture
def started(writer: Answers, agent: Agent) -> Agent:
    """An agent whose first tool operation is started."""
    for make in (agent.admission, agent.tool_dispatch):
        transition = make()
        assert writer.commit(transition) == [Committed()]
        agent.advance(transition)
    assert writer.commit(agent.claim_step(0)) == [Committed()]
    return agent


def outcome_of(agent: Agent, place: int = 0) -> Callable[[object], OutcomeRows]:
    change, invocation, content = agent.tool_changes(place)
    return lambda _: OutcomeRows(change=change, contents=(content,), tool_invocation_change=invocation)


def body() -> str:
    LedgerEntry.objects.create(reference="effect")
    return "done"


def run(agent: Agent, do: Callable[[], object] = body, timeout: float = 20.0) -> object:
    return run_transactional(using="default", body=do, outcome_of=outcome_of(agent), timeout=timeout)


def state(agent: Agent) -> tuple[int, str, str]:
    """Effects, the operation's state, the invocation's status."""
    invocation_id, operation_id, _ = agent.tools[0]
    return (
        LedgerEntry.objects.count(),
        OffloadOperation.objects.get(pk=operation_id).state,
        ToolInvocation.objects.get(pk=invocation_id).status,
    )


BEFORE, AFTER = (0, "started", "dispatched"), (1, "succeeded", "succeeded")


def test_effect_and_outcome_are_committed_together(started: Agent) -> None:
    result = run(started)
    assert isinstance(result, Recorded) and result.value == "done"
    assert state(started) == AFTER
    content = OffloadOperation.objects.get(pk=started.tools[0][1]).outcome_content
    assert content is not None and b"result" in bytes(content.body)


def test_what_the_body_raises_undoes_its_writes_and_comes_back(started: Agent) -> None:
    def fails() -> None:
        body()
        raise ValueError("no stock")

    result = run(started, fails)
    assert isinstance(result, BodyFailed) and str(result.error) == "no stock"
    assert state(started) == BEFORE


@pytest.mark.parametrize("field", ["state", "attempt", "claim"])
def test_an_attempt_that_was_given_up_changes_nothing(started: Agent, field: str) -> None:
    values = {"state": "queued", "attempt": 2, "claim": "0" * 32}
    OffloadOperation.objects.filter(pk=started.tools[0][1]).update(**{field: values[field]})
    with pytest.raises(ConflictError, match="given up"):
        run(started)
    assert LedgerEntry.objects.count() == 0
    assert not Content.objects.filter(pk=started.tool_changes(0)[2].content_id).exists()
    assert ToolInvocation.objects.get(pk=started.tools[0][0]).status == "dispatched"


@pytest.mark.parametrize("place", ["before_outcome", "before_commit"])
def test_a_failure_before_the_commit_leaves_neither(started: Agent, place: str) -> None:
    with armed(f"store.transactional.{place}", "raise"), pytest.raises(FailpointError):
        run(started)
    assert state(started) == BEFORE
    assert isinstance(run(started), Recorded)


def test_a_failure_before_the_body_is_the_bodys(started: Agent) -> None:
    with armed("store.transactional.before_body", "raise"):
        assert isinstance(run(started), BodyFailed)
    assert state(started) == BEFORE


def test_a_lost_answer_of_a_commit_that_was_made_is_read_back(started: Agent) -> None:
    with armed("store.transactional.after_commit", "raise"):
        assert isinstance(run(started), Recorded)
    assert state(started) == AFTER


@pytest.mark.postgres
def test_a_connection_that_died_before_the_commit_settles_as_not_committed(
    started: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrapper = connections["default"]
    commit = wrapper._commit

    def lost() -> None:
        monkeypatch.setattr(wrapper, "_commit", commit)
        wrapper.connection.close()
        commit()

    monkeypatch.setattr(wrapper, "_commit", lost)
    with pytest.raises(StorageError, match="not committed"):
        run(started)
    assert state(started) == BEFORE


@pytest.mark.postgres
def test_an_unreachable_database_after_the_commit_is_unknown(
    started: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("phronomy_django.store.transactional._SETTLE_TRIES", 2)

    def refuse(*_: object) -> None:
        raise ConnectionError("refused")

    with monkeypatch.context() as patch:

        def cut() -> None:
            patch.setattr(connections["default"], "connect", refuse)
            raise FailpointError("the line is cut")

        with (
            armed("store.transactional.after_commit", cut),
            pytest.raises(OutcomeUnknownError, match=started.tools[0][1]),
        ):
            run(started)
    assert state(started) == AFTER


def test_a_body_that_took_too_long_is_undone(started: Agent) -> None:
    result = run(started, timeout=0.0)
    assert isinstance(result, BodyFailed) and isinstance(result.error, TimeoutError)
    assert state(started) == BEFORE


def test_asynchronous_bodies_are_refused(started: Agent) -> None:
    async def asynchronous() -> None:
        body()

    with pytest.raises(ConfigurationError, match="async def"):
        run(started, asynchronous)
    with pytest.raises(ConfigurationError, match="awaitable"):
        run(started, lambda: asyncio.sleep(0))
    assert state(started) == BEFORE


def test_a_body_that_closes_the_connection_is_refused(started: Agent) -> None:
    def closes() -> None:
        body()
        connection.close()

    with pytest.raises(Exception, match=r"closed|replaced"):
        run(started, closes)
    connection.close()
    assert state(started) == BEFORE


def test_a_body_may_use_no_other_database(started: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    second = connection.copy("second")
    monkeypatch.setattr(type(connections), "__iter__", lambda self: iter(["default", "second"]))
    connections["second"] = second

    def elsewhere() -> None:
        body()
        CursorWrapper(None, connections["second"]).execute("SELECT 1")

    try:
        with pytest.raises(ConfigurationError, match="'second'; it may use only 'default'"):
            run(started, elsewhere)
    finally:
        second.close()
        del connections["second"]
    assert state(started) == BEFORE


def test_inside_a_callers_transaction_it_has_to_be_asked_for(started: Agent) -> None:
    with transaction.atomic():
        with pytest.raises(RuntimeError, match="durable"):
            run(started)
        result = run_transactional(
            using="default", body=body, outcome_of=outcome_of(started), timeout=20.0, durable=False
        )
        assert isinstance(result, Recorded)
    assert state(started) == AFTER


def test_an_outcome_can_be_recorded_without_a_tool_invocation(started: Agent) -> None:
    change, _, content = started.tool_changes(0)
    with transaction.atomic():
        record_operation_outcome("default", change=change, contents=(content,))
    assert state(started) == (0, "succeeded", "dispatched")
