"""Who may run: one at a time, once for a key, checked before anything is stored."""

from __future__ import annotations

import asyncio
import threading
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, transaction
from django.utils import timezone

from phronomy_django.agents import Agent, File, StreamEvent, register, tool
from phronomy_django.errors import (
    AgentAlreadyExistsError,
    AgentBusyError,
    AgentPurgedError,
    ConfigurationError,
    ConflictError,
    DefinitionMismatchError,
    ExecutionTimeoutError,
    InputError,
    NotFoundError,
    SerializationError,
)
from phronomy_django.models import AgentExecution, AgentRoot, JournalRecord
from phronomy_django.runtime import reset_runtime
from tests.agents.conftest import Define
from tests.agents.scripts import kinds, nothing_is_stored, text_of
from tests.waiting import wait_until


@pytest.fixture
def gate() -> Any:
    """A model that waits until the test lets it answer."""
    opened = threading.Event()

    def script(request: Any) -> str:
        assert opened.wait(30)
        return "answer to " + text_of(request)

    script.open = opened.set  # type: ignore[attr-defined]
    yield script
    opened.set()


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("", "empty"),
        ("  \n", "empty"),
        ([], "empty"),
        ("x" * (10 * 1024 * 1024), "10485760 bytes"),
        ("a\x00b", "NUL character at position 1"),
        ("a\ud800", "lone surrogate at position 1"),
        (b"bytes", "bytes"),
        ([3], "Part|int"),
        ([File(b"")], "no bytes"),
    ],
)
def test_an_input_that_does_not_fit_is_refused_before_anything_is_stored(
    define: Define, value: Any, words: str
) -> None:
    agent = define().create("a")
    with pytest.raises(InputError, match=words):
        agent.invoke(value, timeout=5)
    assert nothing_is_stored(roots=1)


@pytest.mark.parametrize("key", ["", "x" * 201, "a\x00", "a\ud800", 7])
def test_an_idempotency_key_that_does_not_fit_is_refused(define: Define, key: Any) -> None:
    agent = define().create("a")
    with pytest.raises(InputError, match="idempotency_key"):
        agent.invoke("x", idempotency_key=key, timeout=5)
    assert nothing_is_stored(roots=1)


@pytest.mark.parametrize("agent_id", ["", "x" * 201, " a", "a\nb", "a\x00"])
def test_an_agent_id_that_does_not_fit_is_refused(define: Define, agent_id: str) -> None:
    with pytest.raises(InputError, match="agent_id"):
        define().create(agent_id)
    assert nothing_is_stored()


@pytest.mark.parametrize(
    ("context", "path"),
    [
        ({"a": [object()]}, r"durable_context\.a\[0\]"),
        ({"a": {1: 2}}, r"durable_context\.a"),
        ({"a": float("nan")}, r"durable_context\.a"),
        ({"a": "\x00"}, "NUL"),
        ([1], "dict"),
    ],
)
def test_a_context_that_json_cannot_carry_is_refused_with_its_path(
    define: Define, context: Any, path: str
) -> None:
    agent = define().create("a")
    with pytest.raises(SerializationError, match=path):
        agent.invoke("x", durable_context=context)
    assert nothing_is_stored(roots=1)


def test_a_definition_needs_an_id_and_no_other_class_may_have_it(define: Define) -> None:
    with pytest.raises(ConfigurationError, match="no definition_id"):
        register(type("Nameless", (Agent,), {"model": "scripted:x"}))
    define(definition_id="tests.same")
    with pytest.raises(ConfigurationError, match=r"tests\.same"):
        register(type("Other", (Agent,), {"definition_id": "tests.same", "model": "scripted:x"}))


def test_two_tools_of_one_name_are_refused(define: Define) -> None:
    @tool(name="same")
    def one() -> str:
        """One."""
        return ""

    @tool(name="same")
    def two() -> str:
        """Two."""
        return ""

    with pytest.raises(ConfigurationError, match="same"):
        define(tools=[one, two])


def test_create_load_get_and_their_refusals(define: Define) -> None:
    cls, other = define(), define(definition_id="tests.other")
    agent = cls.create("a")
    with pytest.raises(AgentAlreadyExistsError, match="'a'"):
        cls.create("a")
    with pytest.raises(NotFoundError, match="'b'"):
        cls.load("b")
    with pytest.raises(DefinitionMismatchError, match=r"tests\.agent-0.*tests\.other"):
        other.load("a")
    assert cls.get("a") is None
    agent.invoke("x", timeout=30)
    live = cls.get("a")
    assert live is not None and live.agent_id == "a"
    assert other.get("a") is None


def test_a_purged_agent_is_gone_and_its_id_stays_reserved(define: Define) -> None:
    cls = define()
    agent = cls.create("a")
    agent.invoke("x", timeout=30)
    agent.purge()
    assert not AgentExecution.objects.exists()
    assert list(JournalRecord.objects.values_list("kind", flat=True)) == ["agent_purged"]
    with pytest.raises(AgentPurgedError):
        cls.load("a")
    with pytest.raises(AgentPurgedError):
        agent.invoke("x", timeout=30)
    with pytest.raises(AgentAlreadyExistsError):
        cls.create("a")


