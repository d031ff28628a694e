"""What a process left unfinished is classified from its rows alone and goes on, or waits for a person (DESIGN §7)."""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Callable
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from phronomy_django.agents import Agent, ToolContext, register, tool
from phronomy_django.agents.registry import unregister
from phronomy_django.domain.messages import LLMRequest, ToolMessage
from phronomy_django.errors import (
    AgentBusyError,
    ConflictError,
    DefinitionMismatchError,
    InputError,
    NotFoundError,
    ResolutionRequiredError,
)
from phronomy_django.llm import ScriptedLLM, call
from phronomy_django.models import (
    AgentExecution,
    AgentRoot,
    LLMCall,
    OffloadOperation,
    RecoveryResolution,
    ToolInvocation,
)
from phronomy_django.runtime import reset_runtime, start_hosting
from phronomy_django.signals import recovery_required
from phronomy_django.store import mark_lost
from tests.agents.conftest import Define
from tests.agents.scripts import kinds
from tests.waiting import wait_until


class Crash:
    """Bodies that hang until the runtime is gone, as they would in a process that is killed."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.gone = threading.Event()
        self.bodies = 0

    def body(self) -> None:
        """Hang in the first life; return in the next."""
        self.bodies += 1
        if not self.gone.is_set():
            self.entered.set()
            assert self.gone.wait(30)
            raise SystemExit  # what a killed process would have done next

    def kill(self) -> None:
        assert self.entered.wait(30)
        start_hosting().shutdown(0.0, 0.2)
        self.gone.set()
        reset_runtime()
        mark_lost(0.0, "default")


@pytest.fixture
def crash() -> Crash:
    return Crash()


def tool_script(request: LLMRequest) -> Any:
    last = request.messages[-1]
    return f"told: {last.content}" if isinstance(last, ToolMessage) else call("pay")


def paying(define: Define, crash: Crash, **options: Any) -> type[Agent]:
    @tool(**options)
    def pay(ctx: ToolContext) -> str:
        """Pay."""
        crash.body()
        return f"paid in attempt {ctx.attempt}"

    return define(tool_script, tools=[pay])


def left_behind(cls: type[Agent], crash: Crash) -> tuple[Agent, str]:
    """An agent whose run is in the middle of its body when its runtime dies."""
    agent = cls.create("a")
    task = agent.invoke_async("go")
    crash.kill()
    return agent, task.execution_id


def test_a_provider_call_is_made_again_under_the_same_id_and_manifest(define: Define, crash: Crash) -> None:
    def script(request: LLMRequest) -> str:
        crash.body()
        return f"answer to {len(request.messages)} message"

    agent, execution_id = left_behind(define(script), crash)
    before = LLMCall.objects.get()
    assert agent.resume(execution_id).wait_result(30).output == "answer to 1 message"
    after = LLMCall.objects.get()
    assert (after.llm_call_id, after.manifest_content_id) == (before.llm_call_id, before.manifest_content_id)
    operation = OffloadOperation.objects.get()
    assert (operation.attempt, operation.state) == (2, "succeeded")
    assert kinds(execution_id) == [
        "input_received",
        "llm_call_dispatched",
        "execution_resumed",
        "llm_call_succeeded",
        "execution_completed",
    ]


def test_a_replay_safe_tool_runs_again_with_its_key_and_a_next_attempt(define: Define, crash: Crash) -> None:
    agent, execution_id = left_behind(paying(define, crash, replay_safe=True), crash)
    assert agent.resume(execution_id).wait_result(30).output == "told: paid in attempt 2"
    assert crash.bodies == 2


def test_the_start_of_a_runtime_takes_up_what_it_finds(define: Define, crash: Crash) -> None:
    _, execution_id = left_behind(paying(define, crash, replay_safe=True), crash)
    start_hosting()
    wait_until(lambda: AgentExecution.objects.get(pk=execution_id).status == "completed", "the end")


def held(define: Define, crash: Crash) -> tuple[Agent, AgentExecution, str]:
    """A tool that is not replay-safe was under way: its execution, held, and the step that nobody can know."""
    agent, execution_id = left_behind(paying(define, crash), crash)
    with pytest.raises(ResolutionRequiredError, match="tool 'pay'"):
        agent.resume(execution_id).wait_result(30)
    execution = AgentExecution.objects.get(pk=execution_id)
    assert (execution.status, execution.recovery_disposition) == ("active", "resolution_required")
    assert kinds(execution_id)[-1] == "resolution_required"
    return agent, execution, ToolInvocation.objects.get().tool_invocation_id


@pytest.mark.parametrize(
    ("outcome", "given", "told", "bodies"),
    [
        ("succeeded", {"result": "paid on Monday"}, "told: paid on Monday", 1),
        ("succeeded", {"result": {"paid": 3}}, 'told: {"paid": 3}', 1),
        ("failed", {"error": "the bank says no"}, "told: the bank says no", 1),
        ("not_performed", {}, "told: paid in attempt 2", 2),
    ],
)
def test_what_nobody_can_know_is_said_by_a_person(
    define: Define, crash: Crash, outcome: str, given: dict[str, Any], told: str, bodies: int
) -> None:
    agent, execution, subject = held(define, crash)
    assert crash.bodies == 1
    task = agent.resolve(
        execution.execution_id,
        expected_execution_revision=execution.execution_revision,
        subject=subject,
        outcome=outcome,
        **given,
    )
    result = task.wait_result(30)
    assert (result.status, result.output, crash.bodies) == ("completed", told, bodies)
    audit = RecoveryResolution.objects.get()
    assert (audit.subject_id, audit.attempt, audit.outcome) == (subject, 1, outcome)
    assert AgentExecution.objects.get().recovery_disposition == ""


def test_a_signal_tells_that_a_person_is_needed(define: Define, crash: Crash) -> None:
    heard: list[tuple[str, str]] = []

    def listen(agent_id: str, reason: str, **_: Any) -> None:
        heard.append((agent_id, reason))

    recovery_required.connect(listen)
    try:
        held(define, crash)
        wait_until(lambda: heard, "the signal")
    finally:
        recovery_required.disconnect(listen)
    assert heard[0][0] == "a"
    assert "tool 'pay'" in heard[0][1]


def test_a_held_execution_stays_held_whoever_asks(define: Define, crash: Crash) -> None:
    agent, execution, _ = held(define, crash)
    for _ in range(2):
        with pytest.raises(ResolutionRequiredError):
            agent.resume(execution.execution_id).wait_result(30)
    reset_runtime()
    start_hosting()
    with pytest.raises(ResolutionRequiredError):
        agent.resume(execution.execution_id).wait_result(30)
    execution.refresh_from_db()
    assert kinds(execution.execution_id).count("resolution_required") == 1

    def refusal() -> str:
        with pytest.raises(AgentBusyError) as caught:
            agent.invoke("more", timeout=30)
        return str(caught.value)

    wait_until(lambda: "resolve it with manage.py phronomy_recover" in refusal(), "the reason")


def test_a_resolution_names_what_was_shown_and_is_never_changed(define: Define, crash: Crash) -> None:
    agent, execution, subject = held(define, crash)
    say: Callable[..., Any] = lambda **given: agent.resolve(  # noqa: E731
        execution.execution_id,
        **{
            "expected_execution_revision": execution.execution_revision,
            "subject": subject,
            "outcome": "succeeded",
            "result": 1,
            **given,
        },
    )
    with pytest.raises(ConflictError, match="look at it again"):
        say(expected_execution_revision=execution.execution_revision - 1)
    with pytest.raises(ConflictError, match="no subject"):
        say(subject="0" * 32)
    with pytest.raises(NotFoundError):
        say(subject="nonsense")
    with pytest.raises(InputError, match="needs a result"):
        say(result=None)
    with pytest.raises(InputError, match="has no error"):
        say(error="x")
    with pytest.raises(InputError, match="one of: succeeded, failed, not_performed"):
        say(outcome="done")
    with pytest.raises(Exception, match="result"):
        say(result={1, 2})
    assert RecoveryResolution.objects.count() == 0
    assert say().wait_result(30).output == "told: 1"
    with pytest.raises(ConflictError):
        say(outcome="failed", result=None, error="no")
    assert RecoveryResolution.objects.count() == 1


def test_a_provider_call_that_may_not_be_repeated_waits_for_a_person(define: Define, crash: Crash) -> None:
    def script(request: LLMRequest) -> str:
        crash.body()
        return "never"

    agent, execution_id = left_behind(define(script, replay_safe=False), crash)
    with pytest.raises(ResolutionRequiredError, match="provider call"):
        agent.resume(execution_id).wait_result(30)
    execution, subject = AgentExecution.objects.get(), LLMCall.objects.get().llm_call_id
    task = agent.resolve(
        execution_id,
        expected_execution_revision=execution.execution_revision,
        subject=subject,
        outcome="succeeded",
        result="It was sold out.",
    )
    assert task.wait_result(30).output == "It was sold out."
    assert OffloadOperation.objects.get().attempt == 1


def test_an_accepted_stop_is_looked_at_first(define: Define, crash: Crash) -> None:
    cls = paying(define, crash, replay_safe=True)
    agent = cls.create("a")
    task = agent.invoke_async("go")
    assert crash.entered.wait(30)
    assert agent.cancel_async(task.execution_id).wait_result(30) is True
    crash.kill()
    result = agent.resume(task.execution_id).wait_result(30)
    assert (result.status, crash.bodies) == ("cancelled", 1)
    assert ToolInvocation.objects.get().status == "cancelled"


def test_a_cancel_reaches_an_execution_that_is_not_live(define: Define, crash: Crash) -> None:
    agent, execution_id = left_behind(paying(define, crash, replay_safe=True), crash)
    crash.gone.clear()
    crash.entered.clear()
    stop = agent.cancel_async(execution_id)
    assert stop.wait_result(30) is True
    crash.gone.set()
    wait_until(lambda: AgentExecution.objects.get().status == "cancelled", "the end")


def test_another_version_of_the_code_holds_and_names_both(define: Define, crash: Crash) -> None:
    first = paying(define, crash, replay_safe=True)
    agent, execution_id = left_behind(first, crash)
    unregister(first)
    attributes = {"definition_id": first.definition_id, "definition_version": 2, "model": ScriptedLLM(["x"])}
    second = register(type("Second", (Agent,), attributes))
    try:
        with pytest.raises(DefinitionMismatchError, match=r"version 1; this process has .* version 2"):
            second("a").resume(execution_id).wait_result(30)
        execution = AgentExecution.objects.get()
        assert (execution.status, execution.recovery_disposition) == ("active", "resolution_required")
    finally:
        unregister(second)
    register(first)
    assert agent.resume(execution_id).wait_result(30).output == "told: paid in attempt 2"


def test_nothing_to_resume_is_answered_from_the_rows(define: Define) -> None:
    agent = define("ok").create("a")
    done = agent.invoke("x", timeout=30)
    assert agent.resume(done.execution_id).wait_result(30).output == "ok"
    with pytest.raises(NotFoundError):
        agent.resume("0" * 32).wait_result(30)


# --- the commands -----------------------------------------------------------------------------------------------


def run(*words: str) -> str:
    out = io.StringIO()
    call_command(*words, stdout=out, no_color=True)
    return out.getvalue()


def test_the_commands_list_and_resolve_what_is_held(define: Define, crash: Crash) -> None:
    assert "Nothing waits" in run("phronomy_recover")
    _, execution, subject = held(define, crash)
    (item,) = json.loads(run("phronomy_recover", "--json"))
    assert (item["kind"], item["subject_id"], item["execution_id"]) == (
        "resolution",
        subject,
        execution.execution_id,
    )
    assert f"resolve {execution.execution_id} {subject}" in run("phronomy_recover")
    assert "1 unknown outcomes" in run("phronomy_status")
    with pytest.raises(CommandError, match="needs a result"):
        run("phronomy_recover", "resolve", execution.execution_id, subject, "--outcome", "succeeded")
    with pytest.raises(CommandError, match="no JSON"):
        run(
            "phronomy_recover",
            "resolve",
            execution.execution_id,
            subject,
            "--outcome=succeeded",
            "--result=done",
        )
    with pytest.raises(CommandError, match="look at it again"):
        run(
            "phronomy_recover",
            "resolve",
            execution.execution_id,
            subject,
            "--outcome=not_performed",
            "--revision=1",
        )
    with pytest.raises(CommandError, match="no user 'nobody'"):
        run(
            "phronomy_recover",
            "resolve",
            execution.execution_id,
            subject,
            "--outcome=not_performed",
            "--by=nobody",
        )
    words = (
        "--outcome",
        "succeeded",
        "--result",
        '"by hand"',
        "--revision",
        str(execution.execution_revision),
    )
    assert "Stored" in run("phronomy_recover", "resolve", execution.execution_id, subject, *words)
    told = run("phronomy_recover", "run")
    assert "is completed" in told or AgentExecution.objects.get().status == "completed"
    assert "Nothing waits" in run("phronomy_recover")


def test_the_commands_decide_and_a_sweep_finds_it_without_a_hint(define: Define) -> None:
    @tool(requires_approval=True)
    def pay(amount: int) -> str:
        """Pay."""
        return f"paid {amount}"

    agent = define(lambda request: tool_reply(request), tools=[pay]).create("a")
    waiting = agent.invoke("go", timeout=30)
    assert "pay(amount=3)" in run("phronomy_recover")
    assert "Stored" in run("phronomy_recover", "approve", waiting.approval_request, "--reason", "fine")
    with pytest.raises(CommandError, match="approved already"):
        run("phronomy_recover", "reject", waiting.approval_request)
    with pytest.raises(CommandError, match="There is no approval request"):
        run("phronomy_recover", "approve", "nonsense")
    assert AgentExecution.objects.get().status == "suspended"
    start_hosting()._sweep()
    wait_until(lambda: AgentExecution.objects.get().status == "completed", "the end")
    assert agent.result(waiting.execution_id).output == "paid 3"


def tool_reply(request: LLMRequest) -> Any:
    last = request.messages[-1]
    return last.content if isinstance(last, ToolMessage) else call("pay", amount=3)


def test_the_status_says_what_is_wrong_by_its_exit_code(define: Define, crash: Crash) -> None:
    assert "Everything is well" in run("phronomy_status")
    left_behind(paying(define, crash, replay_safe=True), crash)
    with pytest.raises(SystemExit) as caught:
        run("phronomy_status")
    assert caught.value.code == 1
    out = io.StringIO()
    with pytest.raises(SystemExit):
        call_command("phronomy_status", "--json", stdout=out)
    said = json.loads(out.getvalue())
    assert said["healthy"] is False
    assert "1 unfinished executions" in said["problems"][0]
    assert said["executions"] == {"active": 1}
    assert AgentRoot.objects.count() == 1
