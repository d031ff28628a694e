"""The barriers of DESIGN §6: from the live state of a run to the transition that commits it.

Builds values only; it neither commits nor starts anything. Every ``tool_call_id`` that a model asked for gets
exactly one result in the journal, in request order, whatever became of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from phronomy_django.agents.commands import State
from phronomy_django.agents.draft import Built, Draft
from phronomy_django.agents.live import LiveAgent
from phronomy_django.agents.manifests import context_message, manifest
from phronomy_django.agents.operation_rows import OperationRows
from phronomy_django.agents.run import (
    Ending,
    LLMCallState,
    Run,
    Start,
)
from phronomy_django.agents.tool_rows import ToolRows
from phronomy_django.domain.canonical import canonical_bytes
from phronomy_django.domain.ids import new_id
from phronomy_django.domain.messages import AssistantMessage, UserMessage
from phronomy_django.domain.records import (
    ApprovalChange,
    ExecutionChange,
    ExecutionRow,
    LLMCallChange,
    LLMCallRow,
)
from phronomy_django.domain.statuses import (
    ApprovalState,
    ExecutionPhase,
    ExecutionStatus,
    LifecycleStatus,
    LLMCallStatus,
    OperationKind,
    OperationState,
    RecoveryDisposition,
)

__all__ = ["Barriers"]

#: What the row says an execution is doing when it goes on in this state.
PHASES: dict[str, ExecutionPhase] = {
    State.PREPARING: ExecutionPhase.PREPARING,
    State.RUNNING_TOOLS: ExecutionPhase.RUNNING_TOOLS,
    State.DISPATCHING: ExecutionPhase.CALLING_LLM,
    State.AUTHORIZING: ExecutionPhase.AWAITING_APPROVAL,
    State.SUSPENDED: ExecutionPhase.AWAITING_APPROVAL,
}


@dataclass(frozen=True, slots=True)
class Barriers:
    """Builds the transitions of one run.

    ``hook`` is application code that runs first in the same transaction.
    """

    live: LiveAgent
    owner_id: str
    operations: OperationRows
    tool_rows: ToolRows

    # --- admission ------------------------------------------------------------------------------------

    def admission(
        self, run: Run, start: Start, now: datetime, *, dispatch: bool, hook: Callable[[], None] | None
    ) -> Built:
        """B1, together with B2 where no application code prepares the run."""
        live, position = self.live, self.live.position
        draft = Draft(live, self.owner_id, now, "b1_b2" if dispatch else "b1", run.execution_id)
        content_id = draft.content(start.body)
        for body, media_type in start.attachments:
            draft.content(body, media_type)
        draft.record(
            "input_received", channel="transcript", role="user", content_id=content_id, candidate=True
        )
        changes: dict[str, Any] = {"input_content_id": content_id}
        work: frozenset[str] = frozenset()
        if dispatch:
            changes |= self._dispatch(draft, run)
            work = frozenset({changes["call"].work.operation_id})
        status = ExecutionStatus.ACTIVE if dispatch else ExecutionStatus.PREPARING
        phase = ExecutionPhase.CALLING_LLM if dispatch else ExecutionPhase.PREPARING
        draft.event("status", {"status": status, "phase": phase})
        draft.execution = ExecutionRow(
            run.execution_id,
            live.root_id,
            None,
            live.definition.definition_id,
            live.definition.definition_version,
            1,
            status,
            phase,
            changes.get("iteration", 0),
            draft.event_sequence,
            position.agent_revision,
            position.context_revision,
            position.journal_position,
            content_id,
            start.context_json,
            start.deadline,
            start.idempotency_key,
            start.digest,
            start.by,
            draft.transition_id,
            now,
            now if dispatch else None,
        )
        changes |= {"event_sequence": draft.event_sequence, "started_at": now if dispatch else None}
        return draft.build(
            changes, lifecycle_status=LifecycleStatus.BUSY, new_revision=True, hook=hook, work=work
        )

    # --- provider calls -------------------------------------------------------------------------------

    def dispatch(self, run: Run, now: datetime, barrier: str) -> Built:
        """B2, after what came before it: the outcome of a provider call (B3) or of a batch of tools (B5)."""
        draft = self._draft(run, now, barrier)
        changes: dict[str, Any] = {}
        if run.outcome is not None:
            changes |= self._record_outcome(draft, run)
            if run.outcome.output_problem:
                text = f"Your answer does not fit: {run.outcome.output_problem} Answer again, correctly."
                message = context_message(UserMessage.of(text))
                draft.record(
                    "answer_refused",
                    channel="transcript",
                    role="user",
                    content_id=draft.content(message.body),
                    candidate=True,
                )
                changes["own"] = (*changes["own"], message)
        if run.tools:
            changes |= self.tool_rows.record(draft, run, run.tools)
        changes |= self._dispatch(draft, replace(run, **changes))
        if run.started_at is None:
            changes["started_at"] = now
            draft.event("status", {"status": ExecutionStatus.ACTIVE, "phase": ExecutionPhase.CALLING_LLM})
        work = frozenset({changes["call"].work.operation_id})
        return self._finish(
            draft, run, changes, ExecutionStatus.ACTIVE, ExecutionPhase.CALLING_LLM, work=work
        )

    def _dispatch(self, draft: Draft, run: Run) -> dict[str, Any]:
        definition = self.live.definition
        work = self.operations.work_for(definition.llm_pool(run.model_index))
        call = LLMCallState(
            llm_call_id=new_id(), ordinal=run.call_count + 1, model_index=run.model_index, work=work
        )
        label = definition.labels[run.model_index]
        content_id = draft.content(manifest(self.live, run))
        draft.llm_calls.append(
            LLMCallRow(
                call.llm_call_id,
                run.execution_id,
                call.ordinal,
                content_id,
                label,
                LLMCallStatus.DISPATCHED,
                1,
                draft.now,
            )
        )
        self.operations.insert(
            draft, run.execution_id, work, OperationKind.LLM_CALL, call.llm_call_id, content_id
        )
        draft.record(
            "llm_call_dispatched",
            content_id=content_id,
            data={"llm_call_id": call.llm_call_id, "ordinal": call.ordinal, "model": label},
        )
        return {"call": call, "call_count": call.ordinal, "iteration": run.iteration + 1, "tools": ()}

    def _record_outcome(self, draft: Draft, run: Run) -> dict[str, Any]:
        """B3: the provider call's answer or failure, its usage, and the assistant's message."""
        call, outcome = run.call, run.outcome
        assert call is not None and outcome is not None  # noqa: S101 - asked for only with an open call
        response, now = outcome.response, draft.now
        facts: dict[str, Any] = {"llm_call_id": call.llm_call_id, "attempts": outcome.attempts}
        if response is None:
            assert outcome.failure is not None  # noqa: S101 - no response means a failure
            content_id = draft.content(canonical_bytes(outcome.failure.as_json()))
            draft.record("llm_call_failed", content_id=content_id, data=facts)
            change = LLMCallChange(
                call.llm_call_id, LLMCallStatus.FAILED, outcome.attempts, 0, 0, None, content_id, now
            )
            state, own = OperationState.FAILED, run.own
        else:
            message = context_message(AssistantMessage(response.text, response.tool_calls))
            content_id = draft.content(message.body)
            facts |= {"model": response.model, "finish_reason": response.finish_reason}
            draft.record(
                "llm_call_succeeded",
                channel="transcript",
                role="assistant",
                content_id=content_id,
                candidate=True,
                data=facts,
            )
            usage = response.usage
            change = LLMCallChange(
                call.llm_call_id,
                LLMCallStatus.SUCCEEDED,
                outcome.attempts,
                usage.input_tokens,
                usage.output_tokens,
                usage.cost,
                content_id,
                now,
            )
            state, own = OperationState.SUCCEEDED, (*run.own, message)
            if response.text:
                draft.event("message", {"llm_call_id": call.llm_call_id, "text": response.text})
        draft.llm_call_changes.append(change)
        self.operations.close(draft, self.operations.current(call.work), state, content_id)
        return {"call": None, "outcome": None, "own": own}

    # --- tools ----------------------------------------------------------------------------------------

    def tools(self, run: Run, now: datetime) -> Built:
        """B3 and B4: the provider's answer, the whole batch of tool invocations, their operations."""
        draft = self._draft(run, now, "b3_b4")
        outcome = run.outcome
        assert outcome is not None  # noqa: S101 - the plan is the outcome's
        changes = self._record_outcome(draft, run)
        tools = tuple(self.tool_rows.plan(outcome, perform=True))
        self.tool_rows.insert(draft, run, tools)
        draft.record(
            "tools_dispatched",
            data={
                "tool_invocation_ids": [tool.tool_invocation_id for tool in tools if tool.work is not None]
            },
        )
        changes["tools"] = tools
        work = frozenset(tool.work.operation_id for tool in tools if tool.work is not None)
        return self._finish(
            draft, run, changes, ExecutionStatus.ACTIVE, ExecutionPhase.RUNNING_TOOLS, work=work
        )

    # --- approval -------------------------------------------------------------------------------------

    def suspend(self, run: Run, now: datetime) -> Built:
        """B3, and instead of B4 the requests for a person: nothing of the batch is dispatched before all are decided."""
        draft = self._draft(run, now, "b3_suspend")
        outcome = run.outcome
        assert outcome is not None  # noqa: S101 - the plan is the outcome's
        changes = self._record_outcome(draft, run)
        tools = tuple(self.tool_rows.plan(outcome, perform=True, hold=True))
        self.tool_rows.insert(draft, run, tools)
        approvals = self.tool_rows.request_approvals(draft, run, tools, outcome.needs)
        changes |= {"tools": tools, "approvals": approvals}
        return self._finish(draft, run, changes, ExecutionStatus.SUSPENDED, ExecutionPhase.AWAITING_APPROVAL)

    def authorize(self, run: Run, now: datetime) -> Built:
        """B4 after a suspension: what was approved is dispatched, the rest has its answer already."""
        draft = self._draft(run, now, "b4")
        tools = self.tool_rows.authorize(draft, run)
        work = frozenset(tool.work.operation_id for tool in tools if tool.work is not None)
        return self._finish(
            draft,
            run,
            {"tools": tools, "approvals": (), "disposition": ""},
            ExecutionStatus.ACTIVE,
            ExecutionPhase.RUNNING_TOOLS,
            work=work,
        )

    # --- recovery -------------------------------------------------------------------------------------

    def resume(self, run: Run, now: datetime) -> Built:
        """The run was taken up again from its rows; committed before anything of it goes on."""
        draft = self._draft(run, now, "resume")
        draft.record("execution_resumed", data={"entry": run.entry})
        phase = PHASES.get(run.entry, ExecutionPhase.CALLING_LLM)
        if run.stop_accepted:
            phase = ExecutionPhase.STOPPING
        draft.event("status", {"status": self._status(run), "phase": phase, "resumed": True})
        return self._finish(draft, run, {"disposition": ""}, self._status(run), phase)

    def unresolved(self, run: Run, now: datetime) -> Built:
        """What only a person can answer (rule 7): the disposition, and the evidence in the journal."""
        draft = self._draft(run, now, "unresolved")
        subjects = [
            {"subject_id": item.subject_id, "attempt": item.attempt, "what": item.what}
            for item in run.unresolved
        ]
        draft.record("resolution_required", data={"subjects": subjects})
        draft.event(
            "recovery", {"disposition": RecoveryDisposition.RESOLUTION_REQUIRED, "subjects": subjects}
        )
        phase = PHASES.get(run.entry, ExecutionPhase.CALLING_LLM)
        return self._finish(
            draft,
            run,
            {"disposition": RecoveryDisposition.RESOLUTION_REQUIRED},
            self._status(run),
            phase,
            disposition=RecoveryDisposition.RESOLUTION_REQUIRED,
        )

    @staticmethod
    def _status(run: Run) -> ExecutionStatus:
        if run.entry == State.SUSPENDED:
            return ExecutionStatus.SUSPENDED
        return ExecutionStatus.PREPARING if run.started_at is None else ExecutionStatus.ACTIVE

    # --- stop and end ---------------------------------------------------------------------------------

    def stop(self, run: Run, now: datetime) -> Built:
        """An accepted stop is a row (HARD_POINTS 9)."""
        draft = self._draft(run, now, "stop")
        stop = run.stop
        assert stop is not None  # noqa: S101 - asked for only with a stop
        draft.record("stop_requested", data={"kind": stop.kind, "reason": stop.reason})
        draft.event("status", {"status": ExecutionStatus.ACTIVE, "phase": ExecutionPhase.STOPPING})
        status = ExecutionStatus.ACTIVE if run.started_at else ExecutionStatus.PREPARING
        return self._finish(draft, run, {}, status, ExecutionPhase.STOPPING, stopped=True)

    def end(self, run: Run, now: datetime, barrier: str, hook: Callable[[], None] | None = None) -> Built:
        """B6, with whatever is still open: the last provider call (B3), unanswered tool calls, operations."""
        ending = run.ending
        assert ending is not None  # noqa: S101 - asked for only with an ending
        draft = self._draft(run, now, barrier)
        changes = self._record_last(draft, run)
        for request_id in run.approvals:
            draft.approval_changes.append(
                ApprovalChange(request_id, ApprovalState.PENDING, ApprovalState.WITHDRAWN, now)
            )
        if run.tools:
            changes |= self.tool_rows.record(draft, replace(run, **changes), run.tools)
        for work in self.operations.left_open.values():
            self.operations.close(draft, work, OperationState.FAILED, None)
        self._record_ending(draft, ending, changes)
        return self._finish(draft, run, changes, ending.status, ExecutionPhase.ENDED, hook=hook)

    def outcome(self, run: Run, now: datetime) -> Built:
        """B3 alone: the last word of the model, before application code or running work lets the run end."""
        draft = self._draft(run, now, "b3")
        changes = self._record_last(draft, run)
        return self._finish(draft, run, changes, ExecutionStatus.ACTIVE, ExecutionPhase.CALLING_LLM)

    def _record_last(self, draft: Draft, run: Run) -> dict[str, Any]:
        """Close the provider call; tools that it still asked for are answered as not performed."""
        if run.outcome is None:
            if run.call is None:
                return {}
            self._withdraw_call(draft, run.call)
            return {"call": None}
        changes = self._record_outcome(draft, run)
        if run.outcome.plans:
            tools = tuple(self.tool_rows.plan(run.outcome, perform=False))
            self.tool_rows.insert(draft, run, tools)
            changes |= self.tool_rows.record(draft, replace(run, **changes), tools)
        return changes

    def _withdraw_call(self, draft: Draft, call: LLMCallState) -> None:
        draft.record("llm_call_cancelled", data={"llm_call_id": call.llm_call_id})
        draft.llm_call_changes.append(
            LLMCallChange(
                call.llm_call_id, LLMCallStatus.CANCELLED, call.work.attempt, 0, 0, None, None, draft.now
            )
        )
        self.operations.close(draft, self.operations.current(call.work), OperationState.CANCELLED, None)

    @staticmethod
    def _record_ending(draft: Draft, ending: Ending, changes: dict[str, Any]) -> None:
        changes["result_content_id"] = changes["error_content_id"] = None
        if ending.output is not None:
            changes["result_content_id"] = draft.content(ending.output)
        if ending.failure is not None:
            changes["error_content_id"] = draft.content(canonical_bytes(ending.failure.as_json()))
        draft.record(
            f"execution_{ending.status}",
            content_id=changes["result_content_id"] or changes["error_content_id"],
            data={"reason": ending.reason} if ending.reason else None,
        )
        draft.event("end", {"status": ending.status, "reason": ending.reason})

    # --- shared ---------------------------------------------------------------------------------------

    def _draft(self, run: Run, now: datetime, barrier: str) -> Draft:
        return Draft(self.live, self.owner_id, now, barrier, run.execution_id, run.event_sequence)

    def _finish(
        self,
        draft: Draft,
        run: Run,
        changes: dict[str, Any],
        status: ExecutionStatus,
        phase: ExecutionPhase,
        *,
        stopped: bool = False,
        disposition: str = "",
        hook: Callable[[], None] | None = None,
        work: frozenset[str] = frozenset(),
    ) -> Built:
        ended = phase is ExecutionPhase.ENDED
        result = changes.pop("result_content_id", None)
        error = changes.pop("error_content_id", None)
        changes |= {"revision": run.revision + 1, "event_sequence": draft.event_sequence}
        stop = run.stop if run.stop_accepted or stopped else None
        draft.execution_change = ExecutionChange(
            run.execution_id,
            run.revision,
            run.revision + 1,
            status,
            phase,
            changes.get("iteration", run.iteration),
            draft.event_sequence,
            result,
            error,
            run.ending.reason if ended and run.ending is not None else "",
            disposition,
            stop.kind if stop else "",
            stop.reason if stop else "",
            stop.by if stop else None,
            stop.at if stop else None,
            run.usage.input_tokens,
            run.usage.output_tokens,
            run.usage.cost,
            run.tool_call_count,
            draft.transition_id,
            changes.get("started_at", run.started_at),
            draft.now if ended else None,
        )
        return draft.build(
            changes,
            lifecycle_status=LifecycleStatus.IDLE if ended else LifecycleStatus.BUSY,
            new_revision=ended,
            requires_no_stop=not (ended or stopped or run.stop_accepted),
            hook=hook,
            work=work,
        )
