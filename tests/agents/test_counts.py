"""What one run costs, counted on the wire of every connection of the process (DESIGN §12): commits and statements."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connection
from django.test import override_settings

from phronomy_django.agents import Agent, ExecutionInfo, ExecutionResult, Preparation, tool
from phronomy_django.domain.ids import new_id
from phronomy_django.domain.messages import LLMRequest, ToolMessage, UserMessage
from phronomy_django.llm import call
from phronomy_django.models import AgentRoot, JournalRecord
from phronomy_django.runtime import reset_runtime, start_hosting
from tests.agents.conftest import Define
from tests.agents.wire import Wire, traced


@pytest.fixture
def wire(define: Define) -> Iterator[Wire]:
    """A lease so long that no beat comes in between."""
    with override_settings(PHRONOMY={"LEASE_SECONDS": 3600}), traced() as wire:
        yield wire
        reset_runtime()


class Prepared(Agent):
    def filter_input(self, message: UserMessage, facts: Preparation) -> UserMessage:
        return message


class Hooked(Agent):
    def on_admission(self, execution: ExecutionInfo) -> None: ...

    def on_terminal(self, execution: ExecutionInfo, result: ExecutionResult) -> None: ...


@tool
def look(number: int) -> int:
    """Look."""
    return number


def batches(count: int) -> Any:
    """A script that asks ``count`` times for three tools, then answers."""

    def script(request: LLMRequest) -> Any:
        last = max(index for index, item in enumerate(request.messages) if isinstance(item, UserMessage))
        done = sum(isinstance(item, ToolMessage) for item in request.messages[last:])
        return "done" if done == 3 * count else [call("look", number=number) for number in range(3)]

    return script


def cost(agent: Agent, wire: Wire) -> tuple[int, int]:
    """Commits and other statements of a run of an agent that is live already."""
    agent.invoke("first", timeout=30)
    wire.take()
    assert agent.invoke("second", timeout=30).status == "completed"
    said = Counter(statement.split()[0].upper() if statement else "" for statement in wire.take())
    opened, committed = said.pop("BEGIN", 0), said.pop("COMMIT", 0)
    assert opened == committed, said
    others = sum(said.values())
    alone = others if connection.vendor == "postgresql" and not opened else 0
    return committed + alone, others


#: Commits of DESIGN §12, and the statements of each database. PostgreSQL: one statement that commits by itself; SQLite:
#: one for each kind of row, since it has no data-modifying CTE.
COSTS = {
    "without tools": (Agent, 0, 2, 2, 18),
    "with application code in the preparation": (Prepared, 0, 3, 3, 25),
    "with one batch of three tools": (Agent, 1, 4, 4, 42),
    "with two batches": (Agent, 2, 6, 6, 66),
}


@pytest.mark.parametrize("kind", COSTS)
def test_a_run_costs_these_commits_and_statements(define: Define, wire: Wire, kind: str) -> None:
    base, count, commits, on_postgresql, on_sqlite = COSTS[kind]
    agent = define(batches(count), base=base, tools=[look]).create("a")
    statements = on_postgresql if connection.vendor == "postgresql" else on_sqlite
    assert cost(agent, wire) == (commits, statements)


def test_hooks_add_no_commit_but_the_one_that_parts_the_end(define: Define, wire: Wire) -> None:
    agent = define(batches(0), base=Hooked).create("a")
    agent.invoke("first", timeout=30)
    agent.invoke("second", timeout=30)
    assert start_hosting().writer.metrics.commits == 2 * 3


def test_a_runtime_with_nothing_to_do_says_nothing(define: Define, wire: Wire) -> None:
    define().create("a").invoke("x", timeout=30)
    wire.take()
    hosting = start_hosting()
    assert hosting.services.loop.metrics().queue_depth == 0
    assert wire.take() == []


def with_journal(agent_id: str, length: int) -> None:
    """Give an idle agent a journal of ``length`` records, most of which no run is shown."""
    root = AgentRoot.objects.get(agent_id=agent_id)
    last = JournalRecord.objects.filter(agent=root).order_by("sequence").last()
    assert last is not None
    JournalRecord.objects.bulk_create(
        JournalRecord(
            agent=root,
            sequence=sequence,
            record_id=new_id(),
            kind="filler",
            channel="transcript",
            role="user",
            content_id=JournalRecord.objects.get(agent=root, sequence=1).content_id,
            context_candidate=True,
            created_at=last.created_at,
        )
        for sequence in range(last.sequence + 1, length + 1)
    )
    AgentRoot.objects.filter(pk=root.pk).update(journal_position=length)


def test_the_length_of_the_journal_changes_no_statement(define: Define, wire: Wire) -> None:
    """Neither of a live agent nor of one that is loaded anew, and no more is shown to the model."""
    shown: list[int] = []

    def script(request: LLMRequest) -> str:
        shown.append(len(request.messages))
        return "ok"

    cls = define(script, context_window=6)
    said: dict[int, list[list[str]]] = {}
    for length in (10, 5000):
        agent = cls.create(f"with-{length}")
        agent.invoke("x", timeout=30)
        reset_runtime()
        with_journal(agent.agent_id, length)
        cls.create(f"warm-{length}").invoke("the runtime and its connections", timeout=30)
        del shown[:]
        said[length] = []
        for _ in ("loaded anew", "live"):
            wire.take()
            agent.invoke("y", timeout=30)
            said[length].append([statement.split(" ")[0] for statement in wire.take()])
        assert shown == [7, 7]
    assert said[10] == said[5000]
    assert len(said[10][0]) > len(said[10][1])
