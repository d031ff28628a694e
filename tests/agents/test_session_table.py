"""The session table, rule by rule: DESIGN §6 read as a table, without a database and without threads."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from phronomy_django.agents.commands import (
    Abandon,
    CancelWork,
    Commit,
    EventName,
    Fail,
    Finish,
    Hold,
    LLMEnded,
    Prepare,
    StartLLM,
    StartTools,
    State,
    Suspend,
    TellLLM,
    ToolEnded,
)
from phronomy_django.agents.run import ApprovalNeed, LLMCallState, Unresolved, Work
from phronomy_django.agents.session import FINAL, TABLE
from phronomy_django.agents.steps import END_ATTEMPTS
from phronomy_django.domain.errors import ConflictError, OutcomeUnknownError, StorageError
from phronomy_django.domain.statuses import StopKind
from tests.agents.table import ANSWER, BOOM, FAILED, LIMITS, NOW, WRONG, World, asks_for, stop_of, tool_done

SEPARATE = replace(LIMITS, separate_end=True)


# --- the barriers ------------------------------------------------------------------------------------------


def test_a_run_without_tools_takes_two_barriers() -> None:
    world = World()
    assert world.asked == [Commit("b1_b2")]
    assert world.commit("b1_b2") == (StartLLM(),)
    assert world.llm(ANSWER) == (Commit("b3_b6"),)
    assert world.commit("b3_b6") == (Finish(),)
    assert world.state == State.FINISHED
    assert world.run.ending is not None
    assert (world.run.ending.status, world.run.ending.output) == ("completed", b'"yes"')
    assert world.run.usage.total_tokens == 5
    assert not world.run.running


def test_application_code_before_the_first_call_takes_a_barrier_of_its_own() -> None:
    world = World(prepared=False)
    assert world.asked == [Commit("b1")]
    assert world.commit("b1") == (Prepare(),)
    assert world.prepare() == (Commit("b2"),)
    assert world.run.instructions == "be kind"
    assert world.commit("b2") == (StartLLM(),)


def test_a_preparation_that_fails_ends_the_run_as_failed() -> None:
    world = World(prepared=False)
    world.commit("b1")
    assert world.prepare(BOOM) == (Commit("b6"),)
    assert world.commit("b6") == (Finish(),)
    assert world.run.ending is not None
    assert (world.run.ending.status, world.run.ending.reason) == ("failed", "preparation_failed")


def test_a_batch_of_tools_takes_two_barriers_more_and_goes_on_when_it_is_complete() -> None:
    world = World().calling()
    assert world.llm(asks_for(3)) == (Commit("b3_b4"),)
    assert world.run.tool_call_count == 3
    assert world.commit("b3_b4") == (StartTools(),)
    assert world.tool(2, "third") == ()
    assert world.tool(0, "first") == ()
    assert world.tool(1, "second") == (Commit("b5_b2"),)
    assert [tool.outcome.text for tool in world.run.tools if tool.outcome] == ["first", "second", "third"]
    assert world.commit("b5_b2") == (StartLLM(),)
    assert world.run.iteration == 2
    world.llm(ANSWER)
    assert world.commit("b3_b6") == (Finish(),)


def test_a_batch_that_was_refused_as_a_whole_is_told_to_the_model_at_once() -> None:
    world = World().calling()
    world.llm(asks_for(2))
    assert world.commit("b3_b4", refused=2) == (Commit("b5_b2"),)


def test_of_a_batch_that_was_refused_in_part_the_rest_runs() -> None:
    world = World().calling()
    world.llm(asks_for(2))
    assert world.commit("b3_b4", refused=1) == (StartTools(),)
    assert world.tool(1) == (Commit("b5_b2"),)


def test_application_code_at_the_end_takes_a_barrier_of_its_own() -> None:
    world = World().calling()
    assert world.llm(ANSWER, SEPARATE) == (Commit("b3"),)
    assert world.commit("b3") == (Commit("b6"),)
    assert world.commit("b6") == (Finish(),)


def test_a_body_that_was_given_up_and_still_runs_puts_the_end_off() -> None:
    world = World().with_tools(1)
    work = world.run.tools[0].work
    assert work is not None
    assert world.tool(0, "timed out", over=False) == (Commit("b5_b2"),)
    world.commit("b5_b2")
    assert world.llm(ANSWER) == (Commit("b3"),)
    assert world.commit("b3") == ()
    assert world.state == State.QUIESCING
    assert world.send(EventName.WORK_ENDED, work.operation_id) == (Commit("b6"),)
    assert world.commit("b6") == (Finish(),)
    assert world.run.ending is not None
    assert world.run.ending.status == "completed"


def test_an_answer_that_does_not_fit_goes_back_to_the_model_until_the_iterations_are_used_up() -> None:
    world = World().calling()
    for _ in range(LIMITS.max_iterations - 1):
        assert world.llm(WRONG) == (Commit("b3_b2"),)
        world.commit("b3_b2")
    assert world.llm(WRONG) == (Commit("b3_b6"),)
    assert world.run.ending is not None
    assert (world.run.ending.status, world.run.ending.reason) == ("failed", "max_iterations")
    assert world.run.ending.failure is not None
    assert "text: missing" in world.run.ending.failure.message


def test_tools_that_the_last_iteration_asks_for_are_not_run() -> None:
    world = World().calling()
    assert world.llm(asks_for(2), replace(LIMITS, max_iterations=1)) == (Commit("b3_b6"),)
    assert world.run.ending is not None
    assert world.run.ending.reason == "max_iterations"
    assert world.run.tool_call_count == 2


def test_the_next_model_is_asked_where_there_is_one() -> None:
    two = replace(LIMITS, model_count=2)
    world = World().calling()
    assert world.llm(FAILED, two) == (Commit("b3_b2"),)
    assert world.run.model_index == 1
    world.commit("b3_b2")
    assert world.llm(FAILED, two) == (Commit("b3_b6"),)
    assert world.run.ending is not None
    assert (world.run.ending.reason, world.run.ending.failure) == ("llm_failed", BOOM)


@pytest.mark.parametrize(
    "outcome", [ANSWER, WRONG, FAILED, asks_for(1)], ids=["answer", "wrong", "failed", "tools"]
)
def test_a_limit_that_was_passed_ends_the_run_and_is_named(outcome: Any) -> None:
    world = World().calling()
    assert world.llm(outcome, replace(LIMITS, model_count=2, exceeded="output_tokens")) == (Commit("b3_b6"),)
    assert world.run.ending is not None
    if outcome is FAILED:
        assert world.run.ending.reason == "llm_failed"
    else:
        assert (world.run.ending.status, world.run.ending.reason) == ("blocked", "usage_limit:output_tokens")


# --- rule 6 -------------------------------------------------------------------------------------------------


def unchanged(world: World, name: EventName, payload: Any) -> bool:
    before = (world.state, world.run)
    return world.send(name, payload) == () and (world.state, world.run) == before


def test_an_answer_to_another_provider_call_changes_nothing() -> None:
    world = World().calling()
    assert unchanged(world, EventName.LLM_ENDED, LLMEnded("another", ANSWER, LIMITS))
    world.send(EventName.STOP, stop_of())
    assert unchanged(world, EventName.LLM_ENDED, LLMEnded("another", ANSWER, LIMITS))
    world.commit("stop")
    assert world.state == State.QUIESCING
    assert unchanged(world, EventName.LLM_ENDED, LLMEnded("another", ANSWER, LIMITS))


def test_a_second_answer_to_the_same_call_changes_nothing() -> None:
    world = World().calling()
    call_id = world.call_id
    world.llm(asks_for(1))
    for state, barrier in ((State.RECORDING, "b3_b4"), (State.RUNNING_TOOLS, "")):
        assert world.state == state
        assert unchanged(world, EventName.LLM_ENDED, LLMEnded(call_id, ANSWER, LIMITS))
        if barrier:
            world.commit(barrier)
    world.tool(0)
    world.commit("b5_b2")
    assert unchanged(world, EventName.LLM_ENDED, LLMEnded(call_id, ANSWER, LIMITS))


def test_a_second_answer_after_a_stop_does_not_count_its_usage_twice() -> None:
    world = World().calling()
    world.send(EventName.STOP, stop_of())
    ended = LLMEnded(world.call_id, ANSWER, LIMITS)
    world.send(EventName.LLM_ENDED, ended)
    assert world.run.usage.total_tokens == 5
    assert unchanged(world, EventName.LLM_ENDED, ended)


def test_a_foreign_and_a_second_tool_result_change_nothing() -> None:
    world = World().with_tools(2)
    assert unchanged(world, EventName.TOOL_ENDED, ToolEnded("another", tool_done()))
    world.tool(0, "first")
    assert unchanged(
        world, EventName.TOOL_ENDED, ToolEnded(world.run.tools[0].tool_invocation_id, tool_done("second"))
    )
    assert world.run.tools[0].outcome == tool_done("first")


def test_a_tool_result_that_comes_after_its_batch_changes_nothing() -> None:
    world = World().with_tools(1)
    late = ToolEnded(world.run.tools[0].tool_invocation_id, tool_done("late"))
    world.tool(0)
    assert unchanged(world, EventName.TOOL_ENDED, late)
    world.commit("b5_b2")
    assert unchanged(world, EventName.TOOL_ENDED, late)


# --- stops ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "status", "reason", "failure"),
    [
        (StopKind.CANCEL, "cancelled", "cancelled", "ExecutionCancelledError"),
        (StopKind.DEADLINE, "cancelled", "deadline", "ExecutionTimeoutError"),
        (StopKind.LIMIT, "blocked", "usage_limit:enough", "UsageLimitExceeded"),
    ],
)
def test_each_kind_of_stop_has_its_ending(kind: StopKind, status: str, reason: str, failure: str) -> None:
    world = World().calling()
    assert world.send(EventName.STOP, stop_of(kind)) == (Commit("stop"),)
    assert world.run.ending is None
    assert world.commit("stop") == (CancelWork(),)
    assert world.send(EventName.WORK_ENDED, world.call_work) == (Commit("b6"),)
    assert world.commit("b6") == (Finish(),)
    assert world.run.ending is not None
    assert world.run.ending.failure is not None
    assert (world.run.ending.status, world.run.ending.reason, world.run.ending.failure.type) == (
        status,
        reason,
        failure,
    )


def test_a_stop_of_the_preparation_waits_for_it() -> None:
    world = World(prepared=False)
    world.commit("b1")
    assert world.send(EventName.STOP, stop_of()) == (Commit("stop"),)
    assert world.commit("stop") == (CancelWork(),)
    assert world.prepare() == (Commit("b6"),)


def test_a_stop_with_nothing_running_ends_at_once() -> None:
    world = World(prepared=False)
    world.send(EventName.STOP, stop_of())
    assert world.commit("b1") == (Commit("stop"),)
    assert world.commit("stop") == (CancelWork(), Commit("b6"))


@pytest.mark.parametrize(
    ("barrier", "path"),
    [
        ("b1_b2", lambda world: world),
        ("b3_b4", lambda world: world.calling().llm(asks_for(2))),
        ("b3_b2", lambda world: world.calling().llm(WRONG)),
        ("b5_b2", lambda world: world.with_tools(1).tool(0)),
    ],
)
def test_a_stop_during_a_commit_waits_for_its_answer_and_nothing_is_started(barrier: str, path: Any) -> None:
    world = World()
    path(world)
    asked = len(world.asked)
    assert world.send(EventName.STOP, stop_of()) == ()
    assert world.commit(barrier) == (Commit("stop"),)
    assert world.commit("stop") == (CancelWork(),)
    assert world.run.running
    for operation_id in sorted(world.run.running)[:-1]:
        assert world.send(EventName.WORK_ENDED, operation_id) == ()
    assert world.send(EventName.WORK_ENDED, max(world.run.running)) == (Commit("b6"),)
    started = [command for command in world.asked[asked:] if isinstance(command, StartLLM | StartTools)]
    assert started == []


@pytest.mark.parametrize("limits", [LIMITS, SEPARATE], ids=["b3_b6", "b3 then b6"])
def test_an_end_that_is_on_its_way_wins_against_a_stop(limits: Any) -> None:
    world = World().calling()
    world.llm(ANSWER, limits)
    assert world.send(EventName.STOP, stop_of()) == ()
    if limits is SEPARATE:
        assert world.commit("b3") == (Commit("b6"),)
        assert world.send(EventName.STOP, stop_of()) == ()
    assert world.commit("b6") == (Finish(),)
    assert world.run.ending is not None
    assert world.run.ending.status == "completed"
    assert not world.run.stop_accepted


def test_of_two_stops_the_first_counts() -> None:
    world = World().calling()
    world.send(EventName.STOP, stop_of(StopKind.DEADLINE))
    world.send(EventName.STOP, stop_of(StopKind.CANCEL))
    world.commit("stop")
    world.send(EventName.STOP, stop_of(StopKind.CANCEL))
    assert world.run.stop is not None
    assert world.run.stop.kind is StopKind.DEADLINE
    assert world.asked.count(Commit("stop")) == 1


def test_what_a_stopped_batch_still_brings_is_kept() -> None:
    world = World().with_tools(2)
    world.send(EventName.STOP, stop_of())
    assert world.tool(0, "before the answer") == ()
    assert world.commit("stop") == (CancelWork(),)
    assert world.tool(1, "after it", over=False) == ()
    work = world.run.tools[1].work
    assert work is not None
    assert world.send(EventName.WORK_ENDED, work.operation_id) == (Commit("b6"),)
    assert [tool.outcome.text for tool in world.run.tools if tool.outcome] == [
        "before the answer",
        "after it",
    ]


# --- commits that fail ---------------------------------------------------------------------------------------


def test_an_end_that_is_refused_is_tried_again_ever_later_and_then_left_to_a_person() -> None:
    world = World().calling()
    world.llm(ANSWER, SEPARATE)
    world.commit("b3")
    delays = []
    for _ in range(END_ATTEMPTS):
        (again,) = world.send(EventName.REFUSED, StorageError("hook"))
        assert isinstance(again, Commit)
        assert again.barrier == "b6"
        delays.append(again.delay)
    assert delays == sorted(set(delays))
    assert delays[0] > 0
    error = StorageError("hook")
    assert world.send(EventName.REFUSED, error) == (Commit("unresolved"),)
    assert "hook" in world.run.unresolved[0].what
    assert world.commit("unresolved") == (Hold(),)
    assert world.state == State.RECOVERY_REQUIRED
    assert world.run.ending is not None
    assert world.run.ending.output == b'"yes"'


def test_an_end_that_comes_through_at_last_is_an_end() -> None:
    world = World().calling()
    world.llm(ANSWER)
    world.send(EventName.REFUSED, StorageError("full"))
    assert world.commit("b6") == (Finish(),)


COMMITTING = {
    State.ADMITTING: lambda world: None,
    State.DISPATCHING: lambda world: world.calling().llm(WRONG),
    State.RECORDING: lambda world: world.calling().llm(asks_for(1)),
    State.ACCEPTING_STOP: lambda world: world.calling().send(EventName.STOP, stop_of()),
    State.ENDING: lambda world: world.calling().llm(ANSWER),
}


@pytest.mark.parametrize("state", COMMITTING)
def test_a_lost_ownership_stops_the_run_here(state: State) -> None:
    world = World()
    COMMITTING[state](world)
    assert world.state == state
    error = ConflictError("token")
    assert world.send(EventName.REFUSED, error) == (Fail(error),)
    assert world.state == State.ERROR


@pytest.mark.parametrize("state", COMMITTING)
def test_an_unknown_commit_is_left_to_recovery_and_never_tried_again(state: State) -> None:
    world = World()
    COMMITTING[state](world)
    error = OutcomeUnknownError("lost")
    assert world.send(EventName.UNKNOWN, error) == (Abandon(error),)
    assert world.state == State.RECOVERY_REQUIRED


# --- approval and recovery ---------------------------------------------------------------------------------


def test_a_batch_with_a_call_for_a_person_is_suspended_as_a_whole() -> None:
    world = World().calling()
    need = ApprovalNeed(shown="{}", facts="{}")
    assert world.llm(replace(asks_for(2), needs=(None, need))) == (Commit("b3_suspend"),)
    assert world.run.tool_call_count == 2
    assert world.commit("b3_suspend") == (Suspend(),)
    assert world.state == State.SUSPENDED


def test_a_stop_that_comes_while_a_run_is_being_suspended_is_accepted() -> None:
    world = World().calling()
    world.llm(replace(asks_for(1), needs=(ApprovalNeed(shown="{}", facts="{}"),)))
    world.send(EventName.STOP, stop_of())
    assert world.commit("b3_suspend") == (Commit("stop"),)
    assert world.commit("stop") == (CancelWork(), Commit("b6"))


def resumed(entry: str, **changes: Any) -> World:
    world = World(resumed=lambda run: replace(run, entry=entry, started_at=NOW, **changes))
    return world


@pytest.mark.parametrize(
    ("entry", "commands", "state"),
    [
        (State.PREPARING, (Prepare(),), State.PREPARING),
        (State.CALLING_LLM, (StartLLM(),), State.CALLING_LLM),
        (State.RUNNING_TOOLS, (StartTools(),), State.RUNNING_TOOLS),
        (State.DISPATCHING, (Commit("b2"),), State.DISPATCHING),
        (State.SUSPENDED, (Suspend(),), State.SUSPENDED),
    ],
)
def test_a_run_goes_on_where_its_rows_say_and_only_after_that_is_committed(
    entry: State, commands: Any, state: State
) -> None:
    call = LLMCallState(llm_call_id="c", ordinal=1, model_index=0, work=Work(operation_id="o", pool="llm"))
    world = resumed(entry, call=call if entry == State.CALLING_LLM else None)
    assert world.asked == [Commit("resume")]
    assert world.commit("resume") == commands
    assert world.state == state


def test_what_a_person_said_of_a_provider_call_takes_the_place_of_its_answer() -> None:
    call = LLMCallState(llm_call_id="c", ordinal=1, model_index=0, work=Work(operation_id="o", pool="llm"))
    world = resumed(State.CALLING_LLM, call=call, said=ANSWER, iteration=1)
    assert world.commit("resume") == (TellLLM(),)
    assert world.llm(ANSWER) == (Commit("b3_b6"),)


def test_what_nobody_can_know_is_committed_and_held() -> None:
    world = resumed(State.RUNNING_TOOLS, unresolved=(Unresolved(subject_id="s", attempt=1, what="tool"),))
    assert world.asked == [Commit("unresolved")]
    assert world.commit("unresolved") == (Hold(),)
    assert world.state == State.RECOVERY_REQUIRED


def test_a_stop_during_a_resumption_starts_nothing() -> None:
    world = resumed(State.PREPARING)
    assert world.send(EventName.STOP, stop_of()) == ()
    assert world.commit("resume") == (Commit("stop"),)
    assert world.commit("stop") == (CancelWork(), Commit("b6"))


# --- the table as a whole --------------------------------------------------------------------------------------

#: What is dropped on purpose, by state: facts that cannot be, or that must change nothing there (rule 6).
DROPPED = {
    State.ADMITTING: {"prepared", "llm_ended", "tool_ended"},
    State.PREPARING: {"resume", "begin", "committed", "refused", "unknown", "llm_ended", "tool_ended"},
    State.DISPATCHING: {"resume", "begin", "prepared", "llm_ended", "tool_ended"},
    State.CALLING_LLM: {"resume", "begin", "committed", "refused", "unknown", "prepared", "tool_ended"},
    State.RECORDING: {"resume", "begin", "prepared", "llm_ended", "tool_ended"},
    State.RUNNING_TOOLS: {"resume", "begin", "committed", "refused", "unknown", "prepared", "llm_ended"},
    State.ACCEPTING_STOP: {"resume", "begin"},
    State.QUIESCING: {"resume", "begin", "committed", "refused", "unknown"},
    State.ENDING: {"begin", "llm_ended", "tool_ended", "resume"},
    State.RESUMING: {"begin", "prepared", "llm_ended", "tool_ended", "resume"},
    State.HOLDING: {"begin", "prepared", "llm_ended", "tool_ended", "resume"},
    State.SUSPENDING: {"begin", "prepared", "llm_ended", "tool_ended", "resume"},
    State.AUTHORIZING: {"begin", "prepared", "llm_ended", "tool_ended", "resume"},
}


def test_every_event_in_every_state_is_a_rule_or_dropped_on_purpose() -> None:
    taken: dict[str, set[str]] = {state: set() for state in DROPPED}
    for rule in TABLE.rules:
        taken[rule.state].add(rule.event)
    assert {state: {str(name) for name in EventName} - taken[state] for state in DROPPED} == DROPPED
    assert set(TABLE.states) == set(DROPPED) | set(FINAL)


def test_every_final_state_says_how_the_session_ended() -> None:
    assert {state: str(ending) for state, ending in TABLE.endings.items()} == {
        State.FINISHED: "finished",
        State.SUSPENDED: "halted",
        State.ERROR: "error",
        State.RECOVERY_REQUIRED: "recovery_required",
    }
