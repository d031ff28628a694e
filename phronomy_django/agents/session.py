"""The session table of an agent execution: which event in which state leads where, and what it asks for.

Every guard and action is a pure function of the run and the event; effects are commands that the coordinator
carries out. It can be read as the barriers of DESIGN §6, tested without a database and replayed from a seed.
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
    Finish,
    Hold,
    Limits,
    LLMEnded,
    Prepare,
    StartLLM,
    StartTools,
    State,
    Step,
    Suspend,
    TellLLM,
    ToolEnded,
)
from phronomy_django.agents.run import Ending, Failure, ProviderOutcome, Run, Stop, Unresolved
from phronomy_django.domain.errors import ConflictError
from phronomy_django.domain.statuses import ExecutionStatus, StopKind
from phronomy_django.engine import Rule, SessionEvent, SessionTable

__all__ = ["END_ATTEMPTS", "TABLE", "ending_after_answer", "ending_of_stop"]

#: How often the terminal commit is tried before a person has to look (HARD_POINTS 12).
END_ATTEMPTS = 5


# --- actions: facts -----------------------------------------------------------------------------------


def _live(run: Run, event: SessionEvent) -> Run:
    committed: Committed = event.payload
    return replace(run, running=run.running | committed.work, **committed.changes)


def _note_stop(run: Run, event: SessionEvent) -> Step:
    stop: Stop = event.payload
    return (run if run.stop is not None else replace(run, stop=stop)), ()


def _note_tool(run: Run, event: SessionEvent) -> Step:
    ended: ToolEnded = event.payload
    tools = tuple(
        replace(tool, outcome=ended.outcome)
        if tool.tool_invocation_id == ended.tool_invocation_id and tool.outcome is None
        else tool
        for tool in run.tools
    )
    return replace(run, tools=tools, running=run.running - {ended.over}), ()


def _note_llm(run: Run, event: SessionEvent) -> Step:
    """A provider call that ends after a stop was accepted: its usage counts, its answer does not."""
    return _with_outcome(run, event), ()


def _with_outcome(run: Run, event: SessionEvent, **changes: Any) -> Run:
    ended: LLMEnded = event.payload
    usage = run.usage if ended.outcome.response is None else run.usage + ended.outcome.response.usage
    return replace(run, outcome=ended.outcome, usage=usage, running=run.running - {ended.over}, **changes)


def _ignore(run: Run, event: SessionEvent) -> Step:
    return run, ()


def _note_work(run: Run, event: SessionEvent) -> Step:
    return replace(run, running=run.running - {event.payload}), ()


# --- guards -------------------------------------------------------------------------------------------


def _stop_wanted(run: Run, event: SessionEvent) -> bool:
    return run.stop is not None and not run.stop_accepted


def _is_prepared(run: Run, event: SessionEvent) -> bool:
    return run.prepared


def _preparation_failed(run: Run, event: SessionEvent) -> bool:
    return event.payload.failure is not None


def _foreign(run: Run, event: SessionEvent) -> bool:
    """Rule 6: an answer for another provider call than the active one, or a second answer, changes nothing."""
    ended: LLMEnded = event.payload
    return run.call is None or run.call.llm_call_id != ended.llm_call_id or run.outcome is not None


def _failed(run: Run, event: SessionEvent) -> bool:
    ended: LLMEnded = event.payload
    return ended.outcome.response is None


def _failed_but_next_model(run: Run, event: SessionEvent) -> bool:
    limits: Limits = event.payload.limits
    return _failed(run, event) and not limits.exceeded and run.model_index + 1 < limits.model_count


def _ends_here(run: Run, event: SessionEvent) -> bool:
    """The provider's answer (or its failure) is the last word, whatever it is."""
    outcome, limits = event.payload.outcome, event.payload.limits
    return bool(_failed(run, event) or limits.exceeded or _final(outcome) or _exhausted(run, limits))


def _final(outcome: ProviderOutcome) -> bool:
    return not outcome.plans and not outcome.output_problem


