"""The guards and actions of the session table: pure functions of the run and the event.

An action gives the run as it is afterwards and the commands that it asks for; it starts and commits nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from phronomy_django.agents.commands import (
    PREPARATION,
    Abandon,
    CancelWork,
    Command,
    Commit,
    Committed,
    EventName,
    Fail,
    Limits,
    LLMEnded,
    Prepare,
    StartLLM,
    StartTools,
    State,
    Step,
    TellLLM,
    ToolEnded,
)
from phronomy_django.agents.run import Ending, Failure, ProviderOutcome, Run, Stop, Unresolved
from phronomy_django.domain.errors import ConflictError
from phronomy_django.domain.statuses import ExecutionStatus, StopKind
from phronomy_django.engine import SessionEvent

__all__ = ["END_ATTEMPTS", "ending_after_answer", "ending_of_stop"]

#: How often the terminal commit is tried before a person has to look (HARD_POINTS 12).
END_ATTEMPTS = 5


# --- actions: facts -----------------------------------------------------------------------------------


def live(run: Run, event: SessionEvent) -> Run:
    committed: Committed = event.payload
    return replace(run, running=run.running | committed.work, **committed.changes)


def note_stop(run: Run, event: SessionEvent) -> Step:
    stop: Stop = event.payload
    return (run if run.stop is not None else replace(run, stop=stop)), ()


def note_tool(run: Run, event: SessionEvent) -> Step:
    ended: ToolEnded = event.payload
    tools = tuple(
        replace(tool, outcome=ended.outcome)
        if tool.tool_invocation_id == ended.tool_invocation_id and tool.outcome is None
        else tool
        for tool in run.tools
    )
    return replace(run, tools=tools, running=run.running - {ended.over}), ()


def note_llm(run: Run, event: SessionEvent) -> Step:
    """A provider call that ends after a stop was accepted: its usage counts, its answer does not."""
    return with_outcome(run, event), ()


def with_outcome(run: Run, event: SessionEvent, **changes: Any) -> Run:
    ended: LLMEnded = event.payload
    usage = run.usage if ended.outcome.response is None else run.usage + ended.outcome.response.usage
    return replace(run, outcome=ended.outcome, usage=usage, running=run.running - {ended.over}, **changes)


def ignore(run: Run, event: SessionEvent) -> Step:
    return run, ()


def note_work(run: Run, event: SessionEvent) -> Step:
    return replace(run, running=run.running - {event.payload}), ()


# --- guards -------------------------------------------------------------------------------------------


def stop_wanted(run: Run, event: SessionEvent) -> bool:
    return run.stop is not None and not run.stop_accepted


def is_prepared(run: Run, event: SessionEvent) -> bool:
    return run.prepared


def preparation_failed(run: Run, event: SessionEvent) -> bool:
    return event.payload.failure is not None


def foreign(run: Run, event: SessionEvent) -> bool:
    """Rule 6: an answer for another provider call than the active one, or a second answer, changes nothing."""
    ended: LLMEnded = event.payload
    return run.call is None or run.call.llm_call_id != ended.llm_call_id or run.outcome is not None


def failed(run: Run, event: SessionEvent) -> bool:
    ended: LLMEnded = event.payload
    return ended.outcome.response is None


def failed_but_next_model(run: Run, event: SessionEvent) -> bool:
    limits: Limits = event.payload.limits
    return failed(run, event) and not limits.exceeded and run.model_index + 1 < limits.model_count


def ends_here(run: Run, event: SessionEvent) -> bool:
    """The provider's answer (or its failure) is the last word, whatever it is."""
    outcome, limits = event.payload.outcome, event.payload.limits
    return bool(failed(run, event) or limits.exceeded or final(outcome) or exhausted(run, limits))


def final(outcome: ProviderOutcome) -> bool:
    return not outcome.plans and not outcome.output_problem


def exhausted(run: Run, limits: Limits) -> bool:
    return run.iteration >= limits.max_iterations


def ends_in_steps(run: Run, event: SessionEvent) -> bool:
    """As above, but work still runs or application code takes part in the end: B3 and B6 apart."""
    ended: LLMEnded = event.payload
    return ends_here(run, event) and (ended.limits.separate_end or bool(run.running - {ended.over}))


def answers_wrongly(run: Run, event: SessionEvent) -> bool:
    outcome: ProviderOutcome = event.payload.outcome
    return not outcome.plans and bool(outcome.output_problem)


