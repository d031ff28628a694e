"""In the same transaction as you: hooks, transactional tools, the inline mode."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from django.db import connection
from django.test import TestCase, override_settings

from phronomy_django.agents import Agent, ExecutionInfo, ExecutionResult, ToolContext, register, tool
from phronomy_django.agents.registry import unregister
from phronomy_django.errors import OutcomeUnknownError, PhronomyError
from phronomy_django.llm import ScriptedLLM, call
from phronomy_django.models import AgentExecution, AgentRoot, OffloadOperation, ToolInvocation
from phronomy_django.runtime import reset_runtime
from phronomy_django.store import HookError
from tests.agents.conftest import Define
from tests.agents.scripts import calls_then, kinds, results
from tests.testapp.models import LedgerEntry


@tool(transactional=True)
def book(ctx: ToolContext, amount: int) -> str:
    """Book an amount."""
    LedgerEntry.objects.create(reference=ctx.idempotency_key, amount=Decimal(amount))
    if amount == 13:
        raise ValueError("unlucky")
    return f"booked {amount}"


def test_a_transactional_tool_has_happened_exactly_if_it_is_recorded(define: Define) -> None:
    script = calls_then([call("book", amount=1), call("book", amount=13)])
    result = define(script, tools=[book]).create("a").invoke("go", timeout=30)
    assert result.status == "completed"
    invocations = ToolInvocation.objects.filter(execution=result.execution_id).order_by("position")
    assert [row.status for row in invocations] == ["succeeded", "failed"]
    assert list(LedgerEntry.objects.values_list("reference", "amount")) == [
        (invocations[0].tool_invocation_id, Decimal(1))
    ]
    states = OffloadOperation.objects.filter(kind="tool").values_list("state", flat=True)
    assert sorted(states) == ["failed", "succeeded"]


def test_waiting_for_another_run_inside_a_transactional_tool_is_refused(define: Define) -> None:
    other = define("other").create("other")

    @tool(transactional=True)
    def ask_other() -> str:
        """Would wait for a commit that waits for it."""
        return str(other.invoke("x", timeout=30).output)

    def script(request: Any) -> Any:
        found = results(request)
        return found[0].content if found else call("ask_other")

    result = define(script, tools=[ask_other]).create("a").invoke("go", timeout=30)
    assert "inside transaction.atomic()" in result.output
    assert AgentExecution.objects.count() == 1


class Hooked(Agent):
    """Writes a line at its admission and at its end."""

    def on_admission(self, execution: ExecutionInfo) -> None:
        LedgerEntry.objects.create(reference="admitted " + execution.execution_id)
        if execution.durable_context.get("refuse"):
            raise ValueError("not today")

    def on_terminal(self, execution: ExecutionInfo, result: ExecutionResult) -> None:
        LedgerEntry.objects.create(reference=f"{result.status} {execution.execution_id}")
        if execution.durable_context.get("break"):
            raise ValueError("never")


def test_hooks_are_part_of_the_first_and_the_last_barrier(define: Define) -> None:
    result = define("ok", base=Hooked).create("a").invoke("x", timeout=30)
    assert sorted(LedgerEntry.objects.values_list("reference", flat=True)) == [
        f"admitted {result.execution_id}",
        f"completed {result.execution_id}",
    ]


def test_an_admission_hook_that_raises_refuses_the_run_and_leaves_nothing(define: Define) -> None:
    agent = define("ok", base=Hooked).create("a")
    with pytest.raises(HookError, match="not today"):
        agent.invoke("x", durable_context={"refuse": True}, timeout=30)
    assert not AgentExecution.objects.exists()
    assert not LedgerEntry.objects.exists()
    assert AgentRoot.objects.get().lifecycle_status == "idle"
    assert agent.invoke("y", timeout=30).status == "completed"


def test_a_terminal_hook_that_never_works_keeps_the_admission_and_the_result(define: Define) -> None:
    agent = define("the answer", base=Hooked).create("a")
    with pytest.raises(PhronomyError) as raised:
        agent.invoke("x", durable_context={"break": True}, timeout=60)
    assert not isinstance(raised.value, OutcomeUnknownError)
    execution = AgentExecution.objects.get()
    assert execution.status == "active"
    assert "llm_call_succeeded" in kinds(execution.execution_id)
    assert LedgerEntry.objects.filter(reference__startswith="completed").count() == 0
    with pytest.raises(PhronomyError, match="waits for a person"):
        agent.invoke("y", timeout=30)


def test_preparation_shapes_what_the_model_sees_and_the_journal_keeps_the_original(define: Define) -> None:
    from phronomy_django.domain.messages import UserMessage

    class Prepared(Agent):
        def filter_input(self, message: Any, context: Any) -> Any:
            return UserMessage.of(message.text.replace("secret", "***"))

        def retrieve_knowledge(self, message: Any, context: Any) -> list[str]:
            return [f"There are {LedgerEntry.objects.count()} entries."]

        def select_context(self, messages: Any, context: Any) -> Any:
            return messages[-2:]

    model = ScriptedLLM(lambda request: request.instructions[-21:] + "|" + request.messages[-1].text)
    agent = define(base=Prepared, model=model).create("a")
    result = agent.invoke("my secret", timeout=30)
    assert result.output == "There are 0 entries.|my ***" or "There are 0 entries.|my ***" in result.output
    from phronomy_django.models import JournalRecord

    record = JournalRecord.objects.get(execution=result.execution_id, kind="input_received")
    assert b"my secret" in bytes(record.content.body)


def test_a_preparation_that_fails_fails_the_run(define: Define) -> None:
    class Broken(Agent):
        def filter_input(self, message: Any, context: Any) -> Any:
            raise KeyError("nothing there")

    result = define("ok", base=Broken).create("a").invoke("x", timeout=30)
    assert (result.status, result.reason) == ("failed", "preparation_failed")
    assert "nothing there" in str(result.error)


@override_settings(PHRONOMY={"RUNTIME": "inline"})
class InlineTests(TestCase):
    """A site tests its agents in a plain TestCase: one thread, one connection, rolled back at the end."""

    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        reset_runtime()

        @register
        class Inline(Agent):
            definition_id = "tests.inline"
            tools = (book,)
            model = ScriptedLLM(
                lambda request: results(request)[-1].content if results(request) else call("book", amount=5)
            )

        cls.agent_class = Inline

    @classmethod
    def tearDownClass(cls) -> None:
        unregister(cls.agent_class)
        reset_runtime()
        super().tearDownClass()

    def run_once(self) -> None:
        assert connection.in_atomic_block
        assert not AgentRoot.objects.exists()
        agent = self.agent_class.create("a")
        assert agent.invoke("go").output == "booked 5"
        assert agent.invoke_async("go").wait_result().output == "booked 5"
        assert LedgerEntry.objects.count() >= 1

    def test_a_run_happens_inside_the_transaction(self) -> None:
        self.run_once()

    def test_and_the_rollback_takes_it_away(self) -> None:
        self.run_once()