def _exhausted(run: Run, limits: Limits) -> bool:
    return run.iteration >= limits.max_iterations


def _ends_in_steps(run: Run, event: SessionEvent) -> bool:
    """As above, but work still runs or application code takes part in the end: B3 and B6 apart."""
    ended: LLMEnded = event.payload
    return _ends_here(run, event) and (ended.limits.separate_end or bool(run.running - {ended.over}))


def _answers_wrongly(run: Run, event: SessionEvent) -> bool:
    outcome: ProviderOutcome = event.payload.outcome
    return not outcome.plans and bool(outcome.output_problem)


def _nothing_to_run(run: Run, event: SessionEvent) -> bool:
    """Every call of the batch was refused before it could become an operation."""
    committed: Committed = event.payload
    return all(tool.outcome is not None for tool in committed.changes["tools"])


def _last_tool(run: Run, event: SessionEvent) -> bool:
    ended: ToolEnded = event.payload
    return all(
        tool.outcome is not None or tool.tool_invocation_id == ended.tool_invocation_id for tool in run.tools
    )


def _ending_and_quiet(run: Run, event: SessionEvent) -> bool:
    return run.ending is not None and not run.running


def _is_ending(run: Run, event: SessionEvent) -> bool:
    return run.ending is not None


def _quiet(run: Run, event: SessionEvent) -> bool:
    return not run.running


def _last_work(run: Run, event: SessionEvent) -> bool:
    over = event.payload if event.name == EventName.WORK_ENDED else event.payload.over
    return not (run.running - {over})


def _lost_ownership(run: Run, event: SessionEvent) -> bool:
    return isinstance(event.payload, ConflictError)


def _may_end_again(run: Run, event: SessionEvent) -> bool:
    return run.end_attempts < END_ATTEMPTS


# --- actions: decisions -------------------------------------------------------------------------------


def _commit(barrier: str) -> Callable[[Run, SessionEvent], Step]:
    def action(run: Run, event: SessionEvent) -> Step:
        return run, (Commit(barrier),)

    return action


def _after_commit(*commands: Command) -> Callable[[Run, SessionEvent], Step]:
    def action(run: Run, event: SessionEvent) -> Step:
        return _live(run, event), commands

    return action


def _begin(run: Run, event: SessionEvent) -> Step:
    return run, (Commit("b1_b2" if run.prepared else "b1"),)


def _accept_stop(run: Run, event: SessionEvent) -> Step:
    if event.name == EventName.STOP:
        run, _ = _note_stop(run, event)
    elif event.name == EventName.COMMITTED:
        run = _live(run, event)
    return run, (Commit("stop"),)


def _dispatch_prepared(run: Run, event: SessionEvent) -> Step:
    running = run.running - {PREPARATION}
    return replace(run, prepared=True, running=running, **event.payload.changes), (Commit("b2"),)


def _end_unprepared(run: Run, event: SessionEvent) -> Step:
    ending = Ending(status=ExecutionStatus.FAILED, reason="preparation_failed", failure=event.payload.failure)
    return replace(run, ending=ending, running=run.running - {PREPARATION}), (Commit("b6"),)


def _start_preparation(run: Run, event: SessionEvent) -> Step:
    run = _live(run, event)
    return replace(run, running=run.running | {PREPARATION}), (Prepare(),)


def _next_model(run: Run, event: SessionEvent) -> Step:
    return _with_outcome(run, event, model_index=run.model_index + 1), (Commit("b3_b2"),)


def _answer_again(run: Run, event: SessionEvent) -> Step:
    return _with_outcome(run, event), (Commit("b3_b2"),)


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
    elif _final(outcome):
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


def _with_ending(run: Run, event: SessionEvent) -> Run:
    outcome, limits = event.payload.outcome, event.payload.limits
    ending = ending_after_answer(run, outcome, limits)
    tool_calls = 0 if outcome.response is None else len(outcome.response.tool_calls)
    return _with_outcome(run, event, ending=ending, tool_call_count=run.tool_call_count + tool_calls)


