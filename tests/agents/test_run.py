"""One run: barriers, tools, limits, errors that go back to the model."""

from __future__ import annotations

import threading
from decimal import Decimal
from typing import Any

import pytest
from pydantic import BaseModel

from phronomy_django.agents import File, Image, Text, ToolContext, ToolError, ToolRetry, UsageLimits, tool
from phronomy_django.domain.messages import LLMRequest, LLMResponse, UserMessage
from phronomy_django.errors import ExecutionFailedError
from phronomy_django.llm import (
    LLMAdapter,
    LLMError,
    LLMErrorKind,
    RetryPolicy,
    ScriptedLLM,
    call,
)
from phronomy_django.models import (
    AgentExecution,
    AgentRoot,
    ExecutionEvent,
    JournalRecord,
    LLMCall,
    OffloadOperation,
    ToolInvocation,
)
from tests.agents.conftest import Define
from tests.agents.scripts import calls_then, kinds, results
from tests.testapp.models import Order

NO_WAIT = RetryPolicy(max_attempts=3, base=0.001, jitter=0)


def test_a_run_without_tools_tells_its_story_in_the_rows(define: Define) -> None:
    agent = define("Hello.").create("a")
    result = agent.invoke("Hi", timeout=30)
    assert (result.status, result.output) == ("completed", "Hello.")
    assert kinds(result.execution_id) == [
        "input_received",
        "llm_call_dispatched",
        "llm_call_succeeded",
        "execution_completed",
    ]
    execution = AgentExecution.objects.get(pk=result.execution_id)
    assert (execution.status, execution.phase, execution.iteration) == ("completed", "ended", 1)
    assert execution.finished_at is not None
    call_row = LLMCall.objects.get(execution=execution)
    assert (call_row.status, call_row.ordinal) == ("succeeded", 1)
    assert execution.input_tokens == call_row.input_tokens == result.usage.input_tokens > 0
    assert OffloadOperation.objects.get(execution=execution).state == "succeeded"
    root = AgentRoot.objects.get(agent_id="a")
    assert (root.lifecycle_status, root.journal_position, root.agent_revision) == ("idle", 4, 2)
    assert agent.result(result.execution_id).output == "Hello."


def test_the_next_run_is_shown_the_earlier_ones(define: Define) -> None:
    agent = define(lambda request: f"{len(request.messages)} messages").create("a")
    assert [agent.invoke("x", timeout=30).output for _ in range(3)] == [
        "1 messages",
        "3 messages",
        "5 messages",
    ]


def test_the_context_window_bounds_what_a_run_is_shown(define: Define) -> None:
    agent = define(lambda request: str(len(request.messages)), context_window=2).create("a")
    assert [agent.invoke("x", timeout=30).output for _ in range(4)] == ["1", "3", "3", "3"]


def test_results_come_in_request_order_whatever_the_order_of_completion(define: Define) -> None:
    second_done = threading.Event()

    @tool
    def first() -> str:
        """Ends last."""
        assert second_done.wait(20), "the two tools did not overlap"
        return "one"

    @tool
    def second() -> str:
        """Ends first."""
        second_done.set()
        return "two"

    def script(request: LLMRequest) -> Any:
        return " ".join(result.content for result in results(request)) or [call("first"), call("second")]

    result = define(script, tools=[first, second]).create("a").invoke("go", timeout=30)
    assert result.output == "one two"
    invocations = ToolInvocation.objects.filter(execution=result.execution_id).order_by("position")
    assert [(row.tool_name, row.status) for row in invocations] == [
        ("first", "succeeded"),
        ("second", "succeeded"),
    ]
    assert kinds(result.execution_id)[3:7] == [
        "tools_dispatched",
        "tool_result",
        "tool_result",
        "llm_call_dispatched",
    ]


@pytest.mark.parametrize(
    ("asked", "status", "told"),
    [
        (call("nowhere"), "refused", "There is no tool 'nowhere'. The tools are: scale."),
        (call("scale", factor="much"), "refused", "factor"),
        (call("scale"), "refused", "factor"),
        (call("scale", factor=13), "failed", "ValueError: unlucky"),
        (call("scale", factor=14), "failed", "Ask for less."),
        (call("scale", factor=2), "succeeded", "4.0"),
    ],
)
def test_what_goes_wrong_with_a_tool_goes_back_to_the_model(
    define: Define, asked: Any, status: str, told: str
) -> None:
    @tool
    def scale(factor: int) -> Decimal:
        """Twice the factor."""
        if factor == 13:
            raise ValueError("unlucky")
        if factor == 14:
            raise ToolError("Ask for less.")
        return Decimal(factor) * Decimal("2.0")

    seen: list[str] = []

    def script(request: LLMRequest) -> Any:
        seen.extend(result.content for result in results(request))
        return "done" if results(request) else asked

    result = define(script, tools=[scale]).create("a").invoke("go", timeout=30)
    assert result.output == "done"
    assert told in seen[0]
    assert ToolInvocation.objects.get(execution=result.execution_id).status == status


