"""The coordinator of one execution: carries out what its session asks for, through the store and the pools.

Lives on the loop thread. It holds no decision: those are in the session table.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from phronomy_django.agents import bodies
from phronomy_django.agents.barriers import Barriers
from phronomy_django.agents.commands import (
    PREPARATION,
    Abandon,
    CancelWork,
    Command,
    Commit,
    Committed,
    EventName,
    Fail,
    Finish,
    Hold,
    LLMEnded,
    Prepare,
    Prepared,
    StartLLM,
    StartTools,
    Suspend,
    TellLLM,
    ToolEnded,
)
from phronomy_django.agents.draft import Built
from phronomy_django.agents.live import LiveAgent
from phronomy_django.agents.operation_rows import OperationRows
from phronomy_django.agents.operations import Operation, OperationRunner
from phronomy_django.agents.provider_call import ProviderCall, limits_of
from phronomy_django.agents.results import ExecutionTask, Feed, suspended_result
from phronomy_django.agents.run import (
    ContextMessage,
    ProviderOutcome,
    Run,
    Start,
    Stop,
    ToolOutcome,
    ToolState,
    Work,
    resolution_required,
)
from phronomy_django.agents.services import Services
from phronomy_django.agents.session import TABLE
from phronomy_django.agents.tool_bodies import ToolBodies
from phronomy_django.agents.tool_rows import ToolRows
from phronomy_django.agents.transitions import Transitions
from phronomy_django.domain.canonical import content_id_of
from phronomy_django.domain.errors import BackpressureError
from phronomy_django.domain.statuses import StopKind, ToolInvocationStatus
from phronomy_django.engine import FSMSession, SessionEvent, TaskCancelledError, TaskResult, TaskTimeoutError
from phronomy_django.store import CommitAnswer, Unknown
from phronomy_django.store import Committed as CommitDone

if TYPE_CHECKING:
    from phronomy_django.agents.receiver import AgentsReceiver

__all__ = ["CommitAnswered", "CommitDue", "Coordinator"]


@dataclass(frozen=True, slots=True)
class CommitAnswered:
    """The writer has answered for a barrier of this session."""

    execution_id: str
    fsm_session_id: str
    built: Built
    answer: CommitAnswer


@dataclass(frozen=True, slots=True)
class CommitDue:
    """A barrier that was put off may be tried again."""

    execution_id: str
    fsm_session_id: str
    barrier: str


class Coordinator:
    """One execution on the loop. ``task`` is what its caller waits for."""

    def __init__(
        self,
        *,
        receiver: AgentsReceiver,
        services: Services,
        runner: OperationRunner,
        live: LiveAgent,
        start: Start,
        task: ExecutionTask,
        feed: Feed,
        run: Run | None = None,
        left_open: dict[str, Work] | None = None,
    ) -> None:
        self.receiver = receiver
        self.services = services
        self.runner = runner
        self.live = live
        self.start = start
        self.feed = feed
        self.task = task
        self._contents = {content_id_of(body): body for body, _ in start.attachments}
        self.stop_tasks: list[TaskResult[bool]] = []
        self.recovery_required = False
        self._timers: list[Any] = []
        self._operations: frozenset[str] = frozenset()
        operations = OperationRows(
            owner_id=services.runtime_id,
            work_for=runner.fresh,
            current=runner.current,
            still_runs=runner.still_runs,
            left_open=left_open or {},
        )
        barriers = Barriers(
            live=live,
            owner_id=services.runtime_id,
            operations=operations,
            tool_rows=ToolRows(live.definition, operations),
        )
        self.transitions = Transitions(live=live, start=start, barriers=barriers)
        if run is None:
            run = Run(
                execution_id=start.execution_id,
                revision=1,
                prepared=not live.definition.has_preparation,
                history=live.context,
                own=(ContextMessage(start.message, start.body),),
                knowledge=live.knowledge,
            )
        self.session: FSMSession[Run, Command] = FSMSession(table=TABLE, data=run, execute=self.execute)

    # --- beginning and outside events -----------------------------------------------------------------

    def begin(self, event: EventName = EventName.BEGIN) -> None:
        """Register the session and ask for B1, or (``RESUME``) for what its rows say is next."""
        services = self.services
        services.loop.register(self.session, receiver=self.receiver)
        self.post(event)
        now = services.now()
        if self.start.deadline is not None:
            self._stop_after((self.start.deadline - now).total_seconds(), StopKind.DEADLINE, "")
        wall_time = self.live.definition.usage_limits.wall_time
        if wall_time is not None:
            passed = 0.0 if self.start.admitted_at is None else (now - self.start.admitted_at).total_seconds()
            self._stop_after(wall_time - passed, StopKind.LIMIT, "wall_time")

    def stop(self, stop: Stop, completion: TaskResult[bool] | None = None) -> None:
        """Ask for a stop; ``completion`` answers True once its row is committed, False if the end came first."""
        if completion is not None:
            if self.session.data.stop_accepted:
                completion.set_result(True)
            else:
                self.stop_tasks.append(completion)
        self.post(EventName.STOP, stop)

    def post(self, name: EventName, payload: Any = None) -> None:
        self.services.loop.post_to_session(SessionEvent(self.session.fsm_session_id, name, payload))

    def committed(self, message: CommitAnswered) -> None:
        """The writer's answer: revisions and sequences become live now, and only now (HARD_POINTS 13)."""
        built = message.built
        if isinstance(message.answer, CommitDone):
            self.live.position = built.position
            self._operations |= built.work
            for row in built.events:
                self.feed.stored(row.type, row.sequence, row.payload)
            self.post(EventName.COMMITTED, Committed(built.changes, built.work))
            if built.transition.barrier == "stop":
                self._answer_stops(True)
            return
        self.runner.release(built.work)
        name = EventName.UNKNOWN if isinstance(message.answer, Unknown) else EventName.REFUSED
        self.post(name, message.answer.error)

    # --- commands ---------------------------------------------------------------------------------------

    def execute(self, session: FSMSession[Run, Command], commands: Sequence[Command]) -> None:
        run = session.data
        for command in commands:
            match command:
                case Commit(barrier, delay):
                    self._commit(run, barrier, delay)
                case Prepare():
                    self._prepare(run)
                case StartLLM():
                    self._start_llm(run)
                case TellLLM():
                    self._tell_llm(run)
                case StartTools():
                    self._start_tools(run)
                case CancelWork():
                    self._cancel_work(run)
                case Finish():
                    self._finish(run)
                case Suspend():
                    self._suspend(run)
                case Hold():
                    self._hold(run)
                case Fail(error):
                    self._fail(error)
                case Abandon(error):
                    self.recovery_required = True
                    self._fail(error)

    def _commit(self, run: Run, barrier: str, delay: float) -> None:
        services, execution_id, session_id = self.services, run.execution_id, self.session.fsm_session_id
        if delay:
            due = CommitDue(execution_id, session_id, barrier)
            self._timers.append(services.timers.call_later(delay, lambda: self.receiver.post(due)))
            return
        built = self.transitions.build(run, barrier, services.now())
        services.writer.submit(
            built.transition,
            lambda answer: self.receiver.post(CommitAnswered(execution_id, session_id, built, answer)),
        )

    def commit_again(self, barrier: str) -> None:
        self._commit(self.session.data, barrier, 0.0)

    # --- preparation and provider calls --------------------------------------------------------------------

    def _prepare(self, run: Run) -> None:
        definition, facts = self.live.definition, self._facts(run)

        def done(result: TaskResult[dict[str, Any]]) -> None:
            error = result.error
            if error is not None:
                self.post(EventName.PREPARED, Prepared({}, bodies.failure_of(error)))
            else:
                self.post(EventName.PREPARED, Prepared(result.result()))
            self.post(EventName.WORK_ENDED, PREPARATION)

        try:
            self.services.pools["default"].submit(lambda: bodies.prepare(definition, run, facts)).on_complete(
                done
            )
        except BackpressureError as error:
            done(TaskResult.failed(error))

    def _facts(self, run: Run) -> bodies.Preparation:
        return bodies.Preparation(
            agent_id=self.live.agent_id,
            execution_id=run.execution_id,
            durable_context=self.start.durable_context,
            knowledge=run.knowledge,
        )

    def _start_llm(self, run: Run) -> None:
        call = run.call
        assert call is not None  # noqa: S101 - B2 was committed with it
        provider_call = ProviderCall(
            services=self.services,
            definition=self.live.definition,
            run=run,
            call=call,
            feed=self.feed,
            stream=self.start.stream,
            facts=self._facts(run),
            contents=self._contents,
        )
        self.feed.active_call = call.llm_call_id

        def ended(value: ProviderOutcome | None, error: BaseException | None, over: bool) -> None:
            self.feed.active_call = ""
            current, operation_id = self.session.data, call.work.operation_id
            if current.stop_accepted and isinstance(error, TaskCancelledError):
                if over:
                    self.post(EventName.WORK_ENDED, operation_id)
                return  # withdrawn by the stop: the end records it as cancelled
            outcome = provider_call.outcome(value, error, self.runner.current(call.work).attempt)
            limits = provider_call.limits(current, outcome)
            ended = LLMEnded(call.llm_call_id, outcome, limits, operation_id if over else "")
            self.post(EventName.LLM_ENDED, ended)

        self._start_operation(
            call.work,
            provider_call.body,
            provider_call.retry,
            ended,
            timeout=provider_call.timeout,
            interruptible=provider_call.asynchronous,
        )

    def _tell_llm(self, run: Run) -> None:
        """What a person said of the provider call, in the place of the provider's own answer."""
        call, said = run.call, run.said
        assert call is not None and said is not None  # noqa: S101 - asked for only with both
        definition = self.live.definition
        limits = limits_of(definition, run, said)
        self.post(EventName.LLM_ENDED, LLMEnded(call.llm_call_id, said, limits, call.work.operation_id))

    def _start_operation(
        self,
        work: Any,
        body: Callable[[int], Callable[[], Any]],
        retry: Callable[[BaseException, int], float | None],
        ended: Callable[[Any, BaseException | None, bool], None],
        *,
        timeout: float | None,
        interruptible: bool,
        token: Any = None,
    ) -> None:
        operation = Operation(
            work=work,
            root_id=self.live.root_id,
            fencing_token=self.live.fencing_token,
            body=body,
            retry=retry,
            ended=ended,
            over=lambda: self.post(EventName.WORK_ENDED, work.operation_id),
            timeout=timeout,
            interruptible=interruptible,
        )
        if token is not None:
            operation.token = token
        self.runner.start(operation)

    # --- tools ------------------------------------------------------------------------------------------

    def _start_tools(self, run: Run) -> None:
        for tool in run.tools:
            if tool.work is not None and tool.outcome is None:
                self._start_tool(run, tool)

    def _start_tool(self, run: Run, state: ToolState) -> None:
        tool, work = state.tool, state.work
        assert tool is not None and work is not None  # noqa: S101 - it was dispatched
        bodies_of_tool = ToolBodies(
            services=self.services, live=self.live, start=self.start, run=run, state=state, runner=self.runner
        )

        def ended(value: ToolOutcome | None, error: BaseException | None, over: bool) -> None:
            attempts = self.runner.current(work).attempt
            if error is None and value is not None:
                outcome = value
            elif isinstance(error, TaskTimeoutError):
                bodies_of_tool.token.cancel()
                text = f"The tool did not answer within {tool.timeout} s."
                outcome = ToolOutcome(status=ToolInvocationStatus.TIMED_OUT, text=text, attempts=attempts)
            else:
                assert error is not None  # noqa: S101 - no value means an error
                outcome = bodies.tool_failure(error, attempts)
            physically_over = work.operation_id if over else ""
            self.post(EventName.TOOL_ENDED, ToolEnded(state.tool_invocation_id, outcome, physically_over))

        if tool.cooperative:
            value, error = bodies_of_tool.call_on_loop()
            ended(value, error, True)
            return
        self._start_operation(
            work,
            bodies_of_tool.body,
            bodies_of_tool.retry,
            ended,
            timeout=tool.timeout,
            interruptible=tool.is_async and work.pool in self.services.coroutine_pools,
            token=bodies_of_tool.token,
        )

    # --- stop and end -------------------------------------------------------------------------------------

    def _cancel_work(self, run: Run) -> None:
        self.feed.active_call = ""
        unstarted = []
        for operation_id in sorted(run.running - {PREPARATION}):
            if not self.runner.knows(operation_id):
                unstarted.append(operation_id)
            else:
                self.runner.cancel(operation_id)
        self.runner.release(frozenset(unstarted))
        for operation_id in unstarted:
            self.post(EventName.WORK_ENDED, operation_id)

    def _finish(self, run: Run) -> None:
        result = self.transitions.result(run)
        self._leave()
        self.receiver.finished(self, run.own)
        self.task.set_result(result)
        self._answer_stops(False)

    def _suspend(self, run: Run) -> None:
        """Committed: a person has to decide. Its rows keep the admission; nothing else is kept of it."""
        result = suspended_result(run.execution_id, run.usage, run.approvals)
        self._leave()
        self.receiver.suspended(self)
        self.task.set_result(result)
        self._answer_stops(False)

    def _hold(self, run: Run) -> None:
        """Committed: only a person can answer. Nothing of the run stays in memory; its rows keep the admission."""
        self._fail(resolution_required(self.live.agent_id, run))

    def _fail(self, error: BaseException) -> None:
        self._leave()
        self.receiver.failed(self, error)
        self.task.set_error(error)
        for waiting in self.stop_tasks:
            waiting.set_error(error)
        self.stop_tasks.clear()

    def _answer_stops(self, accepted: bool) -> None:
        waiting, self.stop_tasks = self.stop_tasks, []
        for task in waiting:
            task.set_result(accepted)

    def _leave(self) -> None:
        for timer in self._timers:
            timer.cancel()
        self.feed.active_call = ""
        self.runner.forget(self._operations)

    def abandon(self, error: BaseException) -> None:
        """The loop is gone: settle the callers; the rows say how far the execution came."""
        self._leave()
        self.task.set_error(error)
        for waiting in self.stop_tasks:
            waiting.set_error(error)

    def _stop_after(self, seconds: float, kind: StopKind, reason: str) -> None:
        def due() -> None:
            self.post(EventName.STOP, Stop(kind=kind, reason=reason, at=self.services.now()))

        if seconds <= 0:
            due()  # behind the event that begins the session, ahead of whatever comes of it
        else:
            self._timers.append(self.services.timers.call_later(seconds, due))
