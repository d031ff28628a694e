"""The agents receiver: which agents are live in this runtime, who holds their admission, and who waits.

Lives on the loop thread; only ``idle``, ``is_live`` and ``stops.reserved`` are touched by others. Admit, then load, then run
(rule 3): a second run is refused with ``AgentBusyError`` and nothing is queued behind the caller's back.
"""

from __future__ import annotations

import logging
from typing import Any

from phronomy_django.agents.changes import build_change
from phronomy_django.agents.coordinator import CommitAnswered, CommitDue, Coordinator
from phronomy_django.agents.live import LiveAgent, Position, window
from phronomy_django.agents.loading import load_agent, stored_result
from phronomy_django.agents.messages import (
    Change,
    ChangeAnswered,
    Loaded,
    LoadedAgent,
    OwnerToken,
    Request,
    StartExecution,
    StopExecution,
    StopLookedUp,
)
from phronomy_django.agents.operations import OperationMessage, OperationRunner
from phronomy_django.agents.run import ContextMessage
from phronomy_django.agents.services import Services
from phronomy_django.agents.slots import Slot, Slots
from phronomy_django.agents.stops import Stops
from phronomy_django.domain.errors import (
    AgentBusyError,
    ConflictError,
    DefinitionMismatchError,
    RehydrationRequiredError,
    RuntimeShutdownError,
)
from phronomy_django.domain.statuses import TERMINAL, LifecycleStatus
from phronomy_django.engine import ExecutionReceiver
from phronomy_django.signals import execution_finished
from phronomy_django.store import Committed, find_by_idempotency_key

__all__ = ["AGENTS", "AgentsReceiver"]

logger = logging.getLogger("phronomy_django.agents")

#: The key of this receiver on the event loop.
AGENTS = "agents"


