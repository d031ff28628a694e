"""The session table of an agent execution: which event in which state leads where, and what it asks for.

Every guard and action is a pure function of the run and the event (``steps``); effects are commands that the coordinator
carries out. It can be read as the barriers of DESIGN §6, tested without a database and replayed from a seed.
"""

from __future__ import annotations

from typing import Any

from phronomy_django.agents import steps
from phronomy_django.agents.commands import (
    Command,
    Commit,
    EventName,
    Finish,
    Hold,
    StartLLM,
    StartTools,
    State,
    Suspend,
)
from phronomy_django.agents.run import Run
from phronomy_django.engine import Rule, SessionTable

__all__ = ["FINAL", "TABLE"]

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
        rule(s.ADMITTING, e.BEGIN, s.ADMITTING, steps.begin),
        rule(s.ADMITTING, e.COMMITTED, s.ACCEPTING_STOP, steps.accept_stop, steps.stop_wanted),
        rule(s.ADMITTING, e.COMMITTED, s.CALLING_LLM, steps.after_commit(StartLLM()), steps.is_prepared),
        rule(s.ADMITTING, e.COMMITTED, s.PREPARING, steps.start_preparation),
        #
        rule(s.PREPARING, e.PREPARED, s.ENDING, steps.end_unprepared, steps.preparation_failed),
        rule(s.PREPARING, e.PREPARED, s.DISPATCHING, steps.dispatch_prepared),
        rule(s.PREPARING, e.STOP, s.ACCEPTING_STOP, steps.accept_stop),
        #
        rule(s.DISPATCHING, e.COMMITTED, s.ACCEPTING_STOP, steps.accept_stop, steps.stop_wanted),
        rule(s.DISPATCHING, e.COMMITTED, s.CALLING_LLM, steps.after_commit(StartLLM())),
        #
        rule(s.CALLING_LLM, e.LLM_ENDED, s.CALLING_LLM, steps.ignore, steps.foreign),
        rule(s.CALLING_LLM, e.LLM_ENDED, s.DISPATCHING, steps.next_model, steps.failed_but_next_model),
        rule(s.CALLING_LLM, e.LLM_ENDED, s.RECORDING, steps.record_then_end, steps.ends_in_steps),
        rule(s.CALLING_LLM, e.LLM_ENDED, s.ENDING, steps.end_at_once, steps.ends_here),
        rule(s.CALLING_LLM, e.LLM_ENDED, s.DISPATCHING, steps.answer_again, steps.answers_wrongly),
        rule(s.CALLING_LLM, e.LLM_ENDED, s.SUSPENDING, steps.plan_and_suspend, steps.needs_person),
        rule(s.CALLING_LLM, e.LLM_ENDED, s.RECORDING, steps.plan_tools),
        rule(s.CALLING_LLM, e.STOP, s.ACCEPTING_STOP, steps.accept_stop),
        #
        rule(s.RECORDING, e.COMMITTED, s.ENDING, steps.after_commit(Commit("b6")), steps.ending_and_quiet),
        rule(s.RECORDING, e.COMMITTED, s.QUIESCING, steps.after_commit(), steps.is_ending),
        rule(s.RECORDING, e.COMMITTED, s.ACCEPTING_STOP, steps.accept_stop, steps.stop_wanted),
        rule(s.RECORDING, e.COMMITTED, s.DISPATCHING, steps.tools_done, steps.nothing_to_run),
        rule(s.RECORDING, e.COMMITTED, s.RUNNING_TOOLS, steps.after_commit(StartTools())),
        #
        rule(s.RUNNING_TOOLS, e.TOOL_ENDED, s.DISPATCHING, steps.tools_done, steps.last_tool),
        rule(s.RUNNING_TOOLS, e.TOOL_ENDED, s.RUNNING_TOOLS, steps.note_tool),
        rule(s.RUNNING_TOOLS, e.STOP, s.ACCEPTING_STOP, steps.accept_stop),
        #
        rule(s.ACCEPTING_STOP, e.COMMITTED, s.ENDING, steps.stop_and_end, steps.quiet),
        rule(s.ACCEPTING_STOP, e.COMMITTED, s.QUIESCING, steps.stop_and_wait),
        #
        rule(s.QUIESCING, e.WORK_ENDED, s.ENDING, steps.last_work_then_end, steps.last_work),
        rule(s.QUIESCING, e.TOOL_ENDED, s.ENDING, steps.last_work_then_end, steps.last_work),
        rule(s.QUIESCING, e.LLM_ENDED, s.QUIESCING, steps.ignore, steps.foreign),
        rule(s.QUIESCING, e.LLM_ENDED, s.ENDING, steps.last_work_then_end, steps.last_work),
        #
        rule(s.ENDING, e.COMMITTED, s.FINISHED, steps.after_commit(Finish())),
        rule(s.ENDING, e.REFUSED, s.ERROR, steps.fail, steps.lost_ownership),
        rule(s.ENDING, e.REFUSED, s.ENDING, steps.end_again, steps.may_end_again),
        rule(s.ENDING, e.REFUSED, s.HOLDING, steps.hold_end),
        #
        rule(s.ADMITTING, e.RESUME, s.HOLDING, steps.commit("unresolved"), steps.is_unresolved),
        rule(s.ADMITTING, e.RESUME, s.AUTHORIZING, steps.commit("b4"), steps.enters(s.AUTHORIZING)),
        rule(s.ADMITTING, e.RESUME, s.RESUMING, steps.commit("resume")),
        rule(s.SUSPENDING, e.COMMITTED, s.ACCEPTING_STOP, steps.accept_stop, steps.stop_wanted),
        rule(s.SUSPENDING, e.COMMITTED, s.SUSPENDED, steps.after_commit(Suspend())),
        rule(s.AUTHORIZING, e.COMMITTED, s.ACCEPTING_STOP, steps.accept_stop, steps.stop_wanted),
        rule(s.AUTHORIZING, e.COMMITTED, s.DISPATCHING, steps.tools_done, steps.nothing_dispatched),
        rule(s.AUTHORIZING, e.COMMITTED, s.RUNNING_TOOLS, steps.after_commit(StartTools())),
        rule(s.HOLDING, e.COMMITTED, s.RECOVERY_REQUIRED, steps.after_commit(Hold())),
        rule(s.RESUMING, e.COMMITTED, s.ENDING, steps.after_commit(Commit("b6")), steps.enters(s.ENDING)),
        rule(s.RESUMING, e.COMMITTED, s.ACCEPTING_STOP, steps.accept_stop, steps.stop_wanted),
        rule(s.RESUMING, e.COMMITTED, s.PREPARING, steps.start_preparation, steps.enters(s.PREPARING)),
        rule(s.RESUMING, e.COMMITTED, s.CALLING_LLM, steps.enter_call, steps.enters(s.CALLING_LLM)),
        rule(s.RESUMING, e.COMMITTED, s.RUNNING_TOOLS, steps.enter_tools, steps.enters(s.RUNNING_TOOLS)),
        rule(s.RESUMING, e.COMMITTED, s.SUSPENDED, steps.after_commit(Suspend()), steps.enters(s.SUSPENDED)),
        rule(s.RESUMING, e.COMMITTED, s.DISPATCHING, steps.enter_dispatch),
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
    rules += [rule(state, e.REFUSED, s.ERROR, steps.fail) for state in committing if state is not s.ENDING]
    rules += [rule(state, e.UNKNOWN, s.RECOVERY_REQUIRED, steps.abandon) for state in committing]
    rules += [rule(state, e.STOP, state, steps.note_stop) for state in (*committing, s.QUIESCING)]
    everywhere = [state for state in State if state not in FINAL]
    rules += [rule(state, e.WORK_ENDED, state, steps.note_work) for state in everywhere]
    late = (s.ACCEPTING_STOP, s.QUIESCING)
    rules.append(rule(s.ACCEPTING_STOP, e.LLM_ENDED, s.ACCEPTING_STOP, steps.ignore, steps.foreign))
    rules += [rule(state, e.TOOL_ENDED, state, steps.note_tool) for state in late]
    rules += [rule(state, e.LLM_ENDED, state, steps.note_llm) for state in late]
    rules += [rule(state, e.PREPARED, state, steps.ignore) for state in (*late, s.ENDING)]
    return rules


TABLE: SessionTable[Run, Command] = SessionTable(
    initial=State.ADMITTING,
    rules=_rules(),
    endings={**FINAL},
)
