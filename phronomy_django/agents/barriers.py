"""The barriers of DESIGN §6: from the live state of a run to the transition that commits it.

Builds values only; it neither commits nor starts anything. Every ``tool_call_id`` that a model asked for gets
exactly one result in the journal, in request order, whatever became of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from phronomy_django.agents.draft import Built, Draft
from phronomy_django.agents.live import LiveAgent
from phronomy_django.agents.run import (
    ContextMessage,
    Ending,
    LLMCallState,
    ProviderOutcome,
    Run,
    ToolOutcome,
    ToolState,
    Work,
)
from phronomy_django.domain.canonical import canonical_bytes, canonical_object
from phronomy_django.domain.ids import new_id
from phronomy_django.domain.messages import AssistantMessage, ToolMessage, UserMessage
from phronomy_django.domain.records import (
    ExecutionChange,
    ExecutionRow,
    LLMCallChange,
    LLMCallRow,
    OperationChange,
    OperationRow,
    ToolInvocationChange,
    ToolInvocationRow,
)
from phronomy_django.domain.statuses import (
    ExecutionPhase,
    ExecutionStatus,
    LifecycleStatus,
    LLMCallStatus,
    OperationKind,
    OperationState,
    ToolInvocationStatus,
)

__all__ = ["Barriers", "Start", "compose_instructions", "context_message", "manifest"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """What a caller asked for, checked already: the facts of B1."""

    execution_id: str
    message: UserMessage
    body: bytes
    attachments: tuple[tuple[bytes, str], ...] = ()
    durable_context: Any = None
    context_json: str = "{}"
    deadline: datetime | None = None
    idempotency_key: str | None = None
    digest: str = ""
    by: Any = None
    stream: bool = False


def context_message(message: UserMessage | AssistantMessage | ToolMessage) -> ContextMessage:
    return ContextMessage(message, canonical_bytes(message.as_json()))


def compose_instructions(instructions: str, knowledge: Sequence[str]) -> str:
    """The instructions with the agent's knowledge below them."""
    if not knowledge:
        return instructions
    return "\n\n".join([instructions, "What you know:", *knowledge]).strip()


def manifest(live: LiveAgent, run: Run) -> bytes:
    """The exact logical input of the next provider call, canonical: what is frozen at B2."""
    members = dict(live.definition.fixed_members)
    if run.instructions is not None:
        members["instructions"] = canonical_bytes(run.instructions)
    elif run.knowledge:
        members["instructions"] = canonical_bytes(
            compose_instructions(live.definition.instructions, run.knowledge)
        )
    members["model"] = canonical_bytes(live.definition.labels[run.model_index])
    members["messages"] = b"[" + b",".join([message.body for message in run.messages]) + b"]"
    return canonical_object(members)