def _end_at_once(run: Run, event: SessionEvent) -> Step:
    return _with_ending(run, event), (Commit("b3_b6"),)


def _record_then_end(run: Run, event: SessionEvent) -> Step:
    return _with_ending(run, event), (Commit("b3"),)


def _plan_tools(run: Run, event: SessionEvent) -> Step:
    count = run.tool_call_count + len(event.payload.outcome.plans)
    return _with_outcome(run, event, tool_call_count=count), (Commit("b3_b4"),)


def _tools_done(run: Run, event: SessionEvent) -> Step:
    run, _ = _note_tool(run, event) if event.name == EventName.TOOL_ENDED else (_live(run, event), ())
    return run, (Commit("b5_b2"),)


def _stop_is_accepted(run: Run, event: SessionEvent) -> Run:
    run = replace(_live(run, event), stop_accepted=True)
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


def _stop_and_wait(run: Run, event: SessionEvent) -> Step:
    return _stop_is_accepted(run, event), (CancelWork(),)


def _stop_and_end(run: Run, event: SessionEvent) -> Step:
    return _stop_is_accepted(run, event), (CancelWork(), Commit("b6"))


def _last_work_then_end(run: Run, event: SessionEvent) -> Step:
    notes = {EventName.TOOL_ENDED: _note_tool, EventName.LLM_ENDED: _note_llm}
    run, _ = notes.get(EventName(event.name), _note_work)(run, event)
    return run, (Commit("b6"),)


def _end_again(run: Run, event: SessionEvent) -> Step:
    attempts = run.end_attempts + 1
    return replace(run, end_attempts=attempts), (Commit("b6", delay=0.05 * 2**attempts),)


# --- actions: approval ----------------------------------------------------------------------------------


def _needs_person(run: Run, event: SessionEvent) -> bool:
    return bool(event.payload.outcome.needs)


def _plan_and_suspend(run: Run, event: SessionEvent) -> Step:
    run, _ = _plan_tools(run, event)
    return run, (Commit("b3_suspend"),)


def _nothing_dispatched(run: Run, event: SessionEvent) -> bool:
    committed: Committed = event.payload
    return not committed.work


# --- actions: recovery ----------------------------------------------------------------------------------


def _is_unresolved(run: Run, event: SessionEvent) -> bool:
    return bool(run.unresolved)


def _enters(state: State) -> Callable[[Run, SessionEvent], bool]:
    return lambda run, event: run.entry == state


def _enter_call(run: Run, event: SessionEvent) -> Step:
    run = _live(run, event)
    assert run.call is not None  # noqa: S101 - the entry is the open call
    running = run.running | {run.call.work.operation_id}
    return replace(run, running=running), (StartLLM() if run.said is None else TellLLM(),)


def _enter_tools(run: Run, event: SessionEvent) -> Step:
    run = _live(run, event)
    open_ = {tool.work.operation_id for tool in run.tools if tool.work is not None and tool.outcome is None}
    return replace(run, running=run.running | open_), (StartTools(),)


def _enter_dispatch(run: Run, event: SessionEvent) -> Step:
    return _live(run, event), (Commit("b5_b2" if run.tools else "b2"),)


def _hold_end(run: Run, event: SessionEvent) -> Step:
    """HARD_POINTS 12: the terminal commit was refused too often; its result is kept, a person has to look."""
    error: BaseException = event.payload
    what = f"the terminal commit, refused with {type(error).__name__}: {error}"
    held = Unresolved(subject_id=run.execution_id, attempt=run.end_attempts, what=what[:1000])
    return replace(run, unresolved=(held,), entry=State.ENDING), (Commit("unresolved"),)


def _fail(run: Run, event: SessionEvent) -> Step:
    return run, (Fail(event.payload),)


def _abandon(run: Run, event: SessionEvent) -> Step:
    return run, (Abandon(event.payload),)


#: How a session ends in each of its final states; a suspended one is over and its execution is not.
FINAL: dict[str, str] = {
    State.FINISHED: "finished",
    State.SUSPENDED: "halted",
    State.ERROR: "error",
    State.RECOVERY_REQUIRED: "recovery_required",
}


