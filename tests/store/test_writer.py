"""The writer's promises on one agent and on many: what is committed, what is refused, and in which words."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from phronomy_django.domain.errors import AgentBusyError, ConflictError, RuntimeShutdownError, StorageError
from phronomy_django.domain.ids import new_id
from phronomy_django.domain.records import ContentRow
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
from phronomy_django.store import Beat, Committed, IdempotencyConflictError, Refused
from tests.store.conftest import Answers
from tests.store.transitions import Agent, new_runtime

TABLES = (AgentExecution, Content, ExecutionEvent, JournalRecord, LLMCall, OffloadOperation, ToolInvocation)


def row_counts() -> dict[str, int]:
    return {model.__name__: model.objects.count() for model in TABLES}


def test_a_run_is_committed_in_two_transactions(writer: Answers, agent: Agent) -> None:
    first = agent.admission()
    assert writer.commit(first) == [Committed()]
    agent.advance(first)
    assert writer.commit(agent.ending()) == [Committed()]
    assert writer.writer.metrics.commits == 2
    root = AgentRoot.objects.get(pk=agent.root_id)
    assert (root.agent_revision, root.journal_position, root.lifecycle_status) == (2, 4, "idle")


@pytest.mark.parametrize("others", [0, 1, 7], ids=["alone", "in a pair", "in a batch"])
def test_a_stale_transition_leaves_no_row(
    make_writer: Callable[..., Answers], runtime_id: str, others: int
) -> None:
    writer = make_writer(start=False)
    stale = Agent.create(runtime_id)
    fresh = [Agent.create(runtime_id) for _ in range(others)]
    stale.revision = 7
    works = [stale.admission(), *(one.admission() for one in fresh)]
    answers = writer.submit(*works)
    writer.writer.start()
    first, *rest = writer.wait(answers)
    assert isinstance(first, Refused) and isinstance(first.error, ConflictError)
    assert stale.agent_id in str(first.error)
    assert "expects revision 7" in str(first.error) and "found revision 0" in str(first.error)
    assert rest == [Committed()] * others
    assert AgentExecution.objects.count() == others
    assert not JournalRecord.objects.filter(agent_id=stale.root_id).exists()
    assert not Content.objects.filter(pk__in=[row.content_id for row in works[0].contents]).exists()
    assert AgentRoot.objects.get(pk=stale.root_id).agent_revision == 0


@pytest.mark.parametrize("beside", [0, 3], ids=["alone", "in a batch"])
@pytest.mark.parametrize("what", ["operation", "execution", "stop", "call", "invocation"])
def test_each_comparison_refuses_alone_and_says_what_it_found(
    make_writer: Callable[..., Answers],
    writer: Answers,
    agent: Agent,
    runtime_id: str,
    what: str,
    beside: int,
) -> None:
    first = agent.admission()
    writer.commit(first)
    agent.advance(first)
    ending = agent.ending()
    match what:
        case "operation":
            ending = replace(ending, operation_changes=(agent.operation_change(expected_claim=new_id()),))
        case "execution":
            ending = agent.ending(expected_revision=4)
        case "stop":
            AgentExecution.objects.update(stop_kind="cancel")
            ending = replace(ending, requires_no_stop=True)
        case "call":
            missing = ending.llm_call_changes[0]._replace(llm_call_id=new_id())
            ending = replace(ending, llm_call_changes=(missing,))
        case "invocation":
            agent.tools = [(new_id(), new_id(), new_id())]
            ending = replace(ending, tool_invocation_changes=(agent.tool_changes(0)[1],))
    before = row_counts()
    others = [Agent.create(runtime_id) for _ in range(beside)]
    together = make_writer(start=False)
    answers = together.submit(ending, *(other.note("") for other in others))
    together.writer.start()
    answer, *rest = together.wait(answers)
    assert rest == [Committed()] * beside
    assert isinstance(answer, Refused) and isinstance(answer.error, ConflictError)
    words = {
        "operation": "started, 1, " + agent.claim,
        "execution": "at revision 4; found revision 1",
        "stop": "found 'cancel'",
        "call": "LLMCall",
        "invocation": "ToolInvocation",
    }
    assert words[what] in str(answer.error)
    after = row_counts()
    assert after.pop("JournalRecord") == before.pop("JournalRecord") + beside
    assert after.pop("Content") == before.pop("Content") + beside
    assert after == before
    assert writer.commit(agent.ending()) == [Committed()]


def test_two_runtimes_with_swapped_tokens_commit_nothing(writer: Answers, runtime_id: str) -> None:
    other = new_runtime()
    mine, theirs = Agent.create(runtime_id), Agent.create(other)
    mine.owner_id, theirs.owner_id = theirs.owner_id, mine.owner_id
    before = row_counts()
    for answer in writer.commit(mine.admission(), theirs.admission()):
        assert isinstance(answer, Refused) and isinstance(answer.error, ConflictError)
        assert "Another runtime has taken the agent" in str(answer.error)
    assert row_counts() == before


def test_a_raised_token_refuses_the_former_owner(writer: Answers, agent: Agent) -> None:
    AgentRoot.objects.filter(pk=agent.root_id).update(fencing_token=agent.token + 1)
    (answer,) = writer.commit(agent.note())
    assert isinstance(answer, Refused) and f"token {agent.token + 1}" in str(answer.error)


def test_a_poisoned_row_in_a_batch_of_fifty_fails_alone(
    make_writer: Callable[..., Answers], runtime_id: str
) -> None:
    writer = make_writer(start=False)
    agents = [Agent.create(runtime_id) for _ in range(50)]
    works = [one.admission() for one in agents]
    works[23] = replace(works[23], events=(works[23].events[0]._replace(payload="{not json"),))
    works[37] = replace(
        works[37], journal=(works[37].journal[0]._replace(sequence=None), works[37].journal[1])
    )  # type: ignore[arg-type]
    answers = writer.submit(*works)
    writer.writer.start()
    done = writer.wait(answers)
    bad = [place for place, answer in enumerate(done) if answer != Committed()]
    assert bad == [23, 37]
    for place in bad:
        assert isinstance(done[place], Refused) and isinstance(done[place].error, StorageError)
        assert works[place].transition_id in str(done[place].error)
    assert AgentExecution.objects.count() == 48
    assert writer.writer.metrics.bisections >= 2


def test_a_text_that_the_database_cannot_hold_fails_alone(
    make_writer: Callable[..., Answers], runtime_id: str
) -> None:
    writer = make_writer(start=False)
    agents = [Agent.create(runtime_id) for _ in range(3)]
    works = [one.note() for one in agents]
    works[1] = replace(works[1], journal=(works[1].journal[0]._replace(kind="surrogate \ud800"),))
    answers = writer.submit(*works)
    writer.writer.start()
    first, second, third = writer.wait(answers)
    assert (first, third) == (Committed(), Committed())
    assert isinstance(second, Refused) and isinstance(second.error, StorageError)


def test_transitions_of_one_root_are_committed_one_after_the_other(
    make_writer: Callable[..., Answers], agent: Agent
) -> None:
    writer = make_writer(start=False)
    works = []
    for place in range(5):
        works.append(agent.note(f"note {place}"))
        agent.advance(works[-1])
    answers = writer.submit(*works)
    writer.writer.start()
    assert writer.wait(answers) == [Committed()] * 5
    assert writer.writer.metrics.commits == 5
    assert list(JournalRecord.objects.values_list("sequence", flat=True)) == [1, 2, 3, 4, 5]


def test_what_waits_is_committed_together_up_to_the_limit(
    make_writer: Callable[..., Answers], runtime_id: str
) -> None:
    writer = make_writer(start=False, batch_limit=8)
    works = [Agent.create(runtime_id).note() for _ in range(20)]
    answers = writer.submit(*works)
    writer.writer.start()
    assert writer.wait(answers) == [Committed()] * 20
    metrics = writer.writer.metrics
    assert (metrics.commits, metrics.largest_batch, metrics.queue_depth) == (3, 8, 0)


def test_a_second_execution_beside_a_running_one_is_busy(writer: Answers, agent: Agent) -> None:
    first = agent.admission()
    writer.commit(first)
    agent.advance(first)
    (answer,) = writer.commit(agent.admission())
    assert isinstance(answer, Refused) and isinstance(answer.error, AgentBusyError)


def test_a_used_idempotency_key_is_a_conflict_that_says_so(writer: Answers, agent: Agent) -> None:
    first = agent.admission(idempotency_key="order-7")
    writer.commit(first)
    agent.advance(first)
    ending = agent.ending()
    writer.commit(ending)
    agent.advance(ending)
    agent.events = 0
    (answer,) = writer.commit(agent.admission(idempotency_key="order-7"))
    assert isinstance(answer, Refused) and isinstance(answer.error, IdempotencyConflictError)
    assert answer.error.idempotency_key == "order-7"


def test_the_same_content_twice_is_one_row(writer: Answers, runtime_id: str) -> None:
    shared = ContentRow.of(b'"shared"')
    agents = [Agent.create(runtime_id) for _ in range(4)]
    works = [replace(one.note(), contents=(shared, *one.note().contents)) for one in agents]
    works = [
        replace(work, journal=(work.journal[0]._replace(content_id=shared.content_id),)) for work in works
    ]
    assert writer.commit(*works) == [Committed()] * 4
    assert Content.objects.filter(pk=shared.content_id).count() == 1


def test_an_operation_step_is_compared_by_state_attempt_and_claim(writer: Answers, agent: Agent) -> None:
    for work in (agent.admission, agent.tool_dispatch):
        transition = work()
        assert writer.commit(transition) == [Committed()]
        agent.advance(transition)
    assert writer.commit(agent.claim_step(0), agent.claim_step(1)) == [Committed(), Committed()]
    (answer,) = writer.commit(agent.claim_step(0))
    assert isinstance(answer, Refused) and "queued, 1, None; found started" in str(answer.error)
    agent.token += 1
    (answer,) = writer.commit(agent.claim_step(1, expected_state="started", expected_claim=agent.tools[1][2]))
    assert isinstance(answer, Refused) and "fencing token" in str(answer.error)


def test_a_purge_empties_the_history_and_keeps_the_root(
    writer: Answers, agent: Agent, runtime_id: str
) -> None:
    other = Agent.create(runtime_id)
    writer.commit(other.admission())
    for make in (agent.admission, agent.ending):
        transition = make()
        assert writer.commit(transition) == [Committed()]
        agent.advance(transition)
    agent.execution_id = ""
    purge = replace(agent.note(), barrier="purge", delete_agent_records=True, root=agent.root(1, "purged"))
    assert writer.commit(purge) == [Committed()]
    assert list(JournalRecord.objects.filter(agent_id=agent.root_id).values_list("sequence", flat=True)) == [
        5
    ]
    assert not AgentExecution.objects.filter(agent_id=agent.root_id).exists()
    assert AgentExecution.objects.filter(agent_id=other.root_id).count() == 1
    assert LLMCall.objects.count() == 1


def test_a_beat_goes_first_and_says_when_the_runtime_is_lost(
    make_writer: Callable[..., Answers], runtime_id: str
) -> None:
    writer = make_writer(start=False)
    order: list[str] = []
    agents = [Agent.create(runtime_id) for _ in range(3)]
    for one in agents:
        writer.writer.submit(one.note(), lambda answer: order.append("work"))
    writer.writer.submit(Beat(runtime_id), lambda answer: order.append("beat"))
    writer.writer.start()
    (answer,) = writer.commit(Beat(new_id()))
    assert order[0] == "beat" and order.count("work") == 3
    assert isinstance(answer, Refused) and isinstance(answer.error, ConflictError)


def test_after_close_everything_is_refused_and_what_waited_is_answered(
    make_writer: Callable[..., Answers], runtime_id: str
) -> None:
    writer = make_writer(start=False)
    waiting = writer.submit(Agent.create(runtime_id).note())
    writer.writer.close()
    (late,) = writer.commit(Agent.create(runtime_id).note())
    assert isinstance(late, Refused) and isinstance(late.error, RuntimeShutdownError)
    writer.writer.start()
    assert writer.wait(waiting) == [Committed()]
    assert writer.writer.join(10.0)


def test_a_receiver_that_raises_harms_no_other(
    writer: Answers, runtime_id: str, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(answer: object) -> None:
        raise ValueError("receiver")

    writer.writer.submit(Agent.create(runtime_id).note(), fails)
    assert writer.commit(Agent.create(runtime_id).note()) == [Committed()]
    assert "receiver" in caplog.text