class AgentsReceiver(ExecutionReceiver):
    """See the module."""

    def __init__(self, services: Services) -> None:
        super().__init__(services.loop)
        self.services = services
        self._slots = Slots(services.loop, self, services.max_live_agents)
        self._executions: dict[str, Coordinator] = {}
        self._waiting: set[Any] = set()
        self.stops = Stops(services, self.post, self._executions, self._is_waiting)
        self.runner = OperationRunner(
            pools=services.pools,
            writer=services.writer,
            timers=services.timers,
            owner_id=services.runtime_id,
            now=services.now,
            post=self.post,
        )

    # --- from other threads -------------------------------------------------------------------------------

    def post(self, message: Any) -> bool:
        """Put a continuation on the loop."""
        return self.loop.post_execution(self, message)

    def request(self, request: Request) -> bool:
        """Put an admission on the loop; if it is refused, the request's task says why."""
        return self.loop.post_execution(self, request, admission=True, completion=request.task)

    def idle(self) -> bool:
        return self._slots.idle()

    # --- delivery -------------------------------------------------------------------------------------------

    def deliver(self, message: Any) -> None:
        match message:
            case CommitAnswered():
                coordinator = self._executions.get(message.execution_id)
                if coordinator is not None and coordinator.session.fsm_session_id == message.fsm_session_id:
                    coordinator.committed(message)
                else:
                    self.runner.release(message.built.work)
            case StartExecution() | Change():
                self._admit(message)
            case Loaded():
                self._loaded(message)
            case StopExecution():
                self.stops.request(message)
            case StopLookedUp():
                self.stops.looked_up(message)
            case ChangeAnswered():
                self._change_answered(message)
            case CommitDue():
                coordinator = self._executions.get(message.execution_id)
                if coordinator is not None and coordinator.session.fsm_session_id == message.fsm_session_id:
                    coordinator.commit_again(message.barrier)
            case _:
                operation_message: OperationMessage = message
                self.runner.deliver(operation_message)

    # --- admission ------------------------------------------------------------------------------------------

    def _admit(self, request: Request) -> None:
        slot = self._slots.get(request.agent_id)
        if slot.request is not None:
            self._join_or_refuse(slot.request, slot.coordinator, request)
            return
        try:
            token = self._slots.admit(slot, request)
        except RuntimeShutdownError as error:
            request.task.set_error(error)
            return
        key = request.start.idempotency_key if isinstance(request, StartExecution) else None
        if slot.live is None or key is not None:
            self._load(slot, request, token, key)
        else:
            self._run(slot, request, token)

    def _join_or_refuse(self, holder: Request, running: Coordinator | None, request: Request) -> None:
        what, more = "another request", ""
        if isinstance(holder, StartExecution):
            key = holder.start.idempotency_key
            if (
                isinstance(request, StartExecution)
                and key is not None
                and key == request.start.idempotency_key
            ):
                if request.start.digest == holder.start.digest:
                    request.task.follow(holder.task)
                else:
                    request.task.set_error(_other_input(request.agent_id, key))
                return
            what = f"execution {holder.start.execution_id}"
            if running is not None and running.recovery_required:
                more = ", which waits for recovery"
        self._refuse(
            request,
            AgentBusyError(
                f"Agent {request.agent_id!r} is busy with {what}{more}. Nothing was queued: wait for its end and try "
                f"again, or cancel it."
            ),
        )

    def _load(self, slot: Slot, request: Request, token: OwnerToken, key: str | None) -> None:
        services, live = self.services, slot.live
        agent_id, size = request.agent_id, request.definition.context_window
        self._waiting.add(request)
        if live is None:

            def job() -> LoadedAgent:
                return load_agent(services, agent_id, size, key)

        else:
            root_id, known = live.root_id, live

            def job() -> LoadedAgent:
                earlier = find_by_idempotency_key(root_id, key or "", services.database)
                return LoadedAgent(None, known.context, known.knowledge, earlier)  # type: ignore[arg-type]

        def done(found: LoadedAgent | None, error: BaseException | None) -> None:
            self.post(Loaded(request, token, found, error))

        try:
            services.read(job, done)
        except Exception as error:  # noqa: BLE001 - a full or closed pool refuses the request
            done(None, error)

    def _loaded(self, message: Loaded) -> None:
        request, slot, found = message.request, self._slots[message.request.agent_id], message.found
        self._waiting.discard(request)
        if found is None:
            self._slots.release(request.agent_id, message.token)
            self._refuse(request, message.error or RehydrationRequiredError())
            return
        if slot.live is None:
            error = self._take(slot, request, found)
            if error is not None:
                self._slots.release(request.agent_id, message.token)
                self._refuse(request, error)
                return
        if found.earlier is not None and isinstance(request, StartExecution):
            self._slots.release(request.agent_id, message.token)
            self._answer_earlier(request, found.earlier)
            return
        self._run(slot, request, message.token)

    def _refuse(self, request: Request, error: BaseException) -> None:
        request.task.set_error(error)
        if isinstance(request, StartExecution):
            self.stops.refused(request.start.execution_id, error)

    def _take(self, slot: Slot, request: Request, found: LoadedAgent) -> Exception | None:
        root, definition = found.root, request.definition
        if (root.definition_id, root.definition_version) != (
            definition.definition_id,
            definition.definition_version,
        ):
            return DefinitionMismatchError(
                f"Agent {root.agent_id!r} was made by definition {root.definition_id!r} version "
                f"{root.definition_version}; this process has {definition.definition_id!r} version "
                f"{definition.definition_version}."
            )
        if root.lifecycle_status == LifecycleStatus.BUSY and not self._answers_earlier(found):
            return AgentBusyError(
                f"Agent {root.agent_id!r} has an execution that an earlier process left unfinished. It keeps its "
                f"admission until it is recovered."
            )
        slot.live = LiveAgent(
            root.root_id,
            root.agent_id,
            definition,
            root.fencing_token,
            Position(
                root.agent_revision,
                root.context_revision,
                root.journal_position,
                root.transcript_generation,
                root.lifecycle_status,
            ),
            window(found.context, definition.context_window),
            found.knowledge,
        )
        if slot.live.position.lifecycle_status == LifecycleStatus.BUSY:
            slot.live = None
        return None

    @staticmethod
    def _answers_earlier(found: LoadedAgent) -> bool:
        return found.earlier is not None and found.earlier.status in TERMINAL

    def _answer_earlier(self, request: StartExecution, earlier: Any) -> None:
        task, key = request.task, request.start.idempotency_key
        if earlier.input_digest != request.start.digest:
            task.set_error(_other_input(request.agent_id, key or ""))
            return
        task.execution_id = earlier.execution_id
        task.set_result(stored_result(earlier, request.definition))

    def _run(self, slot: Slot, request: Request, token: OwnerToken) -> None:
        if slot.live is None:
            self._slots.release(request.agent_id, token)
            request.task.set_error(RehydrationRequiredError())
            return
        if isinstance(request, Change):
            self._commit_change(slot.live, request, token)
            return
        coordinator = Coordinator(
            receiver=self,
            services=self.services,
            runner=self.runner,
            live=slot.live,
            start=request.start,
            task=request.task,
            feed=request.feed,
        )
        slot.coordinator = coordinator
        execution_id = request.start.execution_id
        self._executions[execution_id] = coordinator
        coordinator.begin()
        self.stops.begun(coordinator)

    # --- the end of executions --------------------------------------------------------------------------------

    def finished(self, coordinator: Coordinator, own: tuple[ContextMessage, ...]) -> None:
        """B6 is committed: what the run added is the agent's context now."""
        live = coordinator.live
        live.context = window((*live.context, *own), live.definition.context_window)
        self._forget(coordinator)
        self._observe(coordinator)

    def failed(self, coordinator: Coordinator, error: BaseException) -> None:
        """The run cannot go on here. Its rows say how far it came; what is live of the agent is dropped."""
        logger.error("Execution %s stopped: %s", coordinator.start.execution_id, error)
        if coordinator.recovery_required:
            self._slots.suspend()
            self._executions.pop(coordinator.start.execution_id, None)
            return
        self._slots[coordinator.live.agent_id].live = None
        self._forget(coordinator)

    def _forget(self, coordinator: Coordinator) -> None:
        self._executions.pop(coordinator.start.execution_id, None)
        slot = self._slots[coordinator.live.agent_id]
        if slot.coordinator is coordinator:
            self._slots.release(coordinator.live.agent_id, slot.token)

    def _observe(self, coordinator: Coordinator) -> None:
        if not execution_finished.receivers:
            return
        sender, start, run = (
            coordinator.live.definition.agent_class,
            coordinator.start,
            coordinator.session.data,
        )
        status = run.ending.status if run.ending is not None else ""
        agent_id = coordinator.live.agent_id

        def send() -> None:
            execution_finished.send_robust(
                sender, execution_id=start.execution_id, agent_id=agent_id, status=status
            )

        try:
            self.services.pools["default"].submit(send)
        except Exception:
            logger.exception("The signal execution_finished of %s was not sent", start.execution_id)

    def _is_waiting(self, execution_id: str) -> bool:
        return any(
            isinstance(request, StartExecution) and request.start.execution_id == execution_id
            for request in self._waiting
        )

    # --- changes of an idle agent -------------------------------------------------------------------------------

    def _commit_change(self, live: LiveAgent, change: Change, token: OwnerToken) -> None:
        built = build_change(live, self.services.runtime_id, self.services.now(), change)
        self._waiting.add(change)
        self.services.writer.submit(
            built.transition, lambda answer: self.post(ChangeAnswered(change, token, built, answer))
        )

    def _change_answered(self, message: ChangeAnswered) -> None:
        change, slot = message.change, self._slots[message.change.agent_id]
        self._waiting.discard(change)
        live = slot.live
        if isinstance(message.answer, Committed) and live is not None:
            live.position = message.built.position
            if change.kind == "knowledge":
                live.knowledge = (*live.knowledge, change.text)
            elif change.kind == "clear":
                live.context = ()
            else:
                slot.live = None
            self._slots.release(change.agent_id, message.token)
            change.task.set_result(None)
            return
        slot.live = None
        self._slots.release(change.agent_id, message.token)
        error = None if isinstance(message.answer, Committed) else message.answer.error
        change.task.set_error(error or RehydrationRequiredError())

    # --- the loop's own ------------------------------------------------------------------------------------------

    def session_retired(self, session_id: str, reason: str) -> None:
        """A session that failed by itself (a fault of ours) must not keep its callers waiting."""
        for coordinator in list(self._executions.values()):
            session = coordinator.session
            if session.fsm_session_id == session_id and session.error is not None:
                coordinator.abandon(session.error)
                self.failed(coordinator, session.error)

    def shutdown(self, error: BaseException | None = None) -> None:
        cause = error or RuntimeShutdownError(
            "The runtime stopped while this was running. Its rows are kept; nothing was cancelled."
        )
        for coordinator in list(self._executions.values()):
            coordinator.abandon(cause)
        for request in self._waiting:
            request.task.set_error(cause)
        self.stops.abandon(cause)
        self._executions.clear()
        self._slots.clear()
        self._waiting.clear()

    def is_live(self, agent_id: str, definition_id: str) -> bool:
        """Whether the agent is loaded here; from any thread, never a query."""
        return self._slots.is_live(agent_id, definition_id)

    @property
    def live_agents(self) -> int:
        return len(self._slots)


def _other_input(agent_id: str, key: str) -> ConflictError:
    return ConflictError(
        f"The idempotency key {key!r} of agent {agent_id!r} was used with another input. Use a new key, or send the same "
        f"input for the first answer."
    )
