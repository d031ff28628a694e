"""The rows of a batch of tool calls: planned, inserted, answered. One answer for each, in request order."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from phronomy_django.agents.definition import Definition
from phronomy_django.agents.draft import Draft
from phronomy_django.agents.manifests import context_message
from phronomy_django.agents.operation_rows import OperationRows
from phronomy_django.agents.run import ProviderOutcome, Run, ToolOutcome, ToolState, Work
from phronomy_django.domain.canonical import canonical_bytes
from phronomy_django.domain.ids import new_id
from phronomy_django.domain.messages import ToolMessage
from phronomy_django.domain.records import ToolInvocationChange, ToolInvocationRow
from phronomy_django.domain.statuses import OperationKind, OperationState, ToolInvocationStatus

__all__ = ["ToolRows"]


@dataclass(frozen=True, slots=True)
class ToolRows:
    definition: Definition
    operations: OperationRows

    def plan(self, outcome: ProviderOutcome, *, perform: bool) -> Iterable[ToolState]:
        """The state of each call: refused at once, dispatched, or (not ``perform``) answered as not performed."""
        assert outcome.response is not None  # noqa: S101 - only an answer has tool calls
        for call, plan in zip(outcome.response.tool_calls, outcome.plans, strict=True):
            if isinstance(plan, str):
                refused = ToolOutcome(status=ToolInvocationStatus.REFUSED, text=plan)
                arguments = canonical_bytes(call.arguments)
                yield ToolState(tool_invocation_id=new_id(), call=call, arguments=arguments, outcome=refused)
                continue
            tool, bound = plan
            work, answer = None, None
            if not perform:
                text = "The call was not performed: the run ended before it."
                answer = ToolOutcome(status=ToolInvocationStatus.NOT_PERFORMED, text=text)
            elif tool.cooperative:
                work = self.operations.on_loop()
            else:
                work = self.operations.work_for(self.definition.tool_pool(tool))
            yield ToolState(
                tool_invocation_id=new_id(),
                call=call,
                arguments=bound.canonical,
                tool=tool,
                bound=bound,
                work=work,
                outcome=answer,
            )

    def insert(self, draft: Draft, run: Run, tools: Sequence[ToolState]) -> None:
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
                self.operations.insert(
                    draft,
                    run.execution_id,
                    tool.work,
                    OperationKind.TOOL,
                    tool.tool_invocation_id,
                    content_id,
                )
            payload: dict[str, Any] = {
                "tool_invocation_id": tool.tool_invocation_id,
                "tool_call_id": tool.call.tool_call_id,
                "name": tool.call.name,
            }
            if tool.bound is not None:
                payload["arguments"] = tool.bound.redacted
            draft.event("tool_call", payload)

    def record(self, draft: Draft, run: Run, tools: Sequence[ToolState]) -> dict[str, Any]:
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
                self._answer(draft, tool, outcome, content_id)
                if tool.work is not None:
                    self._close(draft, tool.work, outcome, content_id)
        return {"own": (*run.own, *messages), "tools": ()}

    @staticmethod
    def _answer(draft: Draft, tool: ToolState, outcome: ToolOutcome, content_id: str) -> None:
        """The answer on the invocation's row: at once if this barrier inserts it, else as a change of it."""
        for index, row in enumerate(draft.tool_invocations):
            if row.tool_invocation_id == tool.tool_invocation_id:
                draft.tool_invocations[index] = row._replace(
                    result_content_id=content_id, finished_at=draft.now
                )
                return
        draft.tool_invocation_changes.append(
            ToolInvocationChange(tool.tool_invocation_id, outcome.status, content_id, draft.now)
        )

    def _close(self, draft: Draft, work: Work, outcome: ToolOutcome, content_id: str) -> None:
        work = self.operations.current(work)
        match outcome.status:
            case ToolInvocationStatus.SUCCEEDED:
                state = OperationState.SUCCEEDED
            case ToolInvocationStatus.CANCELLED | ToolInvocationStatus.NOT_PERFORMED:
                state = OperationState.CANCELLED
            case _:
                state = OperationState.FAILED
        if self.operations.still_runs(work):
            state = OperationState.STARTED  # its body was given up but still runs: closed when it ends
        self.operations.close(draft, work, state, content_id)
