"""Application code inside a barrier: it happened exactly if the barrier is committed (HARD_POINTS 12)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace

import pytest
from django.db import IntegrityError, connection, connections, transaction

from phronomy_django.domain.errors import ConfigurationError, ConflictError
from phronomy_django.engine import DeterministicScheduler, ThreadScheduler
from phronomy_django.engine.failpoints import FailpointError, armed
from phronomy_django.models import JournalRecord
from phronomy_django.store import Committed, DurableWriter, HookError, Refused
from tests.store.conftest import Answers
from tests.store.transitions import Agent
from tests.testapp.models import LedgerEntry


def effect(reference: str = "effect") -> Callable[[], None]:
    return lambda: LedgerEntry.objects.create(reference=reference) and None


def state() -> tuple[int, int]:
    """Effects of application code, and records of ours."""
    return LedgerEntry.objects.count(), JournalRecord.objects.count()


def test_a_hook_and_its_barrier_are_committed_together(writer: Answers, agent: Agent) -> None:
    assert writer.commit(replace(agent.note(), hook=effect())) == [Committed()]
    assert state() == (1, 1)


def test_a_hook_that_raises_rolls_the_barrier_back(writer: Answers, agent: Agent) -> None:
    def hook() -> None:
        effect()()
        raise ValueError("no such ticket")

    (answer,) = writer.commit(replace(agent.note(), hook=hook))
    assert isinstance(answer, Refused) and isinstance(answer.error, HookError)
    assert isinstance(answer.error.cause, ValueError) and "no such ticket" in str(answer.error)
    assert state() == (0, 0)
    assert writer.commit(agent.note()) == [Committed()]


def test_a_stale_barrier_rolls_its_hook_back(writer: Answers, agent: Agent) -> None:
    agent.token += 1
    (answer,) = writer.commit(replace(agent.note(), hook=effect()))
    assert isinstance(answer, Refused) and isinstance(answer.error, ConflictError)
    assert state() == (0, 0)


@pytest.mark.parametrize(
    "place", ["store.hook.before_body", "store.hook.before_rows", "store.hook.before_commit"]
)
def test_before_the_commit_a_failure_leaves_neither_effect_nor_record(
    writer: Answers, agent: Agent, place: str
) -> None:
    with armed(place, "raise"):
        (answer,) = writer.commit(replace(agent.note(), hook=effect()))
    assert isinstance(answer, Refused) and isinstance(answer.error, FailpointError)
    assert state() == (0, 0)


def test_after_the_commit_a_lost_answer_is_found_and_the_effect_stays_one(
    writer: Answers, agent: Agent
) -> None:
    with armed("store.hook.after_commit", "raise"):
        assert writer.commit(replace(agent.note(), hook=effect())) == [Committed()]
    assert state() == (1, 1)
    assert writer.writer.metrics.read_backs == 1


def test_the_root_waits_for_its_hook_and_other_agents_do_not(
    make_writer: Callable[..., Answers], runtime_id: str
) -> None:
    if connection.vendor != "postgresql":
        pytest.skip("SQLite has one write lock: a hook there holds up every commit")
    entered, leave = threading.Event(), threading.Event()

    def hook() -> None:
        entered.set()
        assert leave.wait(20)

    agent, other = Agent.create(runtime_id), Agent.create(runtime_id)
    writer = make_writer()
    first = replace(agent.note("first"), hook=hook)
    agent.advance(first)
    answers = writer.submit(first, agent.note("second"))
    assert entered.wait(20)
    assert writer.commit(other.note()) == [Committed()]
    assert answers == [None, None]
    leave.set()
    assert writer.wait(answers) == [Committed(), Committed()]


def test_hooks_run_side_by_side_on_more_than_one_thread(
    make_writer: Callable[..., Answers], runtime_id: str
) -> None:
    if connection.vendor != "postgresql":
        pytest.skip("SQLite has one write lock: hooks there run one after the other")
    together = threading.Barrier(2, timeout=20)
    writer = make_writer()
    works = [
        replace(Agent.create(runtime_id).note(), hook=lambda: together.wait() and None) for _ in range(2)
    ]
    assert writer.commit(*works) == [Committed()] * 2


def test_a_hook_that_met_a_deadlock_runs_again(writer: Answers, agent: Agent) -> None:
    if connection.vendor != "postgresql":
        pytest.skip("SQLite has no deadlocks: one writer at a time")
    calls: list[int] = []

    def hook() -> None:
        calls.append(1)
        if len(calls) == 1:
            with connection.cursor() as cursor:
                cursor.execute("DO $$ BEGIN RAISE EXCEPTION 'x' USING ERRCODE = '40P01'; END $$")
        effect()()

    assert writer.commit(replace(agent.note(), hook=hook)) == [Committed()]
    assert (len(calls), state()) == (2, (1, 1))


def test_a_hook_that_closes_the_connection_is_refused(writer: Answers, agent: Agent) -> None:
    def hook() -> None:
        effect()()
        connection.close()

    (answer,) = writer.commit(replace(agent.note(), hook=hook))
    assert isinstance(answer, Refused) and isinstance(answer.error, HookError)
    assert isinstance(answer.error.cause, ConfigurationError)
    assert state() == (0, 0)


def test_a_hook_that_commits_by_itself_is_refused(writer: Answers, agent: Agent) -> None:
    def hook() -> None:
        with connection.cursor() as cursor:
            cursor.execute("COMMIT")

    (answer,) = writer.commit(replace(agent.note(), hook=hook))
    assert isinstance(answer, Refused) and "ended the transaction" in str(answer.error)
    assert JournalRecord.objects.count() == 0


def test_a_hook_that_goes_on_after_an_error_is_refused_with_what_it_did(
    writer: Answers, agent: Agent
) -> None:
    if connection.vendor != "postgresql":
        pytest.skip("SQLite goes on after an error in a transaction")

    def hook() -> None:
        try:
            with connection.cursor() as cursor:
                cursor.execute("INSERT INTO phronomy_content (content_id) VALUES ('x')")
        except IntegrityError:
            pass

    (answer,) = writer.commit(replace(agent.note(), hook=hook))
    assert isinstance(answer, Refused) and "went on after an error" in str(answer.error)
    assert JournalRecord.objects.count() == 0


def test_an_inline_writer_works_inside_a_callers_transaction(agent: Agent) -> None:
    scheduler = DeterministicScheduler()
    writer = DurableWriter(scheduler=scheduler, inline=True)
    writer.start()
    answers: list[object] = []
    stale = replace(agent.note(), root=agent.root(1, "idle")._replace(fencing_token=99))
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        writer.submit(replace(agent.note(), hook=effect()), answers.append)
        assert scheduler.wait(lambda: len(answers) == 1, 5)
        writer.submit(stale, answers.append)
        assert scheduler.wait(writer.idle, 5)
        assert answers[0] == Committed() and isinstance(answers[1], Refused)
        assert state() == (1, 1)
        raise ZeroDivisionError
    assert state() == (0, 0)
    writer.close()


def test_an_inline_writer_leaves_the_callers_session_alone(agent: Agent) -> None:
    if connection.vendor != "postgresql":
        pytest.skip("SQLite has no session settings of ours")
    scheduler = DeterministicScheduler()
    writer = DurableWriter(scheduler=scheduler, inline=True)
    writer.start()
    writer.submit(agent.note(), lambda answer: None)
    assert scheduler.wait(writer.idle, 5)
    with connection.cursor() as cursor:
        cursor.execute("SHOW enable_seqscan")
        assert cursor.fetchone() == ("on",)
        cursor.execute("SHOW lock_timeout")
        assert cursor.fetchone() == ("0",)
    writer.close()


def test_a_writer_that_is_closed_ends_its_hook_threads(
    make_writer: Callable[..., Answers], agent: Agent
) -> None:
    writer = make_writer()
    assert writer.commit(replace(agent.note(), hook=effect())) == [Committed()]
    writer.writer.close()
    assert writer.writer.join(20)
    ended = ThreadScheduler().wait(
        lambda: not any(thread.name.startswith("phronomy-hooks") for thread in threading.enumerate()), 20
    )
    assert ended
    assert connections["default"].vendor