def test_a_model_that_only_asks_for_tools_fails_at_max_iterations_and_the_last_calls_never_run(
    define: Define,
) -> None:
    ran: list[int] = []

    @tool
    def again() -> str:
        """Once more."""
        ran.append(1)
        return "more"

    result = (
        define(lambda _: call("again"), tools=[again], max_iterations=3).create("a").invoke("go", timeout=30)
    )
    assert (result.status, result.reason, len(ran)) == ("failed", "max_iterations", 2)
    with pytest.raises(ExecutionFailedError, match="max_iterations"):
        _ = result.output
    statuses = ToolInvocation.objects.filter(execution=result.execution_id).values_list("status", flat=True)
    assert sorted(statuses) == ["not_performed", "succeeded", "succeeded"]
    assert kinds(result.execution_id).count("tool_result") == 3


@pytest.mark.parametrize(
    ("limits", "name"),
    [
        (UsageLimits(input_tokens=0), "input_tokens"),
        (UsageLimits(output_tokens=0), "output_tokens"),
        (UsageLimits(total_tokens=1), "total_tokens"),
        (UsageLimits(tool_calls=1), "tool_calls"),
        (UsageLimits(cost=Decimal("0.5")), "cost"),
    ],
)
def test_a_passed_limit_blocks_the_run_and_is_named(define: Define, limits: UsageLimits, name: str) -> None:
    @tool
    def noop() -> str:
        """Nothing."""
        return ""

    class Costly(ScriptedLLM):
        async def complete(self, request: LLMRequest) -> LLMResponse:
            response = await super().complete(request)
            usage = type(response.usage)(
                response.usage.input_tokens,
                response.usage.output_tokens,
                Decimal(1) if name == "cost" else None,
            )
            return LLMResponse(
                response.text, response.tool_calls, usage, response.model, response.finish_reason
            )

    model = Costly(calls_then([call("noop"), call("noop")]))
    result = define(model=model, tools=[noop], usage_limits=limits).create("a").invoke("go", timeout=30)
    assert (result.status, result.reason) == ("blocked", f"usage_limit:{name}")
    assert name in str(result.error)


def test_async_and_cooperative_tools_run_and_a_query_on_the_loop_is_refused(define: Define) -> None:
    @tool
    async def later() -> str:
        """A coroutine."""
        return "async"

    @tool(cooperative=True)
    def now() -> str:
        """On the loop."""
        return "loop"

    @tool(cooperative=True)
    def query() -> int:
        """Blocks the loop."""
        return Order.objects.count()

    def script(request: LLMRequest) -> Any:
        found = [result.content for result in results(request)]
        return " | ".join(found) if found else [call("later"), call("now"), call("query")]

    output = define(script, tools=[later, now, query]).create("a").invoke("go", timeout=30).output
    assert output.startswith("async | loop | EventLoopBlockingError: ")


def test_a_replay_safe_tool_is_tried_again_with_the_same_idempotency_key(define: Define) -> None:
    seen: list[tuple[str, int]] = []

    @tool(replay_safe=True, retry=ToolRetry(max_attempts=3, base=0.001))
    def flaky(ctx: ToolContext) -> str:
        """Works the third time."""
        seen.append((ctx.idempotency_key, ctx.attempt))
        if ctx.attempt < 3:
            raise OSError("not yet")
        return "at last"

    result = define(calls_then([call("flaky")]), tools=[flaky]).create("a").invoke("go", timeout=30)
    assert [attempt for _, attempt in seen] == [1, 2, 3]
    assert len({key for key, _ in seen}) == 1
    operation = OffloadOperation.objects.get(execution=result.execution_id, kind="tool")
    assert (operation.attempt, operation.state, operation.subject_id) == (3, "succeeded", seen[0][0])


def test_a_tool_that_times_out_is_told_and_the_run_ends_only_when_its_body_has(define: Define) -> None:
    release = threading.Event()

    @tool(timeout=0.05)
    def slow(ctx: ToolContext) -> str:
        """Ignores its timeout."""
        assert release.wait(30)
        return "late"

    told: list[str] = []

    def script(request: LLMRequest) -> Any:
        told.extend(result.content for result in results(request))
        return "done" if told else call("slow")

    task = define(script, tools=[slow]).create("a").invoke_async("go")
    followed = threading.Event()
    for _ in range(2000):
        if "llm_call_succeeded" in kinds(task.execution_id)[4:]:
            break
        followed.wait(0.005)
    assert "0.05 s" in told[0]
    assert not task.done
    assert AgentExecution.objects.get(pk=task.execution_id).status == "active"
    release.set()
    assert task.wait_result(30).output == "done"
    operation = OffloadOperation.objects.get(execution=task.execution_id, kind="tool")
    assert (operation.state, operation.abandoned) == ("failed", False)


