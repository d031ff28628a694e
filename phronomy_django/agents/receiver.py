"""The agents receiver: which agents are live in this runtime, who holds their admission, and who waits.

Lives on the loop thread; only ``idle``, ``is_live`` and ``stops.reserved`` are touched by others. Admit, then load, then run
(rule 3): a second run is refused with ``AgentBusyError`` and nothing is queued behind the caller's back.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from django.dispatch import Signal

from phronomy_django.agents.changes import build_change
from phronomy_django.agents.commands import EventName
from phronomy_django.agents.coordinator import CommitAnswered, CommitDue, Coordinator
from phronomy_django.agents.live import LiveAgent, window
from phronomy_django.agents.loading import live_agent, load_agent, mismatch_of, stored_result
from phronomy_django.agents.messages import (
    Change,
    ChangeAnswered,
    Loaded,
    LoadedAgent,
    OwnerToken,
    RecoverAll,
    Request,
    ResumeExecution,
    StartExecution,
    StopExecution,
    StopLookedUp,
)
from phronomy_django.agents.operations import OperationMessage, OperationRunner
from phronomy_django.agents.recoveries import HoldAnswered, Recoveries, RecoveryDue
from phronomy_django.agents.registry import known_definition
from phronomy_django.agents.run import ContextMessage
from phronomy_django.agents.services import Services
from phronomy_django.agents.slots import Slot, Slots
from phronomy_django.agents.stops import Stops
from phronomy_django.domain.errors import (
    AgentBusyError,
    ConflictError,
    RehydrationRequiredError,
    ResolutionRequiredError,
    RuntimeShutdownError,
)
from phronomy_django.domain.statuses import TERMINAL, ExecutionStatus, LifecycleStatus, RecoveryDisposition
from phronomy_django.engine import ExecutionReceiver
from phronomy_django.signals import approval_requested, execution_finished, recovery_required
from phronomy_django.store import Committed, ExecutionSnapshot, find_by_idempotency_key

__all__ = ["AGENTS", "AgentsReceiver"]

logger = logging.getLogger("phronomy_django.agents")

#: The key of this receiver on the event loop.
AGENTS = "agents"


class AgentsReceiver(ExecutionReceiver):
    """See the module."""

    def __init__(self, services: Services) -> None:
        super().__init__(services.loop)
        self.services = services
        self._slots = Slots(services.loop, self, services.max_live_agents, self._freed)
        self._executions: dict[str, Coordinator] = {}
        self._waiting: set[Any] = set()
        self.stops = Stops(services, self.post, self._executions, self._is_waiting, self._resume)
        self.recoveries = Recoveries(self, services)
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
            case StartExecution() | Change() | ResumeExecution():
                self._admit(message)
            case RecoverAll():
                self.recoveries.enqueue(message.requests)
            case RecoveryDue():
                self.recoveries.enqueue([message.request])
            case HoldAnswered():
                self.recoveries.hold_answered(message)
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
            if isinstance(request, ResumeExecution):
                self.recoveries.settled()
            return
        try:
            token = self._slots.admit(slot, request)
        except RuntimeShutdownError as error:
            request.task.set_error(error)
            return
        if isinstance(request, ResumeExecution):
            slot.live = None
            self._read(request, token, self.recoveries.job(request))
            return
        key = request.start.idempotency_key if isinstance(request, StartExecution) else None
        if slot.live is None or key is not None:
            self._load(slot, request, token, key)
        else:
            self._run(slot, request, token)

    def _join_or_refuse(self, holder: Request, running: Coordinator | None, request: Request) -> None:
        what = "another request"
        if isinstance(request, ResumeExecution):
            self.recoveries.wait(request)
            return
        if isinstance(holder, ResumeExecution):
            what = f"execution {holder.task.execution_id}, which is being taken up again"
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
        self._refuse(
            request,
            AgentBusyError(
                f"Agent {request.agent_id!r} is busy with {what}. Nothing was queued: wait for its end and try "
                f"again, or cancel it."
            ),
        )

    def _load(self, slot: Slot, request: Request, token: OwnerToken, key: str | None) -> None:
        services, live = self.services, slot.live
        assert not isinstance(request, ResumeExecution)  # noqa: S101 - read in its own way
        agent_id, size = request.agent_id, request.definition.context_window
        if live is None:

            def job() -> LoadedAgent:
                return load_agent(services, agent_id, size, key)

        else:
            root_id, known = live.root_id, live

            def job() -> LoadedAgent:
                earlier = find_by_idempotency_key(root_id, key or "", services.database)
                return LoadedAgent(None, known.context, known.knowledge, earlier)  # type: ignore[arg-type]

        self._read(request, token, job)

    def _read(self, request: Request, token: OwnerToken, job: Callable[[], LoadedAgent]) -> None:
        self._waiting.add(request)

        def done(found: LoadedAgent | None, error: BaseException | None) -> None:
            self.post(Loaded(request, token, found, error))

        try:
            self.services.read(job, done)
        except Exception as error:  # noqa: BLE001 - a full or closed pool refuses the request
            done(None, error)

    def _loaded(self, message: Loaded) -> None:
        request, slot, found = message.request, self._slots[message.request.agent_id], message.found
        self._waiting.discard(request)
        if isinstance(request, ResumeExecution):
            self.recoveries.loaded(message)
            return
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

    def _take(self, slot: Slot, request: StartExecution | Change, found: LoadedAgent) -> Exception | None:
        root, definition = found.root, request.definition
        mismatch = mismatch_of(root, definition)
        if mismatch is not None:
            return mismatch
        if root.lifecycle_status == LifecycleStatus.BUSY:
            return None if self._answers_earlier(found) else self._busy_by_its_rows(request, found)
        slot.live = live_agent(root, definition, found.context, found.knowledge)
        return None

    def _busy_by_its_rows(self, request: StartExecution | Change, found: LoadedAgent) -> AgentBusyError:
        """An earlier process left it unfinished: whoever meets it takes it up again (DESIGN §7)."""
        agent_id, open_ = request.agent_id, found.open
        if open_ is None:
            return AgentBusyError(f"Agent {agent_id!r} was busy a moment ago: try again.")
        what = f"Agent {agent_id!r} is busy with execution {open_.execution_id}, "
        if open_.status == ExecutionStatus.SUSPENDED:
            return AgentBusyError(what + "which waits for a person's approval.")
        if open_.recovery_disposition == RecoveryDisposition.RESOLUTION_REQUIRED:
            return AgentBusyError(
                what + "which waits for a person: resolve it with manage.py phronomy_recover."
            )
        if not self.services.scheduler.inline:
            self.recoveries.again(agent_id, open_.execution_id, request.definition)
        return AgentBusyError(what + "which an earlier process left unfinished; it is being taken up again.")

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

    def _run(self, slot: Slot, request: StartExecution | Change, token: OwnerToken) -> None:
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
        self.run(coordinator)

    def run(self, coordinator: Coordinator, event: EventName = EventName.BEGIN) -> None:
        """Begin (or resume) an execution whose agent was loaded and whose admission is held."""
        slot, execution_id = self._slots[coordinator.live.agent_id], coordinator.start.execution_id
        slot.live, slot.coordinator = coordinator.live, coordinator
        self._executions[execution_id] = coordinator
        coordinator.begin(event)
        self.stops.begun(coordinator)

    def _freed(self, agent_id: str) -> None:
        self.recoveries.freed(agent_id)

    def let_go(self, agent_id: str, token: OwnerToken) -> None:
        """Free an admission and keep nothing of the agent in memory."""
        self._slots[agent_id].live = None
        self._slots.release(agent_id, token)

    # --- the end of executions --------------------------------------------------------------------------------

    def finished(self, coordinator: Coordinator, own: tuple[ContextMessage, ...]) -> None:
        """B6 is committed: what the run added is the agent's context now."""
        live = coordinator.live
        live.context = window((*live.context, *own), live.definition.context_window)
        self._forget(coordinator)
        ending = coordinator.session.data.ending
        self._observe(execution_finished, coordinator, status="" if ending is None else ending.status)

    def suspended(self, coordinator: Coordinator) -> None:
        """A person has to decide: no memory is spent on waiting."""
        self._slots[coordinator.live.agent_id].live = None
        self._forget(coordinator)
        self._observe(
            approval_requested, coordinator, approval_request_ids=list(coordinator.session.data.approvals)
        )

    def failed(self, coordinator: Coordinator, error: BaseException) -> None:
        """The run cannot go on here. Its rows say how far it came; what is live of the agent is dropped."""
        logger.error("Execution %s stopped: %s", coordinator.start.execution_id, error)
        slot = self._slots[coordinator.live.agent_id]
        definition, execution_id = slot.live.definition if slot.live else None, coordinator.start.execution_id
        slot.live = None
        self._forget(coordinator)
        if isinstance(error, ResolutionRequiredError):
            self._observe(recovery_required, coordinator, reason=str(error))
        else:
            self.recoveries.again(coordinator.live.agent_id, execution_id, definition)

    def _forget(self, coordinator: Coordinator) -> None:
        self._executions.pop(coordinator.start.execution_id, None)
        slot = self._slots[coordinator.live.agent_id]
        if slot.coordinator is coordinator:
            self._slots.release(coordinator.live.agent_id, slot.token)

    def _observe(self, signal: Signal, coordinator: Coordinator, **facts: Any) -> None:
        """Tell whoever listens in this process, from a pool, after the commit (STYLE, rule 6)."""
        if not signal.receivers:
            return
        sender = coordinator.live.definition.agent_class
        facts |= {"execution_id": coordinator.start.execution_id, "agent_id": coordinator.live.agent_id}
        try:
            self.services.pools["default"].submit(lambda: signal.send_robust(sender, **facts))
        except Exception:
            logger.exception("A signal about execution %s was not sent", facts["execution_id"])

    def _resume(self, found: ExecutionSnapshot) -> None:
        definition = known_definition(found.definition_id, found.definition_version)
        self.recoveries.enqueue([self.recoveries.request_for(found.agent_id, found.execution_id, definition)])

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
        self.recoveries.abandon(cause)
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