def nothing_to_run(run: Run, event: SessionEvent) -> bool:
    """Every call of the batch was refused before it could become an operation."""
    committed: Committed = event.payload
    return all(tool.outcome is not None for tool in committed.changes["tools"])


def last_tool(run: Run, event: SessionEvent) -> bool:
    ended: ToolEnded = event.payload
    return all(
        tool.outcome is not None or tool.tool_invocation_id == ended.tool_invocation_id for tool in run.tools
    )


def ending_and_quiet(run: Run, event: SessionEvent) -> bool:
    return run.ending is not None and not run.running


def is_ending(run: Run, event: SessionEvent) -> bool:
    return run.ending is not None


def quiet(run: Run, event: SessionEvent) -> bool:
    return not run.running


def last_work(run: Run, event: SessionEvent) -> bool:
    over = event.payload if event.name == EventName.WORK_ENDED else event.payload.over
    return not (run.running - {over})


def lost_ownership(run: Run, event: SessionEvent) -> bool:
    return isinstance(event.payload, ConflictError)


def may_end_again(run: Run, event: SessionEvent) -> bool:
    return run.end_attempts < END_ATTEMPTS


# --- actions: decisions -------------------------------------------------------------------------------


def commit(barrier: str) -> Callable[[Run, SessionEvent], Step]:
    def action(run: Run, event: SessionEvent) -> Step:
        return run, (Commit(barrier),)

    return action


def after_commit(*commands: Command) -> Callable[[Run, SessionEvent], Step]:
    def action(run: Run, event: SessionEvent) -> Step:
        return live(run, event), commands

    return action


def begin(run: Run, event: SessionEvent) -> Step:
    return run, (Commit("b1_b2" if run.prepared else "b1"),)


def accept_stop(run: Run, event: SessionEvent) -> Step:
    if event.name == EventName.STOP:
        run, _ = note_stop(run, event)
    elif event.name == EventName.COMMITTED:
        run = live(run, event)
    return run, (Commit("stop"),)


def dispatch_prepared(run: Run, event: SessionEvent) -> Step:
    running = run.running - {PREPARATION}
    return replace(run, prepared=True, running=running, **event.payload.changes), (Commit("b2"),)


def end_unprepared(run: Run, event: SessionEvent) -> Step:
    ending = Ending(status=ExecutionStatus.FAILED, reason="preparation_failed", failure=event.payload.failure)
    return replace(run, ending=ending, running=run.running - {PREPARATION}), (Commit("b6"),)


def start_preparation(run: Run, event: SessionEvent) -> Step:
    run = live(run, event)
    return replace(run, running=run.running | {PREPARATION}), (Prepare(),)


def next_model(run: Run, event: SessionEvent) -> Step:
    return with_outcome(run, event, model_index=run.model_index + 1), (Commit("b3_b2"),)


def answer_again(run: Run, event: SessionEvent) -> Step:
    return with_outcome(run, event), (Commit("b3_b2"),)


def ending_after_answer(run: Run, outcome: ProviderOutcome, limits: Limits) -> Ending:
    """How a run ends whose last provider call came to ``outcome``."""
    status = ExecutionStatus.FAILED
    failure: Failure | None = None
    output: bytes | None = None
    if outcome.response is None:
        reason, failure = "llm_failed", outcome.failure
    elif limits.exceeded:
        status, reason = ExecutionStatus.BLOCKED, f"usage_limit:{limits.exceeded}"
        failure = Failure("UsageLimitExceeded", f"The limit {limits.exceeded!r} of this agent was passed.")
    elif final(outcome):
        status, reason, output = ExecutionStatus.COMPLETED, "", outcome.output
    else:
        reason = "max_iterations"
        failure = Failure(
            "MaxIterationsExceeded",
            f"After {run.iteration} provider calls there is no answer that fits"
            + (
                f": {outcome.output_problem}"
                if outcome.output_problem
                else "; the model still asks for tools."
            ),
        )
    return Ending(status=status, reason=reason, output=output, failure=failure)


def with_ending(run: Run, event: SessionEvent) -> Run:
    outcome, limits = event.payload.outcome, event.payload.limits
    ending = ending_after_answer(run, outcome, limits)
    tool_calls = 0 if outcome.response is None else len(outcome.response.tool_calls)
    return with_outcome(run, event, ending=ending, tool_call_count=run.tool_call_count + tool_calls)


def end_at_once(run: Run, event: SessionEvent) -> Step:
    return with_ending(run, event), (Commit("b3_b6"),)


def record_then_end(run: Run, event: SessionEvent) -> Step:
    return with_ending(run, event), (Commit("b3"),)


