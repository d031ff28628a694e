"""The ways of calling an agent, and what each refuses."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from django.test import override_settings

from phronomy_django.agents import StreamEvent, ToolContext, tool
from phronomy_django.domain.messages import LLMRequest, LLMResponse
from phronomy_django.errors import (
    AgentBusyError,
    ConfigurationError,
    ExecutionCancelledError,
    ExecutionTimeoutError,
    InputError,
    NotFoundError,
)
from phronomy_django.llm import ScriptedLLM, SyncLLMAdapter, call
from phronomy_django.models import AgentExecution, AgentRoot, JournalRecord
from phronomy_django.runtime import reset_runtime
from tests.agents.conftest import Define
from tests.agents.scripts import results
from tests.waiting import wait_until

SLOW = ScriptedLLM(lambda _: "late", delay=600)


def test_an_awaited_run_that_takes_too_long_goes_on(define: Define) -> None:
    agent = define(model=SLOW).create("a")
    with pytest.raises(ExecutionTimeoutError, match="It goes on"):
        asyncio.run(agent.ainvoke("x", timeout=0.2))
    wait_until(lambda: AgentExecution.objects.filter(status="active").exists(), "the run")
    execution_id = AgentExecution.objects.get().execution_id
    assert agent.cancel_async(execution_id).wait_result(30) is True


def test_a_stream_that_takes_too_long_goes_on(define: Define) -> None:
    agent = define(model=SLOW).create("a")
    with pytest.raises(ExecutionTimeoutError, match="It goes on"):
        agent.stream("x", on_event=lambda event: None, timeout=0.2)
    wait_until(lambda: AgentExecution.objects.filter(status="active").exists(), "the run")
    assert agent.cancel_async(AgentExecution.objects.get().execution_id).wait_result(30) is True


def test_a_listener_on_a_pool_thread_hears_everything_in_order(define: Define) -> None:
    heard: list[StreamEvent] = []
    task = define("one two three").create("a").stream_async("x", on_event=heard.append)
    assert task.wait_result(30).output == "one two three"
    wait_until(lambda: heard and heard[-1].type == "end", "the last event")
    assert "".join(event.payload["text"] for event in heard if event.type == "token") == "one two three"


def test_an_iterated_run_that_is_refused_raises(define: Define) -> None:
    agent = define()("nobody")

    async def follow() -> None:
        async for _ in agent.astream("x"):
            pass

    with pytest.raises(NotFoundError, match="nobody"):
        asyncio.run(follow())


def test_a_blocking_call_on_the_event_loop_is_refused(define: Define) -> None:
    other = define("x").create("other")

    @tool(cooperative=True)
    def wait(ctx: ToolContext) -> str:
        """Would wait for the loop on the loop."""
        return str(other.invoke("x").output)

    def script(request: LLMRequest) -> Any:
        found = results(request)
        return found[0].content if found else call("wait")

    output = define(script, tools=[wait]).create("a").invoke("go", timeout=30).output
    assert output.startswith("EventLoopReentrancyError: invoke() blocks")


def test_a_pool_that_is_not_there_is_told_before_anything_is_stored(define: Define) -> None:
    agent = define(pool="nowhere").create("a")
    with pytest.raises(ConfigurationError, match=r"'nowhere'.*there are: default, llm"):
        agent.invoke_async("x")
    assert AgentExecution.objects.count() == 0


def test_a_reservation_and_a_result_belong_to_their_agent(define: Define) -> None:
    cls = define()
    first, second = cls.create("a"), cls.create("b")
    with pytest.raises(InputError, match="is for agent 'a', not 'b'"):
        second.start_reserved_async(first.reserve(), "x")
    done = first.invoke("x", timeout=30)
    with pytest.raises(NotFoundError, match="'b' has no execution"):
        second.result(done.execution_id)
    with pytest.raises(NotFoundError):
        first.result("0" * 32)


def test_a_reason_of_a_cancel_is_stored_and_bounded(define: Define) -> None:
    agent = define(model=SLOW).create("a")
    task = agent.invoke_async("x")
    with pytest.raises(InputError, match="501 characters; 500 are the limit"):
        agent.cancel_async(task.execution_id, reason="x" * 501)
    assert agent.cancel_async(task.execution_id, reason="no more").wait_result(30) is True
    with pytest.raises(ExecutionCancelledError, match="no more"):
        _ = task.wait_result(30).output


def test_a_change_of_a_busy_or_missing_agent_is_refused(define: Define) -> None:
    cls = define(model=SLOW)
    agent = cls.create("a")
    task = agent.invoke_async("x")
    for change in (lambda: agent.add_knowledge("k"), agent.clear_transcript, agent.purge):
        with pytest.raises(AgentBusyError, match=task.execution_id):
            change()
        with pytest.raises(NotFoundError, match="nobody"):
            cls("nobody").clear_transcript()
    with pytest.raises(InputError, match="empty"):
        agent.add_knowledge(" ")
    agent.cancel_async(task.execution_id).wait_result(30)
    task.wait_result(30)
    agent.purge()
    assert JournalRecord.objects.filter(agent__agent_id="a").exclude(kind__startswith="agent").count() <= 1
    assert AgentRoot.objects.get(agent_id="a").lifecycle_status == "purged"


def test_an_adapter_that_blocks_runs_on_a_thread_and_streams(define: Define) -> None:
    threads: list[str] = []

    class Blocking(SyncLLMAdapter):
        name = "house:blocking"

        def complete_sync(self, request: LLMRequest) -> LLMResponse:
            threads.append(threading.current_thread().name)
            return LLMResponse("from a thread")

    agent = define(model=Blocking()).create("a")
    heard: list[StreamEvent] = []
    assert agent.invoke("x", timeout=30).output == "from a thread"
    assert agent.stream("x", on_event=heard.append, timeout=30).output == "from a thread"
    assert [event.payload["text"] for event in heard if event.type == "token"] == ["from a thread"]
    assert len(threads) == 2


def test_an_async_tool_runs_in_a_pool_of_threads_too(define: Define) -> None:
    @tool(pool="default")
    async def later(value: int) -> int:
        """Later."""
        await asyncio.sleep(0)
        return value + 1

    def script(request: LLMRequest) -> Any:
        found = results(request)
        return found[0].content if found else call("later", value=1)

    assert define(script, tools=[later]).create("a").invoke("x", timeout=30).output == "2"


def test_at_most_so_many_agents_stay_in_memory_and_the_others_are_loaded_again(define: Define) -> None:
    with override_settings(PHRONOMY={"MAX_LIVE_AGENTS": 2}):
        cls = define("ok")
        agents = [cls.create(name) for name in "abc"]
        for agent in agents:
            agent.invoke("x", timeout=30)
        assert [cls.get(name) is not None for name in "abc"] == [False, True, True]
        assert agents[0].invoke("again", timeout=30).output == "ok"
        assert [cls.get(name) is not None for name in "abc"] == [True, False, True]
        reset_runtime()


def test_inline_asynchronous_code_runs_in_the_same_way(define: Define, phronomy_inline: None) -> None:
    agent = define("ok").create("a")
    assert agent.invoke("x").output == "ok"
    heard: list[StreamEvent] = []
    assert agent.stream("x", on_event=heard.append).output == "ok"
    assert heard[-1].type == "end"
