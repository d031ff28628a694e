"""Whole runs under the deterministic scheduler: other orders, the same promises.

Each seed is one order in which loop, writer, pools and timers take their steps, with a cancel at a random moment.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator

import pytest

from phronomy_django.agents import Agent, register, tool
from phronomy_django.agents.registry import unregister
from phronomy_django.conf import phronomy_settings
from phronomy_django.domain.messages import LLMRequest, ToolMessage
from phronomy_django.domain.statuses import TERMINAL
from phronomy_django.engine import DeterministicScheduler
from phronomy_django.errors import ConflictError
from phronomy_django.llm import ScriptedLLM, call
from phronomy_django.models import (
    AgentExecution,
    AgentRoot,
    ApprovalRequest,
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


# --- people, in every order -----------------------------------------------------------------------------------


@pytest.mark.parametrize("block", range(4))
def test_decisions_and_cancels_in_any_order_leave_nothing_stuck(
    monkeypatch: pytest.MonkeyPatch, block: int
) -> None:
    """Two requests of one batch are decided, perhaps cancelled, while the loop is anywhere: also while it reads."""
    ran: list[int] = []

    @tool(requires_approval=True)
    def pay(number: int) -> int:
        """Pay."""
        ran.append(number)
        return number

    def script(request: LLMRequest) -> object:
        held = [call("pay", number=1), call("pay", number=2)]
        return "done" if isinstance(request.messages[-1], ToolMessage) else held

    cls = register(
        type("Held", (Agent,), {"definition_id": "tests.held", "model": ScriptedLLM(script), "tools": (pay,)})
    )
    try:
        for seed in range(block * 10, block * 10 + 10):
            scheduler, chance = DeterministicScheduler(seed=seed), random.Random(seed)
            here = Hosting(phronomy_settings(), scheduler=scheduler)
            monkeypatch.setattr(hosting, "_hosting", here)
            agent = cls.create(f"held-{seed}")
            execution_id = agent.invoke_async("go").wait_result(60).execution_id
            ran.clear()
            requests = list(ApprovalRequest.objects.filter(execution=execution_id).order_by("requested_at"))
            cancels = chance.random() < 0.4
            acts = [request.pk for request in requests] + ["cancel"] * cancels
            chance.shuffle(acts)
            tasks = []
            for act in acts:
                for _ in range(chance.randrange(25)):
                    scheduler.step()
                if act == "cancel":
                    tasks.append(agent.cancel_async(execution_id))
                    continue
                with contextlib.suppress(ConflictError):  # the cancel came first: the decision is refused
                    tasks.append(agent.approve(execution_id, approval_request_id=act))
            for task in tasks:
                task.wait_result(120)
            final = agent.resume(execution_id).wait_result(120)
            assert final.status in (("completed", "cancelled") if cancels else ("completed",))
            if final.status == "completed":
                assert sorted(ran) == [1, 2]
            assert len(ran) == len(set(ran))
            assert not ApprovalRequest.objects.filter(execution=execution_id, state="pending").exists()
            assert AgentRoot.objects.get(agent_id=agent.agent_id).lifecycle_status == "idle"
            assert here.shutdown().cleanup_complete
    finally:
        reset_runtime()
        unregister(cls)