@dataclass(frozen=True, slots=True)
class Barriers:
    """Builds the transitions of one run.

    ``work_for(pool)`` gives a fresh operation for a pool, ``started`` if a slot of it is reserved
    (HARD_POINTS 7). ``current(operation_id)`` is the attempt and claim that count now; ``leftovers`` are
    operations of earlier batches whose rows are still open. ``hook`` is application code that runs first.
    """

    live: LiveAgent
    owner_id: str
    work_for: Callable[[str], Work]
    current: Callable[[Work], Work]
    leftovers: Callable[[], Sequence[Work]]

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
            changes |= self._record_tools(draft, run, run.tools)
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
        work = self.work_for(definition.llm_pool(run.model_index))
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
        draft.operations.append(
            self._operation(draft, run, work, OperationKind.LLM_CALL, call.llm_call_id, content_id)
        )
        draft.record(
            "llm_call_dispatched",
            content_id=content_id,
            data={"llm_call_id": call.llm_call_id, "ordinal": call.ordinal, "model": label},
        )
        return {"call": call, "call_count": call.ordinal, "iteration": run.iteration + 1, "tools": ()}

    def _operation(
        self, draft: Draft, run: Run, work: Work, kind: str, subject_id: str, request: str
    ) -> OperationRow:
        started = work.state is OperationState.STARTED
        return OperationRow(
            work.operation_id,
            run.execution_id,
            kind,
            subject_id,
            work.pool,
            work.state,
            work.attempt,
            work.claim,
            self.owner_id if started else None,
            "",
            request,
            draft.now,
            draft.now,
            draft.now if started else None,
        )

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
        draft.operation_changes.append(self._close(self.current(call.work), state, now, content_id))
        return {"call": None, "outcome": None, "own": own}

    # --- tools ----------------------------------------------------------------------------------------

    def tools(self, run: Run, now: datetime) -> Built:
        """B3 and B4: the provider's answer, the whole batch of tool invocations, their operations."""
        draft = self._draft(run, now, "b3_b4")
        outcome = run.outcome
        assert outcome is not None  # noqa: S101 - the plan is the outcome's
        changes = self._record_outcome(draft, run)
        tools = tuple(self._plan(outcome, self.live.definition.tool_pool))
        self._insert_tools(draft, run, tools)
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

    def _plan(
        self, outcome: ProviderOutcome, pool_of: Callable[[Any], str] | None, status: str = ""
    ) -> Iterable[ToolState]:
        assert outcome.response is not None  # noqa: S101 - only an answer has tool calls
        for call, plan in zip(outcome.response.tool_calls, outcome.plans, strict=True):
            if isinstance(plan, str):
                refused = ToolOutcome(status=ToolInvocationStatus.REFUSED, text=plan)
                arguments = canonical_bytes(call.arguments)
                yield ToolState(tool_invocation_id=new_id(), call=call, arguments=arguments, outcome=refused)
                continue
            tool, bound = plan
            work, answer = None, None
            if pool_of is None:
                answer = ToolOutcome(
                    status=status, text="The call was not performed: the run ended before it."
                )
            else:
                work = self._cooperative() if tool.cooperative else self.work_for(pool_of(tool))
            yield ToolState(
                tool_invocation_id=new_id(),
                call=call,
                arguments=bound.canonical,
                tool=tool,
                bound=bound,
                work=work,
                outcome=answer,
            )

    @staticmethod
    def _cooperative() -> Work:
        return Work(operation_id=new_id(), pool="", claim=new_id(), state=OperationState.STARTED)

    def _insert_tools(self, draft: Draft, run: Run, tools: Sequence[ToolState]) -> None:
        call = run.call
        assert call is not None  # noqa: S101 - tools belong to the call that asked for them
        for position, tool in enumerate(tools):
            content_id = draft.content(tool.arguments)
            status = ToolInvocationStatus.DISPATCHED if tool.outcome is None else tool.outcome.status
            draft.tool_invocations.append(
                ToolInvocationRow(
                    tool.tool_invocation_id,
                    run.execution_id,
                    call.llm_call_id,
                    tool.call.tool_call_id,
                    position,
                    tool.call.name,
                    content_id,
                    status,
                    draft.now,
                )
            )
            if tool.work is not None:
                draft.operations.append(
                    self._operation(
                        draft, run, tool.work, OperationKind.TOOL, tool.tool_invocation_id, content_id
                    )
                )
            payload: dict[str, Any] = {
                "tool_invocation_id": tool.tool_invocation_id,
                "tool_call_id": tool.call.tool_call_id,
                "name": tool.call.name,
            }
            if tool.bound is not None:
                payload["arguments"] = tool.bound.redacted
            draft.event("tool_call", payload)

    def _record_tools(self, draft: Draft, run: Run, tools: Sequence[ToolState]) -> dict[str, Any]:
        """B5: one result for each tool call, in request order, whatever the order of completion."""
        messages = []
        for tool in tools:
            outcome = tool.outcome or ToolOutcome(
                status=ToolInvocationStatus.CANCELLED, text="The call was cancelled before it gave a result."
            )
            message = context_message(
                ToolMessage(tool.call.tool_call_id, tool.call.name, outcome.text, outcome.status)
            )
            messages.append(message)
            content_id = draft.content(message.body)
            draft.record(
                "tool_result",
                channel="transcript",
                role="tool",
                content_id=content_id,
                candidate=True,
                data={
                    "tool_invocation_id": tool.tool_invocation_id,
                    "status": outcome.status,
                    "attempts": outcome.attempts,
                },
            )
            draft.event(
                "tool_result",
                {
                    "tool_invocation_id": tool.tool_invocation_id,
                    "tool_call_id": tool.call.tool_call_id,
                    "name": tool.call.name,
                    "status": outcome.status,
                },
            )
            if not outcome.recorded:
                draft.tool_invocation_changes.append(
                    ToolInvocationChange(tool.tool_invocation_id, outcome.status, content_id, draft.now)
                )
                if tool.work is not None:
                    self._close_tool(draft, tool.work, outcome, content_id)
        return {"own": (*run.own, *messages), "tools": ()}

    def _close_tool(self, draft: Draft, work: Work, outcome: ToolOutcome, content_id: str) -> None:
        work = self.current(work)
        match outcome.status:
            case ToolInvocationStatus.SUCCEEDED:
                state = OperationState.SUCCEEDED
            case ToolInvocationStatus.CANCELLED | ToolInvocationStatus.NOT_PERFORMED:
                state = OperationState.CANCELLED
            case _:
                state = OperationState.FAILED
        if work.operation_id in {leftover.operation_id for leftover in self.leftovers()}:
            state = OperationState.STARTED  # its body was given up but still runs: closed when it ends
        draft.operation_changes.append(self._close(work, state, draft.now, content_id))

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
        if run.tools:
            changes |= self._record_tools(draft, replace(run, **changes), run.tools)
        for work in self.leftovers():
            draft.operation_changes.append(self._close(work, OperationState.FAILED, now, None))
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
            tools = tuple(self._plan(run.outcome, None, ToolInvocationStatus.NOT_PERFORMED))
            self._insert_tools(draft, run, tools)
            changes |= self._record_tools(draft, replace(run, **changes), tools)
        return changes

    def _withdraw_call(self, draft: Draft, call: LLMCallState) -> None:
        draft.record("llm_call_cancelled", data={"llm_call_id": call.llm_call_id})
        draft.llm_call_changes.append(
            LLMCallChange(
                call.llm_call_id, LLMCallStatus.CANCELLED, call.work.attempt, 0, 0, None, None, draft.now
            )
        )
        draft.operation_changes.append(
            self._close(self.current(call.work), OperationState.CANCELLED, draft.now, None)
        )

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

    def _close(
        self, work: Work, state: OperationState, now: datetime, outcome: str | None
    ) -> OperationChange:
        started = work.state is OperationState.STARTED
        still_runs = state is OperationState.STARTED
        return OperationChange(
            work.operation_id,
            work.state,
            work.attempt,
            work.claim,
            state,
            work.attempt,
            work.claim,
            self.owner_id if started else None,
            "",
            outcome,
            still_runs,
            now,
            (work.started_at or now) if started else None,
            None if still_runs else now,
        )

    def _finish(
        self,
        draft: Draft,
        run: Run,
        changes: dict[str, Any],
        status: ExecutionStatus,
        phase: ExecutionPhase,
        *,
        stopped: bool = False,
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
            "",
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
            requires_no_stop=not ended and not stopped,
            hook=hook,
            work=work,
        )
