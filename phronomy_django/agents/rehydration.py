"""From rows back to a run: what an unfinished execution was doing, and where it goes on (DESIGN §7).

Pure: it decides from values only. What nobody can know becomes ``unresolved``; nothing is guessed (rule 7).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from phronomy_django.agents import bodies
from phronomy_django.agents.commands import Limits, State
from phronomy_django.agents.definition import Definition
from phronomy_django.agents.manifests import context_message
from phronomy_django.agents.run import (
    ContextMessage,
    Ending,
    Failure,
    LLMCallState,
    ProviderOutcome,
    Run,
    Start,
    Stop,
    ToolOutcome,
    ToolState,
    Unresolved,
    Work,
)
from phronomy_django.agents.steps import ending_after_answer, ending_of_stop
from phronomy_django.domain.canonical import canonical_bytes, storable_text
from phronomy_django.domain.messages import (
    AssistantMessage,
    LLMResponse,
    ToolCall,
    Usage,
    UserMessage,
    message_from_json,
)
from phronomy_django.domain.statuses import (
    ApprovalState,
    ExecutionStatus,
    LLMCallStatus,
    OperationState,
    ResolutionOutcome,
    StopKind,
    ToolInvocationStatus,
)
from phronomy_django.store import InvocationFact, OperationFact, ResolutionFact, UnfinishedExecution

__all__ = ["Rehydrated", "rehydrate"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehydrated:
    """``run.entry`` says where it goes on, ``run.unresolved`` why it cannot. ``wait``: work of a living worker."""

    start: Start
    run: Run
    left_open: dict[str, Work]
    wait: bool = False


def rehydrate(
    definition: Definition,
    found: UnfinishedExecution,
    *,
    history: tuple[ContextMessage, ...],
    knowledge: tuple[str, ...],
    still_runs: Callable[[str], bool],
) -> Rehydrated:
    """The run of ``found`` and its way on. ``still_runs(operation_id)``: its body runs in this process."""
    return _Reader(definition, found, still_runs).read(history, knowledge)


class _Reader:
    def __init__(
        self, definition: Definition, found: UnfinishedExecution, still_runs: Callable[[str], bool]
    ) -> None:
        self.definition = definition
        self.found = found
        self.still_runs = still_runs
        self.operations = {operation.subject_id: operation for operation in found.operations}
        self.resolutions = {(item.subject_id, item.attempt): item for item in found.resolutions}
        self.unresolved: list[Unresolved] = []
        self.wait = False

    def read(self, history: tuple[ContextMessage, ...], knowledge: tuple[str, ...]) -> Rehydrated:
        found = self.found
        own = tuple(ContextMessage(message_from_json(json.loads(item.body)), item.body) for item in found.own)
        prepared, instructions = self._prepared()
        message = own[0].message
        assert isinstance(message, UserMessage)  # noqa: S101 - the first own record is the input
        start = Start(
            execution_id=found.execution_id,
            message=message,
            body=own[0].body,
            durable_context=MappingProxyType(dict(found.durable_context)),
            context_json=canonical_bytes(dict(found.durable_context)).decode(),
            deadline=found.deadline,
            idempotency_key=found.idempotency_key,
            digest=found.input_digest,
            by=found.created_by,
            admitted_at=found.created_at,
        )
        run = Run(
            execution_id=found.execution_id,
            revision=found.execution_revision,
            iteration=found.iteration,
            event_sequence=found.event_sequence,
            prepared=found.first_manifest is not None or not self.definition.has_preparation,
            history=history,
            own=own,
            knowledge=knowledge,
            prepared_messages=prepared,
            instructions=instructions,
            model_index=self._model_index(),
            call_count=found.call_count,
            usage=Usage(found.input_tokens, found.output_tokens, found.cost),
            tool_call_count=found.tool_call_count,
            input_content_id=found.input_content_id,
            started_at=found.started_at,
            disposition=found.recovery_disposition,
        )
        run = self._stopped(self._placed(run))
        left_open = {
            operation.operation_id: _work(operation)
            for operation in found.operations
            if operation.abandoned and operation.state == OperationState.STARTED
        }
        return Rehydrated(
            start=start,
            run=replace(run, unresolved=tuple(self.unresolved)),
            left_open=left_open,
            wait=self.wait,
        )

    def _prepared(self) -> tuple[tuple[ContextMessage, ...] | None, str | None]:
        """A committed manifest is used as it is; the context policy is not asked again."""
        if self.found.first_manifest is None:
            return None, None
        value = json.loads(self.found.first_manifest)
        messages = tuple(context_message(message_from_json(item)) for item in value["messages"])
        return messages, str(value["instructions"])

    def _model_index(self) -> int:
        call, labels = self.found.last_call, self.definition.labels
        return labels.index(call.model) if call is not None and call.model in labels else 0

    # --- where it was -----------------------------------------------------------------------------------

    def _placed(self, run: Run) -> Run:
        call = self.found.last_call
        if call is None:
            return replace(run, entry=State.PREPARING if not run.prepared else State.DISPATCHING)
        if call.status == LLMCallStatus.DISPATCHED:
            return self._calling(run)
        last = run.own[-1].message
        if isinstance(last, AssistantMessage) and last.tool_calls:
            return self._with_tools(run, last)
        return self._ending(run, last)

    def _calling(self, run: Run) -> Run:
        call = self.found.last_call
        assert call is not None  # noqa: S101 - asked by the caller
        operation = self.operations[call.llm_call_id]
        state = LLMCallState(
            llm_call_id=call.llm_call_id,
            ordinal=call.ordinal,
            model_index=run.model_index,
            work=_work(operation),
            manifest=call.manifest,
        )
        run = replace(run, call=state, entry=State.CALLING_LLM)
        adapter, _ = self.definition.adapters[run.model_index]
        replayable = self.definition.replay_safe and adapter.replay_safe
        verdict = self._verdict(operation, replayable, f"provider call to {call.model}")
        if isinstance(verdict, ResolutionFact):
            return replace(run, said=self._said_of_call(verdict))
        return run

    def _said_of_call(self, said: ResolutionFact) -> ProviderOutcome:
        if said.outcome == ResolutionOutcome.SUCCEEDED:
            text = said.result if isinstance(said.result, str) else json.dumps(said.result)
            return bodies.interpret(self.definition, LLMResponse(storable_text(text)))
        return ProviderOutcome(failure=Failure("ResolvedAsFailed", said.error))

    def _with_tools(self, run: Run, asked: AssistantMessage) -> Run:
        tools = tuple(
            self._tool(call, fact)
            for call, fact in zip(asked.tool_calls, self.found.invocations, strict=True)
        )
        if any(fact.status == ToolInvocationStatus.PLANNED for fact in self.found.invocations):
            return self._decided(replace(run, tools=tools, entry=State.AUTHORIZING))
        done = all(tool.outcome is not None for tool in tools)
        return replace(run, tools=tools, entry=State.DISPATCHING if done else State.RUNNING_TOOLS)

    def _tool(self, call: ToolCall, fact: InvocationFact) -> ToolState:
        plan = bodies.plan_call(self.definition, call)
        operation = self.operations.get(fact.tool_invocation_id)
        state = ToolState(
            tool_invocation_id=fact.tool_invocation_id,
            call=call,
            arguments=b"",
            work=None if operation is None else _work(operation),
        )
        if isinstance(plan, str):
            outcome = ToolOutcome(status=ToolInvocationStatus.REFUSED, text=plan)
            return replace(state, arguments=canonical_bytes(call.arguments), outcome=outcome)
        tool, bound = plan
        state = replace(state, arguments=bound.canonical, tool=tool, bound=bound)
        if fact.status == ToolInvocationStatus.PLANNED:
            return self._with_decision(state)
        if fact.result is not None:
            text = str(json.loads(fact.result)["content"])
            return replace(state, outcome=ToolOutcome(status=fact.status, text=text, recorded=True))
        assert operation is not None  # noqa: S101 - a dispatched call has its operation
        verdict = self._verdict(operation, tool.replay_safe or tool.transactional, f"tool {tool.name!r}")
        if isinstance(verdict, ResolutionFact):
            return replace(state, outcome=_said_of_tool(verdict, operation.attempt))
        return state

    # --- what people decided ----------------------------------------------------------------------------

    def _with_decision(self, state: ToolState) -> ToolState:
        """A planned call with the decision on it; edited arguments take the place of the model's."""
        said = next(
            (item for item in self.found.approvals if item.tool_invocation_id == state.tool_invocation_id),
            None,
        )
        if said is None or said.state == ApprovalState.PENDING:
            return state
        if said.state != ApprovalState.APPROVED:
            text = (
                "Nobody decided on this call in time."
                if said.state == ApprovalState.EXPIRED
                else (f"A person rejected this call{': ' + said.reason if said.reason else '.'}")
            )
            return replace(
                state, outcome=ToolOutcome(status=ToolInvocationStatus.REJECTED, text=storable_text(text))
            )
        if said.edited_arguments is None:
            return replace(state, approved=True)
        edited = ToolCall(state.call.tool_call_id, state.call.name, json.dumps(said.edited_arguments))
        plan = bodies.plan_call(self.definition, edited)
        if isinstance(plan, str):
            return replace(state, outcome=ToolOutcome(status=ToolInvocationStatus.REFUSED, text=plan))
        return replace(state, bound=plan[1], arguments=plan[1].canonical, approved=True)

    def _decided(self, run: Run) -> Run:
        """Where a held batch goes on: nowhere while a request is pending; to its end if a rejection ends it."""
        pending = tuple(
            item.approval_request_id for item in self.found.approvals if item.state == ApprovalState.PENDING
        )
        if pending:
            return replace(run, approvals=pending, entry=State.SUSPENDED)
        for tool in run.tools:
            rejected = tool.outcome is not None and tool.outcome.status == ToolInvocationStatus.REJECTED
            if rejected and tool.tool is not None and tool.tool.on_rejection == "end":
                assert tool.outcome is not None  # noqa: S101 - it was rejected
                failure = Failure("ToolRejected", f"{tool.tool.name}: {tool.outcome.text}")
                ending = Ending(status=ExecutionStatus.REJECTED, reason="rejected", failure=failure)
                return replace(
                    run, ending=ending, entry=State.ENDING, tools=tuple(map(_unperformed, run.tools))
                )
        return run

    def _verdict(self, operation: OperationFact, replayable: bool, what: str) -> ResolutionFact | None:
        """DESIGN §7, row by row: None means that it may run (again); what cannot be known is noted."""
        if operation.state != OperationState.STARTED:
            return None  # queued, never started: the same operation
        if not operation.lost or self.still_runs(operation.operation_id):
            self.wait = True
            return None
        said = self.resolutions.get((operation.subject_id, operation.attempt))
        if said is not None:
            return None if said.outcome == ResolutionOutcome.NOT_PERFORMED else said
        if not replayable:
            self.unresolved.append(
                Unresolved(subject_id=operation.subject_id, attempt=operation.attempt, what=what)
            )
        return None

    # --- how it ends ------------------------------------------------------------------------------------

    def _ending(self, run: Run, last: Any) -> Run:
        """B3 was committed and B6 was not: the last word is in the rows."""
        call = self.found.last_call
        assert call is not None  # noqa: S101 - asked by the caller
        if call.status == LLMCallStatus.FAILED and call.outcome is not None:
            value = json.loads(call.outcome)
            outcome = ProviderOutcome(failure=Failure(value["type"], value["message"]))
        elif call.outcome is not None:
            said = message_from_json(json.loads(call.outcome))
            assert isinstance(said, AssistantMessage)  # noqa: S101 - what B3 stores
            outcome = bodies.interpret(self.definition, LLMResponse(said.text, said.tool_calls))
        else:
            outcome = ProviderOutcome(failure=Failure("LLMError", "The provider call was cancelled."))
        asked = 0 if outcome.response is None else len(outcome.response.tool_calls)
        counted = replace(run, tool_call_count=max(0, run.tool_call_count - asked))
        limits = Limits(
            max_iterations=self.definition.max_iterations,
            model_count=len(self.definition.models),
            exceeded=bodies.exceeded_limit(self.definition.usage_limits, counted, outcome),
        )
        return replace(run, ending=ending_after_answer(run, outcome, limits), entry=State.ENDING)

    def _stopped(self, run: Run) -> Run:
        """An accepted stop is looked at first (HARD_POINTS 9): nothing starts any more."""
        found = self.found
        if not found.stop_kind or found.stop_at is None:
            return run
        stop = Stop(
            kind=StopKind(found.stop_kind), reason=found.stop_reason, by=found.stop_by, at=found.stop_at
        )
        ending: Ending = run.ending if run.ending is not None else ending_of_stop(stop)
        return replace(run, stop=stop, stop_accepted=True, ending=ending, entry=State.ENDING)


def _work(operation: OperationFact) -> Work:
    return Work(
        operation_id=operation.operation_id,
        pool=operation.pool,
        attempt=operation.attempt,
        claim=operation.claim,
        state=OperationState(operation.state),
        started_at=operation.started_at,
    )


def _unperformed(tool: ToolState) -> ToolState:
    if tool.outcome is not None:
        return tool
    text = "The call was not performed: another call of its batch was rejected, which ended the run."
    return replace(tool, outcome=ToolOutcome(status=ToolInvocationStatus.NOT_PERFORMED, text=text))


def _said_of_tool(said: ResolutionFact, attempt: int) -> ToolOutcome:
    if said.outcome == ResolutionOutcome.SUCCEEDED:
        text = said.result if isinstance(said.result, str) else json.dumps(said.result, ensure_ascii=False)
        return ToolOutcome(status=ToolInvocationStatus.SUCCEEDED, text=storable_text(text), attempts=attempt)
    return ToolOutcome(status=ToolInvocationStatus.FAILED, text=storable_text(said.error), attempts=attempt)
