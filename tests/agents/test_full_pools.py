"""Work that has to wait for a slot, that finds no room at all, and that is stopped while it waits."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.test import override_settings

from phronomy_django.agents import ToolContext, ToolRetry, tool
from phronomy_django.agents.agent import Agent
from phronomy_django.agents.results import ExecutionTask
from phronomy_django.domain.messages import LLMRequest, ToolMessage
from phronomy_django.errors import ExecutionFailedError, NotFoundError
from phronomy_django.llm import call
from phronomy_django.models import JournalRecord, OffloadOperation, ToolInvocation
from phronomy_django.runtime import reset_runtime
from tests.agents.conftest import Define
from tests.agents.scripts import calls_then, kinds
from tests.waiting import wait_until


@pytest.fixture(autouse=True)
def one_slot() -> Iterator[None]:
    """A pool ``one`` with a single slot and room for a single thing that waits."""
    with override_settings(PHRONOMY={"POOLS": {"one": {"SIZE": 1, "QUEUE_SIZE": 1}}}):
        yield
        reset_runtime()


class Slow:
    """An agent whose tool waits in the pool ``one`` until it is told to go on."""

    def __init__(self, define: Define) -> None:
        self.go_on = threading.Event()
        self.ran: list[str] = []

        @tool(pool="one")
        def slow(ctx: ToolContext) -> str:
            """Wait."""
            self.ran.append(ctx.agent_id)
            assert self.go_on.wait(30)
            return "ok"

        def script(request: LLMRequest) -> Any:
            last = request.messages[-1]
            return last.content if isinstance(last, ToolMessage) else call("slow")

        self.cls: type[Agent] = define(script, tools=[slow])

    def start(self, name: str) -> ExecutionTask:
        """A run that has committed its tool's dispatch."""
        task = self.cls.create(name).invoke_async("go")
        wait_until(lambda: "tools_dispatched" in kinds(task.execution_id), "the dispatch")
        return task


def operation_of(task: ExecutionTask) -> OffloadOperation:
    return OffloadOperation.objects.get(execution=task.execution_id, kind="tool")


def test_a_tool_that_waits_for_a_slot_is_queued_until_it_starts(define: Define) -> None:
    slow = Slow(define)
    first = slow.start("a")
    wait_until(lambda: slow.ran == ["a"], "the first body")
    second = slow.start("b")
    assert (operation_of(first).state, operation_of(second).state) == ("started", "queued")
    assert operation_of(second).started_at is None
    slow.go_on.set()
    assert [task.wait_result(30).output for task in (first, second)] == ["ok", "ok"]
    done = operation_of(second)
    assert (done.state, done.attempt, slow.ran) == ("succeeded", 1, ["a", "b"])
    assert done.started_at is not None
    assert done.started_at >= operation_of(first).started_at  # type: ignore[operator]


def test_a_cancel_withdraws_what_waits_and_its_body_never_runs(define: Define) -> None:
    slow = Slow(define)
    first = slow.start("a")
    wait_until(lambda: slow.ran == ["a"], "the first body")
    second = slow.start("b")
    assert slow.cls("b").cancel_async(second.execution_id).wait_result(30) is True
    assert second.wait_result(30).status == "cancelled"
    assert operation_of(second).state == "cancelled"
    assert ToolInvocation.objects.get(execution=second.execution_id).status == "cancelled"
    slow.go_on.set()
    assert first.wait_result(30).output == "ok"
    assert slow.ran == ["a"]
    assert slow.cls("b").invoke("again", timeout=30).output == "ok"


def test_a_tool_that_finds_no_room_is_told_to_the_model(define: Define) -> None:
    slow = Slow(define)
    tasks = [slow.start("a")]
    wait_until(lambda: slow.ran == ["a"], "the first body")
    tasks.append(slow.start("b"))
    told = slow.start("c").wait_result(30)
    assert told.status == "completed"
    assert "slots of the pool 'one' are taken" in told.output
    slow.go_on.set()
    assert [task.wait_result(30).output for task in tasks] == ["ok", "ok"]
    assert sorted(slow.ran) == ["a", "b"]


def test_a_provider_call_that_finds_no_room_fails_the_run_and_frees_the_agent(define: Define) -> None:
    entered, go_on = threading.Event(), threading.Event()

    def script(request: LLMRequest) -> str:
        entered.set()
        assert go_on.wait(30)
        return "ok"

    cls = define(script, pool="one")
    tasks = [cls.create(name).invoke_async("x") for name in ("a", "b")]
    assert entered.wait(30)
    for task in tasks:
        wait_until(lambda task=task: "llm_call_dispatched" in kinds(task.execution_id), "the dispatch")  # type: ignore[misc]
    third = cls.create("c").invoke("x", timeout=30)
    assert (third.status, third.reason) == ("failed", "llm_failed")
    with pytest.raises(ExecutionFailedError, match="slots of the pool 'one' are taken"):
        _ = third.output
    go_on.set()
    assert [task.wait_result(30).output for task in tasks] == ["ok", "ok"]
    assert cls("c").invoke("again", timeout=30).output == "ok"


def test_a_cancel_while_an_attempt_is_put_off_starts_no_other(define: Define) -> None:
    attempts: list[int] = []

    @tool(replay_safe=True, retry=ToolRetry(max_attempts=5, base=60))
    def flaky(ctx: ToolContext) -> str:
        """Fails."""
        attempts.append(ctx.attempt)
        raise OSError("not now")

    agent = define(calls_then([call("flaky")]), tools=[flaky]).create("a")
    task = agent.invoke_async("go")
    wait_until(lambda: attempts, "the first attempt")
    assert agent.cancel_async(task.execution_id).wait_result(30) is True
    assert task.wait_result(30).status == "cancelled"
    assert attempts == [1]
    record = JournalRecord.objects.get(execution=task.execution_id, kind="tool_result")
    assert record.content is not None
    assert ToolInvocation.objects.get(execution=task.execution_id).status == "cancelled"


# --- stops of what has not begun -----------------------------------------------------------------------


def test_every_stop_of_a_promised_execution_is_answered(define: Define) -> None:
    agent = define("never shown").create("a")
    reservation = agent.reserve()
    stops = [agent.cancel_async(reservation.execution_id) for _ in range(3)]
    task = agent.start_reserved_async(reservation, "x")
    assert task.wait_result(30).status == "cancelled"
    assert [stop.wait_result(30) for stop in stops] == [True, True, True]


def test_stops_of_a_promised_execution_whose_start_is_refused_are_told_why(define: Define) -> None:
    agent: Callable[..., Any] = define("x")
    reservation = agent("nobody").reserve()
    stops = [agent("nobody").cancel_async(reservation.execution_id) for _ in range(2)]
    with pytest.raises(NotFoundError, match="nobody"):
        agent("nobody").start_reserved_async(reservation, "x").wait_result(30)
    for stop in stops:
        with pytest.raises(NotFoundError, match="nobody"):
            stop.wait_result(30)