def test_redacted_arguments_do_not_reach_the_events(define: Define) -> None:
    @tool(redact=("card",))
    def pay(card: str, amount: int) -> str:
        """Pay."""
        return "paid"

    script = calls_then([call("pay", card="4111-1111", amount=3)])
    result = define(script, tools=[pay]).create("a").invoke("go", timeout=30)
    payloads = str(
        list(ExecutionEvent.objects.filter(execution=result.execution_id).values_list("payload", flat=True))
    )
    assert "4111" not in payloads
    assert "'amount': 3" in payloads


def test_more_tools_than_slots_all_run(define: Define) -> None:
    @tool
    def number(value: int) -> int:
        """The value."""
        return value

    def script(request: LLMRequest) -> Any:
        found = [result.content for result in results(request)]
        return ",".join(found) if found else [call("number", value=value) for value in range(40)]

    result = define(script, tools=[number]).create("a").invoke("go", timeout=60)
    assert result.output == ",".join(map(str, range(40)))
    assert set(OffloadOperation.objects.values_list("state", flat=True)) == {"succeeded"}


class Verdict(BaseModel):
    mark: int
    words: str


def test_a_structured_answer_that_does_not_fit_goes_back_until_it_does(define: Define) -> None:
    model = ScriptedLLM(['{"mark": "high"}', '{"mark": 3, "words": "fine"}'])
    result = define(model=model, output_type=Verdict).create("a").invoke("judge", timeout=30)
    assert result.output == Verdict(mark=3, words="fine")
    assert "mark" in model.requests[1].messages[-1].text
    assert kinds(result.execution_id).count("answer_refused") == 1


def test_the_next_model_is_tried_when_one_fails_for_good(define: Define) -> None:
    refusing = ScriptedLLM([LLMError("no", kind=LLMErrorKind.REFUSED, model="first")], name="first")
    result = (
        define(model=[refusing, ScriptedLLM(["hello"], name="second")]).create("a").invoke("go", timeout=30)
    )
    assert result.output == "hello"
    rows = LLMCall.objects.filter(execution=result.execution_id).order_by("ordinal")
    assert [row.status for row in rows] == ["failed", "succeeded"]


def test_a_passing_failure_of_a_provider_is_tried_again_under_the_same_call(define: Define) -> None:
    busy = LLMError("busy", kind=LLMErrorKind.RATE_LIMITED, model="m")
    model = ScriptedLLM([busy, busy, "hello"])
    result = define(model=model, llm_retry=NO_WAIT).create("a").invoke("go", timeout=30)
    assert result.output == "hello"
    row = LLMCall.objects.get(execution=result.execution_id)
    assert (row.attempts, row.status) == (3, "succeeded")


def test_a_provider_that_fails_for_good_fails_the_run_with_its_error(define: Define) -> None:
    model = ScriptedLLM([LLMError("the key is wrong", kind=LLMErrorKind.AUTHENTICATION, model="m")])
    result = define(model=model).create("a").invoke("go", timeout=30)
    assert (result.status, result.reason) == ("failed", "llm_failed")
    assert "the key is wrong" in str(result.error)
    assert AgentRoot.objects.get(agent_id="a").lifecycle_status == "idle"


def test_images_and_files_reach_the_adapter_as_bytes_and_are_stored_once(define: Define) -> None:
    seen: list[LLMRequest] = []

    class Looking(LLMAdapter):
        name = "looking"

        async def complete(self, request: LLMRequest) -> LLMResponse:
            seen.append(request)
            return LLMResponse("seen")

    agent = define(model=Looking()).create("a")
    parts = [Text("look"), Image(b"png-bytes"), File(b"pdf-bytes", "application/pdf", "a.pdf")]
    assert agent.invoke(parts, timeout=30).output == "seen"
    message = seen[0].messages[-1]
    assert isinstance(message, UserMessage)
    image, file = message.parts[1], message.parts[2]
    assert isinstance(image, Image) and isinstance(file, File)
    expected = {image.content_id: b"png-bytes", file.content_id: b"pdf-bytes"}
    assert seen[0].contents == expected
    assert agent.invoke("and again", timeout=30).output == "seen"
    assert seen[1].contents == expected, "the bytes of an earlier run come from the database"


def test_text_that_no_database_holds_is_replaced_visibly_and_the_run_goes_on(define: Define) -> None:
    @tool
    def dirty(text: str) -> str:
        """Echo."""
        return text + "\x00\ud800"

    def script(request: LLMRequest) -> Any:
        found = results(request)
        return found[0].content + "\x00!" if found else call("dirty", text="a\x00b")

    result = define(script, tools=[dirty]).create("a").invoke("go", timeout=30)
    assert result.status == "completed"
    assert "\x00" not in result.output
    assert "\ufffd" in result.output


def test_every_journal_record_is_numbered_without_a_gap(define: Define) -> None:
    agent = define("ok").create("a")
    for _ in range(3):
        agent.invoke("x", timeout=30)
    sequences = list(JournalRecord.objects.order_by("sequence").values_list("sequence", flat=True))
    assert sequences == list(range(1, 13))
