"""A person holds a dangerous step: suspended without memory, decided once, bound to what was shown."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.db import connection
from django.utils import timezone

from phronomy_django.agents import Agent, Preparation, ToolProposal, tool
from phronomy_django.domain.messages import LLMRequest, ToolMessage, UserMessage
from phronomy_django.errors import (
    AgentBusyError,
    ConflictError,
    ExecutionFailedError,
    InputError,
    NotFoundError,
)
from phronomy_django.llm import call
from phronomy_django.models import (
    AgentExecution,
    AgentRoot,
    ApprovalRequest,
    JournalRecord,
    OffloadOperation,
    ToolInvocation,
)
from phronomy_django.runtime import reset_runtime, start_hosting
from phronomy_django.signals import approval_requested
from phronomy_django.store import expire_approvals
from tests.agents.conftest import Define
from tests.agents.scripts import kinds
from tests.waiting import wait_until

paid: list[tuple[str, int]] = []


@pytest.fixture(autouse=True)
def nothing_paid() -> None:
    paid.clear()


@tool(
    requires_approval=True, redact=("card",), facts=lambda order, amount, card="": {"balance": 100 - amount}
)
def refund(order: str, amount: int, card: str = "") -> str:
    """Pay money back."""
    paid.append((order, amount))
    return f"refunded {amount}"


@tool
def look(order: str) -> str:
    """Look."""
    paid.append(("looked at " + order, 0))
    return "on its way"


def script(*calls: Any) -> Callable[[LLMRequest], Any]:
    """Ask for ``calls``, then tell their results."""

    def play(request: LLMRequest) -> Any:
        last = max(index for index, item in enumerate(request.messages) if isinstance(item, UserMessage))
        found = [item.content for item in request.messages[last:] if isinstance(item, ToolMessage)]
        return " | ".join(found) if found else list(calls)

    return play


def held(define: Define, *calls: Any, **attributes: Any) -> tuple[Agent, str, str]:
    """An agent whose run waits, its execution and the first request."""
    calls = calls or (call("refund", order="A", amount=7, card="4111"),)
    agent = define(script(*calls), tools=[refund, look], **attributes).create("a")
    result = agent.invoke("go", timeout=30)
    assert (result.status, result.reason) == ("suspended", "awaiting_approval")
    return agent, result.execution_id, result.approval_request


def test_a_held_run_keeps_its_admission_and_no_memory(define: Define) -> None:
    agent, execution_id, request_id = held(define)
    assert paid == []
    row = ApprovalRequest.objects.get()
    assert row.approval_request_id == request_id
    assert (row.state, row.facts, row.expires_at) == ("pending", {"balance": 93}, None)
    assert row.shown_arguments == {"order": "A", "amount": 7, "card": "[redacted]"}
    execution = AgentExecution.objects.get(pk=execution_id)
    assert (execution.status, execution.phase) == ("suspended", "awaiting_approval")
    assert ToolInvocation.objects.get().status == "planned"
    assert OffloadOperation.objects.filter(kind="tool").count() == 0
    assert type(agent).get("a") is None
    assert start_hosting().receiver.live_agents == 0
    assert start_hosting().receiver.runner.count == 0
    with pytest.raises(AgentBusyError, match="waits for a person's approval"):
        agent.invoke("more", timeout=30)


def test_an_approval_lets_the_run_go_on_to_its_end(define: Define) -> None:
    user = get_user_model().objects.create(username="boss")
    agent, execution_id, request_id = held(define)
    result = agent.approve(execution_id, approval_request_id=request_id, by=user, reason="fine").wait_result(
        30
    )
    assert (result.status, result.output, paid) == ("completed", "refunded 7", [("A", 7)])
    row = ApprovalRequest.objects.get()
    assert (row.state, row.decided_by_id, row.reason) == ("approved", user.pk, "fine")
    assert row.decided_at is not None
    assert kinds(execution_id) == [
        "input_received",
        "llm_call_dispatched",
        "llm_call_succeeded",
        "approval_requested",
        "tools_authorized",
        "tool_result",
        "llm_call_dispatched",
        "llm_call_succeeded",
        "execution_completed",
    ]
    assert agent.invoke("next", timeout=30).status == "suspended"


def test_a_process_that_never_saw_the_run_approves_it(define: Define) -> None:
    agent, execution_id, request_id = held(define)
    reset_runtime()
    assert agent.approve(execution_id, approval_request_id=request_id).wait_result(30).output == "refunded 7"


def test_a_decision_whose_hint_was_lost_is_found_at_the_next_start(define: Define) -> None:
    _, execution_id, request_id = held(define)
    reset_runtime()
    ApprovalRequest.objects.filter(pk=request_id).update(state="approved", decided_at=timezone.now())
    start_hosting()
    wait_until(lambda: AgentExecution.objects.get(pk=execution_id).status == "completed", "the end")
    assert paid == [("A", 7)]


def test_a_signal_tells_of_the_request_after_its_commit(define: Define) -> None:
    heard: list[tuple[Any, list[str], str]] = []

    def listen(sender: Any, execution_id: str, approval_request_ids: list[str], **_: Any) -> None:
        heard.append((sender, approval_request_ids, AgentExecution.objects.get(pk=execution_id).status))

    approval_requested.connect(listen)
    try:
        agent, _, request_id = held(define)
        wait_until(lambda: heard, "the signal")
    finally:
        approval_requested.disconnect(listen)
    assert heard == [(type(agent), [request_id], "suspended")]


def test_a_rejection_is_told_to_the_model(define: Define) -> None:
    agent, execution_id, request_id = held(define)
    task = agent.approve(execution_id, approval_request_id=request_id, approved=False, reason="too much")
    assert task.wait_result(30).output == "A person rejected this call: too much"
    assert paid == []
    assert ToolInvocation.objects.get().status == "rejected"


def test_a_rejection_ends_the_run_where_the_tool_says_so(define: Define) -> None:
    @tool(requires_approval=True, on_rejection="end")
    def close() -> str:
        """Close the account."""
        paid.append(("closed", 0))
        return "closed"

    agent = define(script(call("close"), call("look", order="A")), tools=[close, look]).create("a")
    held_ = agent.invoke("go", timeout=30)
    task = agent.approve(held_.execution_id, approval_request_id=held_.approval_request, approved=False)
    result = task.wait_result(30)
    assert (result.status, result.reason, paid) == ("rejected", "rejected", [])
    with pytest.raises(ExecutionFailedError, match="rejected this call"):
        _ = result.output
    assert [row.status for row in ToolInvocation.objects.order_by("position")] == [
        "rejected",
        "not_performed",
    ]
    assert JournalRecord.objects.filter(kind="tool_result").count() == 2


def test_a_mixed_batch_runs_only_when_all_of_it_is_decided(define: Define) -> None:
    calls = (
        call("refund", order="A", amount=1),
        call("look", order="B"),
        call("refund", order="C", amount=3),
        call("refund", order="D"),
    )
    agent, execution_id, _ = held(define, *calls)
    first, second = ApprovalRequest.objects.order_by("tool_invocation__position")
    waiting = agent.approve(execution_id, approval_request_id=first.pk).wait_result(30)
    assert (waiting.status, waiting.approval_request, paid) == ("suspended", second.pk, [])
    result = agent.approve(execution_id, approval_request_id=second.pk, approved=False).wait_result(30)
    told = result.output.split(" | ")
    assert told[:3] == ["refunded 1", "on its way", "A person rejected this call."]
    assert "amount" in told[3]
    assert sorted(paid) == [("A", 1), ("looked at B", 0)]


def test_edited_arguments_take_the_place_of_the_models_and_are_checked(define: Define) -> None:
    agent, execution_id, request_id = held(define)
    with pytest.raises(InputError, match="amount"):
        agent.approve(
            execution_id, approval_request_id=request_id, edited_arguments={"order": "A", "amount": "x"}
        )
    edited = {"order": "A", "amount": 5}
    task = agent.approve(execution_id, approval_request_id=request_id, edited_arguments=edited)
    assert (task.wait_result(30).output, paid) == ("refunded 5", [("A", 5)])
    invocation, operation = ToolInvocation.objects.get(), OffloadOperation.objects.get(kind="tool")
    assert b'"amount":7' in bytes(invocation.arguments_content.body)
    assert operation.request_content is not None
    assert b'"amount":5' in bytes(operation.request_content.body)


def test_the_same_decision_twice_is_one_and_another_one_is_refused(define: Define) -> None:
    agent, execution_id, request_id = held(define)
    agent.approve(execution_id, approval_request_id=request_id).wait_result(30)
    assert agent.approve(execution_id, approval_request_id=request_id).wait_result(30).output == "refunded 7"
    with pytest.raises(ConflictError, match="approved already"):
        agent.approve(execution_id, approval_request_id=request_id, approved=False)
    assert paid == [("A", 7)]


def test_of_two_decisions_at_once_one_wins(define: Define) -> None:
    agent, execution_id, request_id = held(define)
    start, outcomes = threading.Barrier(2), []

    def decide(approved: bool) -> None:
        start.wait()
        try:
            agent.approve(execution_id, approval_request_id=request_id, approved=approved)
            outcomes.append("approved" if approved else "rejected")
        except ConflictError:
            outcomes.append("conflict")
        finally:
            connection.close()

    threads = [threading.Thread(target=decide, args=(approved,)) for approved in (True, False)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    won = ApprovalRequest.objects.get().state
    assert sorted(outcomes) == sorted(["conflict", won])
    wait_until(lambda: AgentExecution.objects.get().status == "completed", "the end")
    assert len(paid) == (won == "approved")


def test_a_decision_is_bound_to_the_arguments_that_were_shown(define: Define) -> None:
    agent, execution_id, request_id = held(define)
    with pytest.raises(ConflictError, match="other arguments"):
        agent.approve(execution_id, approval_request_id=request_id, arguments_digest="sha256:0")
    digest = ApprovalRequest.objects.get().arguments_digest
    task = agent.approve(execution_id, approval_request_id=request_id, arguments_digest=digest)
    assert task.wait_result(30).status == "completed"


def test_a_request_expires_by_the_databases_clock_and_is_told(define: Define) -> None:
    agent, execution_id, request_id = held(define, approval_seconds=3600)
    assert ApprovalRequest.objects.get().expires_at is not None
    assert expire_approvals() == []
    ApprovalRequest.objects.update(expires_at=timezone.now() - timedelta(hours=1))
    with pytest.raises(ConflictError, match="expired"):
        agent.approve(execution_id, approval_request_id=request_id)
    assert expire_approvals() == [execution_id]
    assert agent.resume(execution_id).wait_result(30).output == "Nobody decided on this call in time."
    assert (ApprovalRequest.objects.get().state, paid) == ("expired", [])


def test_a_cancel_withdraws_the_request_and_ends_the_run(define: Define) -> None:
    agent, execution_id, request_id = held(define)
    assert agent.cancel_async(execution_id, reason="no more").wait_result(30) is True
    wait_until(lambda: AgentExecution.objects.get().status == "cancelled", "the end")
    assert ApprovalRequest.objects.get().state == "withdrawn"
    assert ToolInvocation.objects.get().status == "cancelled"
    with pytest.raises(ConflictError, match="withdrawn already"):
        agent.approve(execution_id, approval_request_id=request_id)
    assert agent.invoke("next", timeout=30).status == "suspended"
    assert paid == []


def test_a_deadline_that_passes_while_a_run_waits_ends_it(define: Define) -> None:
    agent, execution_id, _ = held(define)
    AgentExecution.objects.update(deadline=timezone.now() - timedelta(seconds=1))
    result = agent.resume(execution_id).wait_result(30)
    assert (result.status, result.reason) == ("cancelled", "deadline")
    assert ApprovalRequest.objects.get().state == "withdrawn"


def test_a_policy_decides_on_values_which_calls_a_person_sees(define: Define) -> None:
    class Careful(Agent):
        def needs_approval(self, proposal: ToolProposal, context: Preparation) -> bool:
            small = proposal.tool_name == "refund" and proposal.arguments["amount"] < 10
            return not small and AgentRoot.objects.filter(agent_id=context.agent_id).exists()

    small = define(script(call("refund", order="A", amount=9)), base=Careful, tools=[refund]).create("small")
    assert small.invoke("go", timeout=30).output == "refunded 9"
    large = define(script(call("look", order="B")), base=Careful, tools=[look]).create("large")
    assert large.invoke("go", timeout=30).status == "suspended"
    assert ApprovalRequest.objects.count() == 1


@pytest.mark.parametrize("foreign", ["0" * 32, "not an id"])
def test_what_is_not_there_is_not_decided(define: Define, foreign: str) -> None:
    agent, execution_id, request_id = held(define)
    other = define("x").create("other")
    with pytest.raises(NotFoundError):
        other.approve(execution_id, approval_request_id=request_id)
    with pytest.raises(NotFoundError):
        agent.approve(execution_id, approval_request_id=foreign)
    for ask in (agent.result, agent.cancel_async, agent.resume):
        with pytest.raises(NotFoundError):
            task = ask(foreign)
            task.wait_result(30)  # type: ignore[attr-defined]
    with pytest.raises(InputError, match="10000"):
        agent.approve(execution_id, approval_request_id=request_id, reason="x" * 10_001)
    assert ApprovalRequest.objects.get().state == "pending"


def test_inline_a_sites_own_test_can_hold_and_approve(define: Define, phronomy_inline: None) -> None:
    agent, execution_id, request_id = held(define)
    assert agent.approve(execution_id, approval_request_id=request_id).wait_result().output == "refunded 7"
    assert agent.invoke("again").status == "suspended"