def test_a_second_run_is_refused_and_nothing_is_queued(define: Define, gate: Any) -> None:
    agent = define(gate).create("a")
    first = agent.invoke_async("one")
    with pytest.raises(AgentBusyError, match=first.execution_id):
        agent.invoke("two", timeout=30)
    with pytest.raises(AgentBusyError):
        agent.add_knowledge("x")
    gate.open()
    assert first.wait_result(30).output == "answer to one"
    assert AgentExecution.objects.count() == 1
    assert agent.invoke("three", timeout=30).output == "answer to three"


def test_of_many_callers_at_once_one_wins(define: Define, gate: Any) -> None:
    agent = define(gate).create("a")
    start, outcomes = threading.Barrier(8), []

    def ask() -> None:
        start.wait()
        task = agent.invoke_async("x")
        try:
            outcomes.append(task.wait_result(30).status)
        except AgentBusyError:
            outcomes.append("busy")
            if outcomes.count("busy") == 7:
                gate.open()
        finally:
            connection.close()

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(outcomes) == ["busy"] * 7 + ["completed"]


def test_the_same_key_gives_the_first_answer_also_after_a_restart(define: Define) -> None:
    agent = define(lambda request: text_of(request) + "!").create("a")
    first = agent.invoke_async("hi", idempotency_key="k")
    result = first.wait_result(30)
    again = agent.invoke_async("hi", idempotency_key="k")
    assert again.wait_result(30).output == result.output == "hi!"
    assert again.execution_id == first.execution_id
    reset_runtime()
    assert agent.invoke("hi", idempotency_key="k", timeout=30).execution_id == first.execution_id
    with pytest.raises(ConflictError, match="'k'"):
        agent.invoke("other", idempotency_key="k", timeout=30)
    with pytest.raises(ConflictError, match="'k'"):
        agent.invoke("hi", idempotency_key="k", durable_context={"x": 1}, timeout=30)
    assert AgentExecution.objects.count() == 1


def test_the_same_key_joins_the_run_that_is_under_way(define: Define, gate: Any) -> None:
    agent = define(gate).create("a")
    first, second = (agent.invoke_async("hi", idempotency_key="k") for _ in range(2))
    gate.open()
    assert first.wait_result(30) == second.wait_result(30)
    assert first.execution_id == second.execution_id


def test_an_execution_that_a_dead_process_left_keeps_its_agent_busy(define: Define) -> None:
    agent = define().create("a")
    agent.invoke("x", timeout=30)
    reset_runtime()
    AgentExecution.objects.update(status="active", phase="calling_llm")
    AgentRoot.objects.update(lifecycle_status="busy")
    with pytest.raises(AgentBusyError, match="left unfinished"):
        agent.invoke("y", timeout=30)
    assert AgentExecution.objects.count() == 1


# --- transactions of the caller -----------------------------------------------------------------------------


def test_a_blocking_call_inside_atomic_is_refused_and_says_why(define: Define) -> None:
    agent = define().create("a")
    for blocking in (
        lambda: agent.invoke("x"),
        lambda: agent.stream("x", on_event=print),
        lambda: agent.add_knowledge("x"),
    ):
        with transaction.atomic(), pytest.raises(ConfigurationError, match="atomic"):
            blocking()
    assert nothing_is_stored(roots=1)


def test_an_asynchronous_start_inside_atomic_begins_at_commit_or_never(define: Define) -> None:
    cls = define("hello")
    with transaction.atomic():
        agent = cls.create("a")
        task = agent.invoke_async("x")
        assert not AgentExecution.objects.exists()
    assert task.wait_result(30).output == "hello"
    assert AgentExecution.objects.get().execution_id == task.execution_id
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        never = agent.invoke_async("y")
        raise ZeroDivisionError
    agent.invoke("z", timeout=30)
    assert not never.done
    assert AgentExecution.objects.count() == 2


# --- waiting, streaming ---------------------------------------------------------------------------------------


def test_a_wait_that_runs_out_cancels_nothing(define: Define, gate: Any) -> None:
    agent = define(gate).create("a")
    with pytest.raises(ExecutionTimeoutError, match="goes on"):
        agent.invoke("x", timeout=0.05)
    gate.open()
    wait_until(lambda: AgentExecution.objects.filter(status="completed").exists())
    execution_id = AgentExecution.objects.get().execution_id
    assert agent.result(execution_id).output == "answer to x"


def check_events(events: list[StreamEvent], text: str) -> None:
    assert "".join(event.payload["text"] for event in events if event.type == "token") == text
    stored = [event.sequence for event in events if event.type != "token"]
    assert stored == list(range(1, len(stored) + 1))
    assert (events[0].type, events[-1].type) == ("status", "end")


def test_streams_tell_tokens_and_events_in_order(define: Define) -> None:
    agent = define("one two three").create("a")
    events: list[StreamEvent] = []
    assert agent.stream("x", on_event=events.append, timeout=30).output == "one two three"
    check_events(events, "one two three")
    later: list[StreamEvent] = []
    ended = threading.Event()

    def note(event: StreamEvent) -> None:
        later.append(event)
        if event.type == "end":
            ended.set()

    assert agent.stream_async("x", on_event=note).wait_result(30).status == "completed"
    assert ended.wait(30)
    check_events(later, "one two three")