def plan_tools(run: Run, event: SessionEvent) -> Step:
    count = run.tool_call_count + len(event.payload.outcome.plans)
    return with_outcome(run, event, tool_call_count=count), (Commit("b3_b4"),)


def tools_done(run: Run, event: SessionEvent) -> Step:
    run, _ = note_tool(run, event) if event.name == EventName.TOOL_ENDED else (live(run, event), ())
    return run, (Commit("b5_b2"),)


def stop_is_accepted(run: Run, event: SessionEvent) -> Run:
    run = replace(live(run, event), stop_accepted=True)
    assert run.stop is not None  # noqa: S101 - the stop barrier is asked for only with a stop
    return replace(run, ending=ending_of_stop(run.stop))


def ending_of_stop(stop: Stop) -> Ending:
    """How a run ends whose stop was accepted."""
    if stop.kind is StopKind.LIMIT:
        failure = Failure("UsageLimitExceeded", f"The limit {stop.reason!r} of this agent was passed.")
        return Ending(status=ExecutionStatus.BLOCKED, reason=f"usage_limit:{stop.reason}", failure=failure)
    if stop.kind is StopKind.DEADLINE:
        failure = Failure(
            "ExecutionTimeoutError", "The deadline of this execution passed before it was done."
        )
        return Ending(status=ExecutionStatus.CANCELLED, reason="deadline", failure=failure)
    failure = Failure("ExecutionCancelledError", stop.reason or "The execution was cancelled.")
    return Ending(status=ExecutionStatus.CANCELLED, reason="cancelled", failure=failure)


def stop_and_wait(run: Run, event: SessionEvent) -> Step:
    return stop_is_accepted(run, event), (CancelWork(),)


def stop_and_end(run: Run, event: SessionEvent) -> Step:
    return stop_is_accepted(run, event), (CancelWork(), Commit("b6"))


def last_work_then_end(run: Run, event: SessionEvent) -> Step:
    notes = {EventName.TOOL_ENDED: note_tool, EventName.LLM_ENDED: note_llm}
    run, _ = notes.get(EventName(event.name), note_work)(run, event)
    return run, (Commit("b6"),)


def end_again(run: Run, event: SessionEvent) -> Step:
    attempts = run.end_attempts + 1
    return replace(run, end_attempts=attempts), (Commit("b6", delay=0.05 * 2**attempts),)


# --- actions: approval ----------------------------------------------------------------------------------


def needs_person(run: Run, event: SessionEvent) -> bool:
    return bool(event.payload.outcome.needs)


def plan_and_suspend(run: Run, event: SessionEvent) -> Step:
    run, _ = plan_tools(run, event)
    return run, (Commit("b3_suspend"),)


def nothing_dispatched(run: Run, event: SessionEvent) -> bool:
    committed: Committed = event.payload
    return not committed.work


# --- actions: recovery ----------------------------------------------------------------------------------


def is_unresolved(run: Run, event: SessionEvent) -> bool:
    return bool(run.unresolved)


def enters(state: State) -> Callable[[Run, SessionEvent], bool]:
    return lambda run, event: run.entry == state


def enter_call(run: Run, event: SessionEvent) -> Step:
    run = live(run, event)
    assert run.call is not None  # noqa: S101 - the entry is the open call
    running = run.running | {run.call.work.operation_id}
    return replace(run, running=running), (StartLLM() if run.said is None else TellLLM(),)


def enter_tools(run: Run, event: SessionEvent) -> Step:
    run = live(run, event)
    open_ = {tool.work.operation_id for tool in run.tools if tool.work is not None and tool.outcome is None}
    return replace(run, running=run.running | open_), (StartTools(),)


def enter_dispatch(run: Run, event: SessionEvent) -> Step:
    return live(run, event), (Commit("b5_b2" if run.tools else "b2"),)


def hold_end(run: Run, event: SessionEvent) -> Step:
    """HARD_POINTS 12: the terminal commit was refused too often; its result is kept, a person has to look."""
    error: BaseException = event.payload
    what = f"the terminal commit, refused with {type(error).__name__}: {error}"
    held = Unresolved(subject_id=run.execution_id, attempt=run.end_attempts, what=what[:1000])
    return replace(run, unresolved=(held,), entry=State.ENDING), (Commit("unresolved"),)


def fail(run: Run, event: SessionEvent) -> Step:
    return run, (Fail(event.payload),)


def abandon(run: Run, event: SessionEvent) -> Step:
    return run, (Abandon(event.payload),)
