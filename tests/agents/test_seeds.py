"""Whole runs under the deterministic scheduler: other orders, the same promises.

Each seed is one order in which loop, writer, pools and timers take their steps, with a cancel at a random moment.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from phronomy_django.agents import Agent, register, tool
from phronomy_django.agents.registry import unregister
from phronomy_django.conf import phronomy_settings
from phronomy_django.domain.messages import LLMRequest, ToolMessage
from phronomy_django.domain.statuses import TERMINAL
from phronomy_django.engine import DeterministicScheduler
from phronomy_django.llm import ScriptedLLM, call
from phronomy_django.models import (
    AgentExecution,
    AgentRoot,
    JournalRecord,
    LLMCall,
    OffloadOperation,
    ToolInvocation,
)
from phronomy_django.runtime import Hosting, hosting, reset_runtime

pytestmark = pytest.mark.django_db(transaction=True)


@tool
def double(number: int) -> int:
    """Twice the number."""
    return 2 * number


@tool
def fail(reason: str) -> str:
    """Always fails."""
    raise ValueError(reason)


def answer(request: LLMRequest) -> object:
    results = [message for message in request.messages if isinstance(message, ToolMessage)]
    rounds = len({message.tool_call_id for message in results}) // 3
    if rounds < 2:
        return [call("double", number=rounds), call("fail", reason="so it is"), call("missing")]
    return "done"


@pytest.fixture
def agent_class() -> Iterator[type[Agent]]:
    @register
    class Seeded(Agent):
        definition_id = "tests.seeded"
        model = ScriptedLLM(answer)
        tools = (double, fail)

    yield Seeded
    reset_runtime()
    unregister(Seeded)


def check_rows(execution_id: str) -> None:
    execution = AgentExecution.objects.get(pk=execution_id)
    assert execution.status in TERMINAL
    root = AgentRoot.objects.get(pk=execution.agent_id)
    assert root.lifecycle_status == "idle"
    sequences = list(JournalRecord.objects.filter(agent=root).values_list("sequence", flat=True))
    assert sequences == list(range(1, root.journal_position + 1))
    invocations = ToolInvocation.objects.filter(execution=execution)
    assert not invocations.filter(result_content=None).exists()
    results = JournalRecord.objects.filter(execution=execution, kind="tool_result")
    assert results.count() == invocations.count()
    asked = LLMCall.objects.filter(execution=execution, status="succeeded")
    assert not LLMCall.objects.filter(execution=execution, status="dispatched").exists()
    assert invocations.count() in (3 * asked.count(), 3 * (asked.count() - 1))
    assert not OffloadOperation.objects.filter(execution=execution, state__in=("queued", "started")).exists()


@pytest.mark.parametrize("block", range(8))
def test_a_cancel_at_any_moment_leaves_one_complete_history(
    agent_class: type[Agent], monkeypatch: pytest.MonkeyPatch, block: int
) -> None:
    statuses = set()
    for seed in range(block * 6, block * 6 + 6):
        scheduler = DeterministicScheduler(seed=seed)
        here = Hosting(phronomy_settings(), scheduler=scheduler)
        monkeypatch.setattr(hosting, "_hosting", here)
        chance = random.Random(seed)
        agent = agent_class.create(f"seed-{seed}")
        task = agent.invoke_async("go")
        for _ in range(chance.randrange(60)):
            scheduler.step()
        accepted = agent.cancel_async(task.execution_id, reason="by the test")
        result = task.wait_result(60)
        was_accepted = accepted.wait_result(60)
        statuses.add(str(result.status))
        assert was_accepted is (result.status == "cancelled")
        assert AgentExecution.objects.get(pk=task.execution_id).status == result.status
        check_rows(task.execution_id)
        assert agent.invoke("again", timeout=60).output == "done"
        assert here.shutdown().cleanup_complete
    assert statuses <= {"cancelled", "completed"}


def test_without_a_cancel_every_seed_gives_the_same_journal(
    agent_class: type[Agent], monkeypatch: pytest.MonkeyPatch
) -> None:
    kinds = set()
    for seed in range(100, 110):
        here = Hosting(phronomy_settings(), scheduler=DeterministicScheduler(seed=seed))
        monkeypatch.setattr(hosting, "_hosting", here)
        task = agent_class.create(f"seed-{seed}").invoke_async("go")
        assert task.wait_result(60).output == "done"
        check_rows(task.execution_id)
        records = JournalRecord.objects.filter(execution=task.execution_id).order_by("sequence")
        kinds.add(tuple(records.values_list("kind", "role")))
        here.shutdown()
    assert len(kinds) == 1
