"""The rows of a batch of tool calls: planned, inserted, answered. One answer for each, in request order."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from phronomy_django.agents.definition import Definition
from phronomy_django.agents.draft import Draft
from phronomy_django.agents.manifests import context_message
from phronomy_django.agents.operation_rows import OperationRows
from phronomy_django.agents.run import ApprovalNeed, ProviderOutcome, Run, ToolOutcome, ToolState, Work
from phronomy_django.domain.canonical import canonical_bytes, content_id_of
from phronomy_django.domain.ids import new_id
from phronomy_django.domain.messages import ToolMessage
from phronomy_django.domain.records import ApprovalRow, ToolInvocationChange, ToolInvocationRow
from phronomy_django.domain.statuses import ApprovalState, OperationKind, OperationState, ToolInvocationStatus

__all__ = ["ToolRows"]


@dataclass(frozen=True, slots=True)
class ToolRows:
    definition: Definition
    operations: OperationRows

    def plan(self, outcome: ProviderOutcome, *, perform: bool, hold: bool = False) -> Iterable[ToolState]:
        """The state of each call: refused at once, dispatched, or (not ``perform``) answered as not performed.

        With ``hold`` nothing is dispatched: a person has to decide on a call of the batch first.
        """
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
            elif not hold:
                work = self._dispatched(tool)
            yield ToolState(
                tool_invocation_id=new_id(),
                call=call,
                arguments=bound.canonical,
                tool=tool,
                bound=bound,
                work=work,
                outcome=answer,
            )

    def _dispatched(self, tool: Any) -> Work:
        if tool.cooperative:
            return self.operations.on_loop()
        return self.operations.work_for(self.definition.tool_pool(tool))

    def request_approvals(
        self, draft: Draft, run: Run, tools: Sequence[ToolState], needs: Sequence[ApprovalNeed | None]
    ) -> tuple[str, ...]:
        """The requests of a held batch, bound to the digest of the arguments that are shown."""
        requested = []
        for tool, need in zip(tools, needs, strict=True):
            if need is None:
                continue
            expires = None if need.seconds is None else draft.now + timedelta(seconds=need.seconds)
            row = ApprovalRow(
                new_id(),
                run.execution_id,
                tool.tool_invocation_id,
                ApprovalState.PENDING,
                content_id_of(tool.arguments),
                need.shown,
                need.facts,
                draft.now,
                expires,
            )
            draft.approvals.append(row)
            requested.append(row.approval_request_id)
            facts = {
                "approval_request_id": row.approval_request_id,
                "tool_invocation_id": tool.tool_invocation_id,
            }
            draft.record("approval_requested", data=facts)
            draft.event("approval_requested", {**facts, "name": tool.call.name})
        return tuple(requested)

    def authorize(self, draft: Draft, run: Run) -> tuple[ToolState, ...]:
        """Dispatch what was approved or needed no approval; a refused call keeps the answer that it has."""
        tools = tuple(
            tool
            if tool.outcome is not None or tool.tool is None
            else replace(tool, work=self._dispatched(tool.tool))
            for tool in run.tools
        )
        decisions = []
        for tool in tools:
            if tool.work is not None:
                content_id = draft.content(tool.arguments)
                draft.tool_invocation_changes.append(
                    ToolInvocationChange(tool.tool_invocation_id, ToolInvocationStatus.DISPATCHED, None, None)
                )
                self.operations.insert(
                    draft,
                    run.execution_id,
                    tool.work,
                    OperationKind.TOOL,
                    tool.tool_invocation_id,
                    content_id,
                )
            status = "dispatched" if tool.outcome is None else tool.outcome.status
            decisions.append({"tool_invocation_id": tool.tool_invocation_id, "status": status})
        draft.record("tools_authorized", data={"decisions": decisions})
        draft.event("tools_authorized", {"decisions": decisions})
        return tools

    def insert(self, draft: Draft, run: Run, tools: Sequence[ToolState]) -> None:
        call = run.call
        assert call is not None  # noqa: S101 - tools belong to the call that asked for them
        for position, tool in enumerate(tools):
            content_id = draft.content(tool.arguments)
            status = (
                ToolInvocationStatus.DISPATCHED if tool.work is not None else ToolInvocationStatus.PLANNED
            )
            if tool.outcome is not None:
                status = ToolInvocationStatus(tool.outcome.status)
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
