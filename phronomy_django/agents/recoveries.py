"""Unfinished executions that are taken up again: on start, on taking over an agent, and on request (DESIGN §7).

Loop thread only. A few at a time, so that new work is not behind thousands of old executions.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

from phronomy_django.agents.barriers import Barriers
from phronomy_django.agents.commands import EventName, State
from phronomy_django.agents.coordinator import Coordinator
from phronomy_django.agents.definition import Definition
from phronomy_django.agents.draft import Built
from phronomy_django.agents.loading import live_agent, load_unfinished_agent, stored_result
from phronomy_django.agents.messages import Loaded, LoadedAgent, OwnerToken, ResumeExecution
from phronomy_django.agents.results import ExecutionTask, Feed, suspended_result
from phronomy_django.agents.run import Run, Start, Unresolved, resolution_required
from phronomy_django.agents.services import Services
from phronomy_django.domain.errors import (
    ConflictError,
    NotFoundError,
    PhronomyError,
)
from phronomy_django.domain.messages import Usage
from phronomy_django.domain.statuses import RecoveryDisposition
from phronomy_django.store import CommitAnswer, Committed, UnfinishedExecution

if TYPE_CHECKING:
    from phronomy_django.agents.receiver import AgentsReceiver

__all__ = ["HoldAnswered", "Recoveries", "RecoveryDue"]

logger = logging.getLogger("phronomy_django.agents")

#: How many are loaded at the same time.
AT_ONCE = 16
FIRST_WAIT = 0.5
LONGEST_WAIT = 30.0


@dataclass(frozen=True, slots=True, eq=False)
class HoldAnswered:
    """The writer has answered for an execution that this process has no definition for."""

    request: ResumeExecution
    token: OwnerToken
    answer: CommitAnswer
    error: PhronomyError


class Recoveries:
    """See the module. ``receiver`` owns admissions and live agents; this owns the queue and the ways on."""

    def __init__(self, receiver: AgentsReceiver, services: Services) -> None:
        self._receiver = receiver
        self._services = services
        self._queue: deque[ResumeExecution] = deque()
        self._loading = 0
        self._tries: dict[str, int] = {}
        self._hints: dict[str, list[ResumeExecution]] = {}

    # --- the queue --------------------------------------------------------------------------------------

    def enqueue(self, requests: list[ResumeExecution]) -> None:
        """Take these up as room allows."""
        self._queue.extend(requests)
        self.pump()

    def pump(self) -> None:
        while self._queue and self._loading < AT_ONCE:
            request = self._queue.popleft()
            self._loading += 1
            if not self._receiver.request(request):
                self._loading -= 1

    def settled(self) -> None:
        """A request's load was answered, or it never began."""
        self._loading = max(0, self._loading - 1)
        self.pump()

    def wait(self, request: ResumeExecution) -> None:
        """The agent is held just now, perhaps by a load that began before the decision that this request tells of.

        It is looked at again when the agent is free: a hint that is lost would leave a decision unread.
        """
        self._hints.setdefault(request.agent_id, []).append(request)

    def freed(self, agent_id: str) -> None:
        """An agent has become free: look again at what waited for that."""
        hints = self._hints.pop(agent_id, None)
        if hints is not None:
            self.enqueue(hints)

    def again(
        self, agent_id: str, execution_id: str, definition: Any, task: ExecutionTask | None = None
    ) -> None:
        """Try this execution once more, ever later: it waits for a worker that lives, or for the database."""
        tries = self._tries[execution_id] = self._tries.get(execution_id, -1) + 1
        request = self.request_for(agent_id, execution_id, definition, task)
        delay = min(LONGEST_WAIT, FIRST_WAIT * 2.0**tries)
        self._services.timers.call_later(delay, lambda: self._receiver.post(RecoveryDue(request)))

    def request_for(
        self,
        agent_id: str,
        execution_id: str,
        definition: Definition | None,
        task: ExecutionTask | None = None,
    ) -> ResumeExecution:
        return ResumeExecution(
            agent_id=agent_id,
            execution_id=execution_id,
            definition=definition,
            task=task or ExecutionTask(execution_id, agent_id, self._services.scheduler),
        )

    # --- loading ----------------------------------------------------------------------------------------

    def job(self, request: ResumeExecution) -> Callable[[], LoadedAgent]:
        services, running = self._services, self._receiver.runner.bodies
        return lambda: load_unfinished_agent(services, request, running)

    def loaded(self, message: Loaded) -> None:
        request, found = message.request, message.found
        assert isinstance(request, ResumeExecution)  # noqa: S101 - asked by the receiver
        self.settled()
        if found is None:
            self._receiver.let_go(request.agent_id, message.token)
            self._not_loaded(request, message.error)
            return
        unfinished = found.unfinished
        if unfinished is None or (request.execution_id and unfinished.execution_id != request.execution_id):
            self._receiver.let_go(request.agent_id, message.token)
            self._ended_already(request, found)
            return
        if found.mismatch is not None:
            self._hold(request, message.token, found, unfinished, found.mismatch)
            return
        self._go_on(request, message.token, found, unfinished)

    def _not_loaded(self, request: ResumeExecution, error: BaseException | None) -> None:
        if isinstance(error, ConflictError | NotFoundError) or request.execution_id == "":
            self._refuse(request, error or NotFoundError(f"There is no agent {request.agent_id!r}."))
            return
        logger.warning("Execution %s could not be loaded for recovery: %s", request.execution_id, error)
        self.again(request.agent_id, request.execution_id, request.definition, request.task)

    def _ended_already(self, request: ResumeExecution, found: LoadedAgent) -> None:
        if found.earlier is None:
            request.task.set_error(NotFoundError(f"Agent {request.agent_id!r} has nothing to resume."))
            return
        request.task.execution_id = found.earlier.execution_id
        request.task.set_result(stored_result(found.earlier, request.definition))

    def _go_on(
        self, request: ResumeExecution, token: OwnerToken, found: LoadedAgent, unfinished: UnfinishedExecution
    ) -> None:
        rehydrated, definition = found.rehydrated, request.definition
        run = rehydrated.run
        request.task.execution_id = run.execution_id
        if rehydrated.wait:
            self._receiver.let_go(request.agent_id, token)
            self.again(request.agent_id, run.execution_id, definition, request.task)
            return
        if run.entry == State.SUSPENDED and not self._to_stop(rehydrated.start):
            self._receiver.let_go(request.agent_id, token)
            request.task.set_result(suspended_result(run.execution_id, run.usage, run.approvals))
            return
        if run.unresolved and run.disposition == RecoveryDisposition.RESOLUTION_REQUIRED:
            self._receiver.let_go(request.agent_id, token)
            self._refuse(request, resolution_required(request.agent_id, run))
            return
        assert definition is not None  # noqa: S101 - a missing one is a mismatch
        self._tries.pop(run.execution_id, None)
        coordinator = Coordinator(
            receiver=self._receiver,
            services=self._services,
            runner=self._receiver.runner,
            live=live_agent(found.root, definition, found.context, found.knowledge),
            start=rehydrated.start,
            task=request.task,
            feed=Feed(),
            run=run,
            left_open=rehydrated.left_open,
        )
        self._receiver.run(coordinator, EventName.RESUME)

    def _to_stop(self, start: Start) -> bool:
        late = start.deadline is not None and start.deadline <= self._services.now()
        return late or self._receiver.stops.is_ahead(start.execution_id)

    def _refuse(self, request: ResumeExecution, error: BaseException) -> None:
        request.task.set_error(error)
        self._receiver.stops.refused(request.execution_id, error)

    # --- without a definition ---------------------------------------------------------------------------

    def _hold(
        self,
        request: ResumeExecution,
        token: OwnerToken,
        found: LoadedAgent,
        unfinished: UnfinishedExecution,
        error: PhronomyError,
    ) -> None:
        """No code for it here: that is for a person, and the error names both (rule 10)."""
        if unfinished.recovery_disposition == RecoveryDisposition.RESOLUTION_REQUIRED:
            self._receiver.let_go(request.agent_id, token)
            self._refuse(request, error)
            return
        live = live_agent(found.root, None, (), ())
        built = self._unresolved(live, unfinished, str(error))
        self._services.writer.submit(
            built.transition, lambda answer: self._receiver.post(HoldAnswered(request, token, answer, error))
        )

    def _unresolved(self, live: Any, unfinished: UnfinishedExecution, why: str) -> Built:
        run = Run(
            execution_id=unfinished.execution_id,
            revision=unfinished.execution_revision,
            iteration=unfinished.iteration,
            event_sequence=unfinished.event_sequence,
            prepared=True,
            usage=Usage(unfinished.input_tokens, unfinished.output_tokens, unfinished.cost),
            tool_call_count=unfinished.tool_call_count,
            started_at=unfinished.started_at,
            entry={"preparing": State.PREPARING, "running_tools": State.RUNNING_TOOLS}.get(
                unfinished.phase, ""
            ),
            unresolved=(Unresolved(subject_id=unfinished.execution_id, attempt=1, what=why),),
        )
        barriers = Barriers(
            live=live,
            owner_id=self._services.runtime_id,
            operations=None,  # type: ignore[arg-type]
            tool_rows=None,  # type: ignore[arg-type]
        )
        return barriers.unresolved(run, self._services.now())

    def hold_answered(self, message: HoldAnswered) -> None:
        request = message.request
        self._receiver.let_go(request.agent_id, message.token)
        if isinstance(message.answer, Committed):
            logger.error("Execution %s is held: %s", request.execution_id, message.error)
        self._refuse(request, message.error)

    def abandon(self, error: BaseException) -> None:
        """The loop is gone."""
        for request in chain(self._queue, *self._hints.values()):
            request.task.set_error(error)
        self._queue.clear()
        self._hints.clear()


@dataclass(frozen=True, slots=True, eq=False)
class RecoveryDue:
    """An execution is to be tried again now."""

    request: ResumeExecution
