"""What a killed process was doing, and what the next one finds. Runs in children of ``tests.crash.program`` only."""

from __future__ import annotations

import os
import time
from decimal import Decimal
from pathlib import Path
from typing import Any

from django.conf import settings

from phronomy_django.agents import (
    Agent,
    ExecutionInfo,
    ExecutionResult,
    Preparation,
    ToolContext,
    register,
    tool,
)
from phronomy_django.conf import phronomy_settings
from phronomy_django.domain.messages import LLMRequest, ToolMessage, UserMessage
from phronomy_django.errors import AgentBusyError, ConflictError, ResolutionRequiredError
from phronomy_django.llm import LLMError, LLMErrorKind, ScriptedLLM, call
from phronomy_django.models import AgentExecution, ApprovalRequest
from phronomy_django.runtime import reset_runtime, start_hosting
from phronomy_django.store import mark_lost
from tests.testapp.models import LedgerEntry

__all__ = ["Report", "after", "all_barriers", "many"]

#: Two slots for three tools: one of each batch waits, and is claimed when it starts.
settings.PHRONOMY = {"RUNTIME": "embedded", "POOLS": {"default": {"SIZE": 2}}}
phronomy_settings.cache_clear()

EFFECTS = "PHRONOMY_TEST_EFFECTS"