def test_asynchronous_code_awaits_and_iterates(define: Define) -> None:
    agent = define("one two").create("a")

    async def use() -> tuple[Any, list[StreamEvent]]:
        result = await agent.ainvoke("x", timeout=30)
        return result, [event async for event in agent.astream("y")]

    result, events = asyncio.run(use())
    assert result.output == "one two"
    check_events(events, "one two")


# --- knowledge, transcript ------------------------------------------------------------------------------------


def test_knowledge_lasts_and_a_cleared_transcript_does_not(define: Define) -> None:
    cls = define(lambda request: f"{len(request.messages)} {'blue' in request.instructions}")
    agent = cls.create("a")
    assert agent.invoke("x", timeout=30).output == "1 False"
    agent.add_knowledge("The sky is blue.")
    assert agent.invoke("x", timeout=30).output == "3 True"
    agent.clear_transcript()
    assert agent.invoke("x", timeout=30).output == "1 True"
    reset_runtime()
    assert agent.invoke("x", timeout=30).output == "3 True"


def test_a_reserved_id_is_the_id_of_the_run(define: Define) -> None:
    agent, other = (cls.create(name) for cls, name in ((define(), "a"), (define(), "b")))
    reservation = agent.reserve()
    with pytest.raises(InputError, match="'b'"):
        other.start_reserved_async(reservation, "x")
    task = agent.start_reserved_async(reservation, "x")
    assert task.execution_id == reservation.execution_id == task.wait_result(30).execution_id


# --- stop -----------------------------------------------------------------------------------------------------


def test_a_cancel_during_a_provider_call_ends_the_run_as_cancelled(define: Define) -> None:
    from phronomy_django.llm import ScriptedLLM

    agent = define(model=ScriptedLLM(["late"], delay=60)).create("a")
    task = agent.invoke_async("x")
    wait_for_kind(task.execution_id, "llm_call_dispatched")
    assert agent.cancel_async(task.execution_id, reason="no more").wait_result(30) is True
    result = task.wait_result(30)
    assert (result.status, result.reason) == ("cancelled", "cancelled")
    assert kinds(task.execution_id)[-3:] == ["stop_requested", "llm_call_cancelled", "execution_cancelled"]
    row = AgentExecution.objects.get()
    assert (row.stop_kind, row.stop_reason) == ("cancel", "no more")
    assert agent.cancel_async(task.execution_id).wait_result(30) is False


def test_a_cancel_waits_for_a_tool_that_ignores_it_and_keeps_its_result(define: Define) -> None:
    from phronomy_django.agents import ToolContext
    from phronomy_django.llm import call
    from tests.agents.scripts import calls_then

    release, noticed = threading.Event(), threading.Event()

    @tool
    def stubborn(ctx: ToolContext) -> str:
        """Ends when it wants to."""
        assert release.wait(30)
        wait_until(lambda: ctx.cancelled, "the cancel")
        noticed.set()
        return "done all the same"

    agent = define(calls_then([call("stubborn")]), tools=[stubborn]).create("a")
    task = agent.invoke_async("x")
    wait_for_kind(task.execution_id, "tools_dispatched")
    assert agent.cancel_async(task.execution_id).wait_result(30) is True
    assert agent.cancel_async(task.execution_id).wait_result(30) is True
    assert not task.done
    release.set()
    assert task.wait_result(30).status == "cancelled"
    assert noticed.is_set()
    record = JournalRecord.objects.get(execution=task.execution_id, kind="tool_result")
    assert b"done all the same" in bytes(record.content.body)


def test_a_cancel_of_a_reserved_id_waits_for_its_start(define: Define) -> None:
    agent = define("never shown").create("a")
    reservation = agent.reserve()
    cancelled = agent.cancel_async(reservation.execution_id)
    result = agent.start_reserved_async(reservation, "x").wait_result(30)
    assert (result.status, cancelled.wait_result(30)) == ("cancelled", True)
    with pytest.raises(NotFoundError):
        agent.cancel_async("0" * 32).wait_result(30)


def test_a_deadline_and_a_wall_time_limit_stop_a_run(define: Define) -> None:
    from phronomy_django.agents import UsageLimits
    from phronomy_django.llm import ScriptedLLM

    slow = ScriptedLLM(lambda _: "late", delay=60)
    agent = define(model=slow).create("a")
    result = agent.invoke("x", deadline=timezone.now() + timedelta(seconds=0.3), timeout=30)
    assert (result.status, result.reason) == ("cancelled", "deadline")
    with pytest.raises(ExecutionTimeoutError):
        _ = result.output
    limited = define(model=slow, usage_limits=UsageLimits(wall_time=0.05)).create("b")
    result = limited.invoke("x", timeout=30)
    assert (result.status, result.reason) == ("blocked", "usage_limit:wall_time")


def wait_for_kind(execution_id: str, kind: str) -> None:
    wait_until(lambda: kind in kinds(execution_id), kind)
