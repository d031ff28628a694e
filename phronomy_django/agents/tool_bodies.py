"""The body of one tool invocation, for whichever place it runs in: a thread, a coroutine, the loop, a transaction."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from phronomy_django.agents import bodies
from phronomy_django.agents.live import LiveAgent
from phronomy_django.agents.manifests import context_message
from phronomy_django.agents.operations import OperationRunner
from phronomy_django.agents.run import Run, Start, ToolOutcome, ToolState
from phronomy_django.agents.services import Services
from phronomy_django.domain.messages import ToolMessage
from phronomy_django.domain.records import ContentRow, OperationChange, ToolInvocationChange
from phronomy_django.domain.statuses import OperationState, ToolInvocationStatus
from phronomy_django.engine import CancellationToken
from phronomy_django.store import BodyFailed, OutcomeRows, run_transactional
from phronomy_django.tools import ToolContext

__all__ = ["ToolBodies"]

#: Seconds that a transactional tool without a timeout of its own may hold its transaction.
TRANSACTIONAL_SECONDS = 10.0


class ToolBodies:
    """Makes the body of each attempt. ``token`` is what the tool sees as ``ctx.cancelled``."""

    def __init__(
        self,
        *,
        services: Services,
        live: LiveAgent,
        start: Start,
        run: Run,
        state: ToolState,
        runner: OperationRunner,
    ) -> None:
        assert state.tool is not None and state.bound is not None and state.work is not None  # noqa: S101
        self.services = services
        self.state = state
        self.tool = state.tool
        self.bound = state.bound
        self.work = state.work
        self.runner = runner
        self.token = CancellationToken()
        self._context = ToolContext(
            agent_id=live.agent_id,
            execution_id=run.execution_id,
            tool_invocation_id=state.tool_invocation_id,
            tool_call_id=state.call.tool_call_id,
            durable_context=start.durable_context or {},
            deadline=start.deadline,
            cancellation_token=self.token,
        )

    def body(self, attempt: int) -> Callable[[], Any]:
        """The function for the pool. ``attempt`` counts from 1; the idempotency key is the same in each."""
        tool, bound = self.tool, self.bound
        context = replace(self._context, attempt=attempt)
        if tool.transactional:
            work = self.runner.current(self.work)
            return lambda: self._transactional(context, work)
        if not tool.is_async:
            return lambda: bodies.run_tool(tool, context, bound)

        async def run() -> ToolOutcome:
            return await bodies.run_async_tool(tool, context, bound)

        return run if self.work.pool in self.services.coroutine_pools else lambda: asyncio.run(run())

    def retry(self, error: BaseException, attempt: int) -> float | None:
        policy = self.tool.retry
        return None if policy is None else policy.delay_after(error, attempt)

    def call_on_loop(self) -> tuple[ToolOutcome | None, Exception | None]:
        """A cooperative tool: short, on the loop, where a query or a wait raises."""
        try:
            return bodies.run_tool(self.tool, self._context, self.bound), None
        except Exception as error:  # noqa: BLE001 - whatever a tool raises becomes its answer
            return None, error

    def _transactional(self, context: ToolContext, work: Any) -> ToolOutcome:
        """The tool's writes and its outcome are one transaction: it happened exactly if it is recorded."""
        result = run_transactional(
            using=self.services.database,
            body=lambda: bodies.run_tool(self.tool, context, self.bound),
            outcome_of=lambda outcome: self._rows(outcome, work),
            timeout=self.tool.timeout or TRANSACTIONAL_SECONDS,
            durable=not self.services.scheduler.inline,
        )
        if isinstance(result, BodyFailed):
            raise result.error
        return replace(result.value, recorded=True)

    def _rows(self, outcome: ToolOutcome, work: Any) -> OutcomeRows:
        call, now = self.state.call, self.services.now()
        message = context_message(ToolMessage(call.tool_call_id, call.name, outcome.text, outcome.status))
        content = ContentRow.of(message.body)
        return OutcomeRows(
            change=OperationChange(
                work.operation_id,
                work.state,
                work.attempt,
                work.claim,
                OperationState.SUCCEEDED,
                work.attempt,
                work.claim,
                self.services.runtime_id,
                "",
                content.content_id,
                False,
                now,
                work.started_at,
                now,
            ),
            contents=(content,),
            tool_invocation_change=ToolInvocationChange(
                self.state.tool_invocation_id, ToolInvocationStatus.SUCCEEDED, content.content_id, now
            ),
        )