class Report:
    """What this process has told its caller: a line is a promise that the database has to keep."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def line(self, *words: str) -> None:
        with self._path.open("a") as file:
            file.write(" ".join(words) + "\n")


@tool
def send(ctx: ToolContext) -> str:
    """An effect outside the database: a line in a file, with the key that names it."""
    handle = os.open(os.environ[EFFECTS], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(handle, f"{ctx.idempotency_key}\n".encode())
    os.close(handle)
    return "sent"


@tool(transactional=True)
def book(ctx: ToolContext) -> str:
    """An effect inside the database."""
    LedgerEntry.objects.create(reference=ctx.idempotency_key, amount=Decimal(1))
    return "booked"


def _script(request: LLMRequest) -> Any:
    last = request.messages[-1]
    if isinstance(last, ToolMessage):
        return "done"
    text = last.text if isinstance(last, UserMessage) else ""
    return [call("send"), call("book"), call("send")] if "tools" in text else "done"


def _is_answered(request: LLMRequest) -> bool:
    return isinstance(request.messages[-1], ToolMessage)


@register
class PlainAgent(Agent):
    """No application code but its tools: as few barriers as can be."""

    definition_id = "tests.crash-plain"
    model = ScriptedLLM(_script)
    tools = (send, book)


@register
class HookedAgent(PlainAgent):
    """Application code at every place that the design has for it."""

    definition_id = "tests.crash-hooked"
    model = ScriptedLLM(_script)

    def filter_input(self, message: UserMessage, facts: Preparation) -> UserMessage:
        return message

    def on_admission(self, execution: ExecutionInfo) -> None:
        LedgerEntry.objects.create(reference=f"admitted {execution.execution_id}")

    def on_terminal(self, execution: ExecutionInfo, result: ExecutionResult) -> None:
        LedgerEntry.objects.create(reference=f"{result.status} {execution.execution_id}")


@register
class SecondModelAgent(Agent):
    """Its first model refuses, its second answers."""

    definition_id = "tests.crash-second-model"
    model = (
        ScriptedLLM(lambda _: LLMError("no", kind=LLMErrorKind.REFUSED, model="first"), name="first"),
        ScriptedLLM(lambda _: "done", name="second"),
    )


@register
class HeldAgent(Agent):
    """Its one tool waits for a person."""

    definition_id = "tests.crash-held"
    model = ScriptedLLM(lambda request: _script(request) if _is_answered(request) else call("send"))
    tools = (tool(name="send", requires_approval=True)(send.function),)


@register
class SlowAgent(Agent):
    """Never answers: it is there to be cancelled."""

    definition_id = "tests.crash-slow"
    model = ScriptedLLM(["late"], delay=600)


CLASSES = {cls.__name__: cls for cls in (PlainAgent, HookedAgent, SecondModelAgent, HeldAgent, SlowAgent)}


def _run(agent: Agent, report: Report, text: str = "tools") -> None:
    result = agent.invoke(text, idempotency_key="k", timeout=60)
    report.line("ended", agent.agent_id, result.execution_id, result.status)


def all_barriers(order: dict[str, Any], report: Report) -> None:
    """One agent after the other, so that each barrier is the only thing that happens."""
    name = order["name"]
    for cls in (PlainAgent, HookedAgent, SecondModelAgent, HeldAgent, SlowAgent):
        cls.create(f"{name}-{cls.__name__}")
    _run(HookedAgent(f"{name}-HookedAgent"), report)
    _run(PlainAgent(f"{name}-PlainAgent"), report)
    plain = PlainAgent(f"{name}-PlainAgent")
    plain.invoke("no more", timeout=60)
    _run(SecondModelAgent(f"{name}-SecondModelAgent"), report)
    held = HeldAgent(f"{name}-HeldAgent")
    waiting = held.invoke("tools", idempotency_key="k", timeout=60)
    report.line("suspended", held.agent_id, waiting.execution_id)
    ended = _approve(held, waiting.execution_id, waiting.approval_request)
    report.line("ended", held.agent_id, ended.execution_id, ended.status)
    slow = SlowAgent(f"{name}-SlowAgent")
    task = slow.invoke_async("x")
    if slow.cancel_async(task.execution_id).wait_result(60):
        report.line("stopped", slow.agent_id, task.execution_id)
    task.wait_result(60)
    report.line("ended", slow.agent_id, task.execution_id, "cancelled")
    slow.add_knowledge("something")
    slow.clear_transcript()
    slow.purge()
    report.line("purged", slow.agent_id)
    reset_runtime()


def _approve(agent: Agent, execution_id: str, request_id: str) -> ExecutionResult:
    return agent.approve(execution_id, approval_request_id=request_id).wait_result(60)


def many(order: dict[str, Any], report: Report) -> None:
    """Many at a time, so that the writer commits batches and the tools wait for their slots."""
    agents = [
        cls.create(f"{order['name']}-{cls.__name__}-{number}")
        for cls in (PlainAgent, HookedAgent)
        for number in range(order["count"] // 2)
    ]
    tasks = [(agent, agent.invoke_async("tools", idempotency_key="k")) for agent in agents]
    for agent, task in tasks:
        task.on_complete(
            lambda ended, agent=agent: report.line(
                "ended", agent.agent_id, ended.execution_id, ended.result().status
            )
        )
    for _, task in tasks:
        task.wait_result(120)
    reset_runtime()


def after(order: dict[str, Any], report: Report) -> None:
    """The next process: it takes up what was left, a person answers what is left to answer, all else works.

    ``truth`` are the keys of the effects that really happened: what a person would find in the other system's books.
    """
    mark_lost(0.0)
    truth = set(order["truth"])
    hosting = start_hosting()  # which takes up what it finds
    for agent_id, class_name in order["agents"]:
        agent = CLASSES[class_name](agent_id)
        until = time.monotonic() + 30
        while time.monotonic() < until:
            try:
                result = agent.invoke("tools", idempotency_key="k", timeout=60)
            except AgentBusyError:
                _answer(agent, truth, report)
                continue
            except ResolutionRequiredError:
                _answer(agent, truth, report)
                continue
            report.line("answered", agent_id, result.execution_id, result.status)
            break
        else:
            report.line("stuck", agent_id)
    slow = AgentExecution.objects.filter(
        agent__agent_id=order["prefix"] + "SlowAgent", status__in=["preparing", "active"]
    ).first()
    if (
        slow is not None
    ):  # its model never answers; a cancel that was not accepted before the kill is asked for again
        SlowAgent(slow.agent.agent_id).cancel_async(slow.execution_id).wait_result(60)
    _wait_for_quiet(order["prefix"], truth, report)
    fresh = PlainAgent.create(order["name"])
    report.line("fresh", fresh.invoke("hello", timeout=60).status)
    assert hosting.receiver.runner.count == 0
    reset_runtime()


def _answer(agent: Agent, truth: set[str], report: Report) -> None:
    """What an operator does: look at the books, and say what happened."""
    execution = AgentExecution.objects.filter(
        agent__agent_id=agent.agent_id, status__in=["preparing", "active", "suspended"]
    ).first()
    if execution is None:
        return
    if execution.recovery_disposition != "resolution_required":
        time.sleep(0.02)  # it is being taken up
        return
    record = execution.journal.filter(kind="resolution_required").order_by("sequence").last()
    assert record is not None
    for subject in record.data["subjects"]:
        happened = subject["subject_id"] in truth
        try:
            agent.resolve(
                execution.execution_id,
                expected_execution_revision=execution.execution_revision,
                subject=subject["subject_id"],
                outcome="succeeded" if happened else "not_performed",
                result="sent" if happened else None,
            )
        except ConflictError:
            return  # it has moved on since it was read: look again
        report.line("resolved", agent.agent_id, subject["subject_id"])


def _wait_for_quiet(prefix: str, truth: set[str], report: Report) -> None:
    until = time.monotonic() + 60
    open_ = AgentExecution.objects.filter(
        agent__agent_id__startswith=prefix, status__in=["preparing", "active", "suspended"]
    )
    while open_.exists() and time.monotonic() < until:
        waiting = ApprovalRequest.objects.filter(execution__in=open_, state="pending").first()
        if waiting is not None:
            _approve(HeldAgent(waiting.execution.agent.agent_id), waiting.execution_id, waiting.pk)
        for execution in open_.filter(recovery_disposition="resolution_required"):
            _answer(HeldAgent(execution.agent.agent_id), truth, report)
        time.sleep(0.02)