# --- the table ----------------------------------------------------------------------------------------


def _rules() -> list[Rule[Run, Command]]:
    s, e = State, EventName

    def rule(
        state: State, event: EventName, target: State, action: Any, guard: Any = None
    ) -> Rule[Run, Command]:
        return Rule(state=state, event=event, target=target, guard=guard, action=action)

    rules = [
        rule(s.ADMITTING, e.BEGIN, s.ADMITTING, _begin),
        rule(s.ADMITTING, e.COMMITTED, s.ACCEPTING_STOP, _accept_stop, _stop_wanted),
        rule(s.ADMITTING, e.COMMITTED, s.CALLING_LLM, _after_commit(StartLLM()), _is_prepared),
        rule(s.ADMITTING, e.COMMITTED, s.PREPARING, _start_preparation),
        #
        rule(s.PREPARING, e.PREPARED, s.ENDING, _end_unprepared, _preparation_failed),
        rule(s.PREPARING, e.PREPARED, s.DISPATCHING, _dispatch_prepared),
        rule(s.PREPARING, e.STOP, s.ACCEPTING_STOP, _accept_stop),
        #
        rule(s.DISPATCHING, e.COMMITTED, s.ACCEPTING_STOP, _accept_stop, _stop_wanted),
        rule(s.DISPATCHING, e.COMMITTED, s.CALLING_LLM, _after_commit(StartLLM())),
        #
        rule(s.CALLING_LLM, e.LLM_ENDED, s.CALLING_LLM, _ignore, _foreign),
        rule(s.CALLING_LLM, e.LLM_ENDED, s.DISPATCHING, _next_model, _failed_but_next_model),
        rule(s.CALLING_LLM, e.LLM_ENDED, s.RECORDING, _record_then_end, _ends_in_steps),
        rule(s.CALLING_LLM, e.LLM_ENDED, s.ENDING, _end_at_once, _ends_here),
        rule(s.CALLING_LLM, e.LLM_ENDED, s.DISPATCHING, _answer_again, _answers_wrongly),
        rule(s.CALLING_LLM, e.LLM_ENDED, s.SUSPENDING, _plan_and_suspend, _needs_person),
        rule(s.CALLING_LLM, e.LLM_ENDED, s.RECORDING, _plan_tools),
        rule(s.CALLING_LLM, e.STOP, s.ACCEPTING_STOP, _accept_stop),
        #
        rule(s.RECORDING, e.COMMITTED, s.ENDING, _after_commit(Commit("b6")), _ending_and_quiet),
        rule(s.RECORDING, e.COMMITTED, s.QUIESCING, _after_commit(), _is_ending),
        rule(s.RECORDING, e.COMMITTED, s.ACCEPTING_STOP, _accept_stop, _stop_wanted),
        rule(s.RECORDING, e.COMMITTED, s.DISPATCHING, _tools_done, _nothing_to_run),
        rule(s.RECORDING, e.COMMITTED, s.RUNNING_TOOLS, _after_commit(StartTools())),
        #
        rule(s.RUNNING_TOOLS, e.TOOL_ENDED, s.DISPATCHING, _tools_done, _last_tool),
        rule(s.RUNNING_TOOLS, e.TOOL_ENDED, s.RUNNING_TOOLS, _note_tool),
        rule(s.RUNNING_TOOLS, e.STOP, s.ACCEPTING_STOP, _accept_stop),
        #
        rule(s.ACCEPTING_STOP, e.COMMITTED, s.ENDING, _stop_and_end, _quiet),
        rule(s.ACCEPTING_STOP, e.COMMITTED, s.QUIESCING, _stop_and_wait),
        #
        rule(s.QUIESCING, e.WORK_ENDED, s.ENDING, _last_work_then_end, _last_work),
        rule(s.QUIESCING, e.TOOL_ENDED, s.ENDING, _last_work_then_end, _last_work),
        rule(s.QUIESCING, e.LLM_ENDED, s.QUIESCING, _ignore, _foreign),
        rule(s.QUIESCING, e.LLM_ENDED, s.ENDING, _last_work_then_end, _last_work),
        #
        rule(s.ENDING, e.COMMITTED, s.FINISHED, _after_commit(Finish())),
        rule(s.ENDING, e.REFUSED, s.ERROR, _fail, _lost_ownership),
        rule(s.ENDING, e.REFUSED, s.ENDING, _end_again, _may_end_again),
        rule(s.ENDING, e.REFUSED, s.HOLDING, _hold_end),
        #
        rule(s.ADMITTING, e.RESUME, s.HOLDING, _commit("unresolved"), _is_unresolved),
        rule(s.ADMITTING, e.RESUME, s.AUTHORIZING, _commit("b4"), _enters(s.AUTHORIZING)),
        rule(s.ADMITTING, e.RESUME, s.RESUMING, _commit("resume")),
        rule(s.SUSPENDING, e.COMMITTED, s.ACCEPTING_STOP, _accept_stop, _stop_wanted),
        rule(s.SUSPENDING, e.COMMITTED, s.SUSPENDED, _after_commit(Suspend())),
        rule(s.AUTHORIZING, e.COMMITTED, s.ACCEPTING_STOP, _accept_stop, _stop_wanted),
        rule(s.AUTHORIZING, e.COMMITTED, s.DISPATCHING, _tools_done, _nothing_dispatched),
        rule(s.AUTHORIZING, e.COMMITTED, s.RUNNING_TOOLS, _after_commit(StartTools())),
        rule(s.HOLDING, e.COMMITTED, s.RECOVERY_REQUIRED, _after_commit(Hold())),
        rule(s.RESUMING, e.COMMITTED, s.ENDING, _after_commit(Commit("b6")), _enters(s.ENDING)),
        rule(s.RESUMING, e.COMMITTED, s.ACCEPTING_STOP, _accept_stop, _stop_wanted),
        rule(s.RESUMING, e.COMMITTED, s.PREPARING, _start_preparation, _enters(s.PREPARING)),
        rule(s.RESUMING, e.COMMITTED, s.CALLING_LLM, _enter_call, _enters(s.CALLING_LLM)),
        rule(s.RESUMING, e.COMMITTED, s.RUNNING_TOOLS, _enter_tools, _enters(s.RUNNING_TOOLS)),
        rule(s.RESUMING, e.COMMITTED, s.SUSPENDED, _after_commit(Suspend()), _enters(s.SUSPENDED)),
        rule(s.RESUMING, e.COMMITTED, s.DISPATCHING, _enter_dispatch),
    ]
    committing = (
        s.ADMITTING,
        s.DISPATCHING,
        s.RECORDING,
        s.ACCEPTING_STOP,
        s.ENDING,
        s.RESUMING,
        s.HOLDING,
        s.SUSPENDING,
        s.AUTHORIZING,
    )
    rules += [rule(state, e.REFUSED, s.ERROR, _fail) for state in committing if state is not s.ENDING]
    rules += [rule(state, e.UNKNOWN, s.RECOVERY_REQUIRED, _abandon) for state in committing]
    rules += [rule(state, e.STOP, state, _note_stop) for state in (*committing, s.QUIESCING)]
    everywhere = [state for state in State if state not in FINAL]
    rules += [rule(state, e.WORK_ENDED, state, _note_work) for state in everywhere]
    late = (s.ACCEPTING_STOP, s.QUIESCING)
    rules.append(rule(s.ACCEPTING_STOP, e.LLM_ENDED, s.ACCEPTING_STOP, _ignore, _foreign))
    rules += [rule(state, e.TOOL_ENDED, state, _note_tool) for state in late]
    rules += [rule(state, e.LLM_ENDED, state, _note_llm) for state in late]
    rules += [rule(state, e.PREPARED, state, _ignore) for state in (*late, s.ENDING)]
    return rules


TABLE: SessionTable[Run, Command] = SessionTable(
    initial=State.ADMITTING,
    rules=_rules(),
    endings={**FINAL},
)
