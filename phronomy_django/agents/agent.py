"""``Agent``: the class that a site subclasses, and the handle through which one agent is used (DESIGN §9)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, ClassVar, TypeVar, Unpack

from pydantic import BaseModel
from typing_extensions import TypedDict

from phronomy_django.agents import client, decisions
from phronomy_django.agents.approvals import ToolProposal
from phronomy_django.agents.bodies import Preparation
from phronomy_django.agents.definition import Definition, UsageLimits
from phronomy_django.agents.hooks import ExecutionInfo
from phronomy_django.agents.host import live_host
from phronomy_django.agents.inputs import Input
from phronomy_django.agents.registry import definition_of
from phronomy_django.agents.results import ExecutionResult, ExecutionTask, Reservation, StreamEvent
from phronomy_django.domain.errors import InputError
from phronomy_django.domain.messages import LLMRequest, Message, UserMessage
from phronomy_django.engine import TaskResult
from phronomy_django.llm import LLMAdapter, RetryPolicy
from phronomy_django.tools import ToolDefinition

__all__ = ["Agent", "RunOptions"]

A = TypeVar("A", bound="Agent")


class RunOptions(TypedDict, total=False):
    """What every way of starting a run takes.

    ``durable_context``: a JSON object stored with the run and given to tools and hooks. ``deadline``: an aware
    datetime or a timedelta; a run that passes it is stopped and ends as ``cancelled``. ``idempotency_key``: the same
    key gives the first answer, another input under it raises ``ConflictError``. ``by``: the user who asked.
    """

    durable_context: Mapping[str, Any] | None
    deadline: datetime | timedelta | None
    idempotency_key: str | None
    by: Any


class Agent:
    """Subclass, set the attributes, decorate with ``@register``. An instance is a handle for one ``agent_id``.

    ``model``: ``"provider:name"``, an ``LLMAdapter``, or a list: the next one is tried when a provider refuses or
    fails for good. ``max_iterations``: provider calls of one run at most. ``context_window``: messages of earlier runs
    that a run is shown. ``output_type``: a pydantic model for a structured answer. ``pool``: the pool of the provider
    calls, if not the adapter's. ``llm_timeout``: seconds of one attempt. ``replay_safe``: whether a provider call may
    be repeated when it is not known whether it was made. ``approval_seconds``: how long a request for approval waits
    before it expires, None for ever.
    """

    definition_id: ClassVar[str] = ""
    definition_version: ClassVar[int] = 1
    model: ClassVar[str | LLMAdapter | Sequence[str | LLMAdapter]] = ""
    instructions: ClassVar[str] = ""
    tools: ClassVar[Sequence[ToolDefinition[..., Any]]] = ()
    max_iterations: ClassVar[int] = 8
    context_window: ClassVar[int] = 100
    output_type: ClassVar[type[BaseModel] | None] = None
    usage_limits: ClassVar[UsageLimits | None] = None
    model_settings: ClassVar[Mapping[str, Any]] = {}
    pool: ClassVar[str] = ""
    llm_timeout: ClassVar[float] = 120.0
    llm_retry: ClassVar[RetryPolicy] = RetryPolicy()
    replay_safe: ClassVar[bool] = True
    approval_seconds: ClassVar[float | None] = None

    _is_agent_base: ClassVar[bool] = True
    _definition: ClassVar[Definition]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls._is_agent_base = False

    def __init__(self, agent_id: str) -> None:
        self.agent_id = agent_id

    def __repr__(self) -> str:
        return f"{type(self).__name__}(agent_id={self.agent_id!r})"

    # --- the agent itself -------------------------------------------------------------------------------

    @classmethod
    def create(cls: type[A], agent_id: str, *, metadata: dict[str, Any] | None = None, by: Any = None) -> A:
        """Store a new agent. Raises ``AgentAlreadyExistsError`` if the id is taken, also by a purged agent."""
        client.create_agent(definition_of(cls), agent_id, metadata, by)
        return cls(agent_id)

    @classmethod
    def load(cls: type[A], agent_id: str) -> A:
        """The handle of a stored agent; one query.

        Raises ``NotFoundError``, ``AgentPurgedError``, ``DefinitionMismatchError`` (made by another definition or
        version than this class).
        """
        client.load_agent_root(definition_of(cls), agent_id)
        return cls(agent_id)

    @classmethod
    def get(cls: type[A], agent_id: str) -> A | None:
        """The handle if the agent is live in this process, else None; never a query."""
        definition, here = definition_of(cls), live_host()
        if here is None or not here.receiver.is_live(agent_id, definition.definition_id):
            return None
        return cls(agent_id)

    def add_knowledge(self, text: str) -> None:
        """Add a lasting piece of knowledge, shown to the model in every later run. Refused while the agent is busy."""
        client.refuse_waiting_inside_atomic("add_knowledge()", "add_knowledge_async()")
        self.add_knowledge_async(text).wait_result()

    def add_knowledge_async(self, text: str) -> TaskResult[None]:
        return client.change_agent(definition_of(type(self)), self.agent_id, "knowledge", text)

    def clear_transcript(self) -> None:
        """Start the conversation anew: earlier messages are kept in the journal and shown to the model no more."""
        client.refuse_waiting_inside_atomic("clear_transcript()", "clear_transcript_async()")
        self.clear_transcript_async().wait_result()

    def clear_transcript_async(self) -> TaskResult[None]:
        return client.change_agent(definition_of(type(self)), self.agent_id, "clear")

    def purge(self) -> None:
        """Delete the agent's journal and executions for good. Its ``agent_id`` stays reserved."""
        client.refuse_waiting_inside_atomic("purge()", "purge_async()")
        self.purge_async().wait_result()

    def purge_async(self) -> TaskResult[None]:
        return client.change_agent(definition_of(type(self)), self.agent_id, "purge")

    # --- running ----------------------------------------------------------------------------------------

    def invoke(
        self, value: Input, *, timeout: float | None = None, **options: Unpack[RunOptions]
    ) -> ExecutionResult:
        """Run and wait for the end.

        Raises ``AgentBusyError`` if the agent is running; ``ExecutionTimeoutError`` when ``timeout`` seconds are over,
        which cancels nothing; ``InputError`` before anything is stored. How the run itself ended is in the result.
        """
        return client.run_blocking(lambda: self.invoke_async(value, **options), timeout)

    def invoke_async(self, value: Input, **options: Unpack[RunOptions]) -> ExecutionTask:
        """Start a run; its ``execution_id`` is known at once. Inside ``atomic()`` it starts at commit."""
        return client.start_execution(definition_of(type(self)), self.agent_id, value, **options)

    async def ainvoke(
        self, value: Input, *, timeout: float | None = None, **options: Unpack[RunOptions]
    ) -> ExecutionResult:
        """``invoke`` for asynchronous code; a cancelled awaiter cancels nothing."""
        return await client.await_result(lambda: self.invoke_async(value, **options), timeout)

    def stream(
        self,
        value: Input,
        *,
        on_event: Callable[[StreamEvent], object],
        timeout: float | None = None,
        **options: Unpack[RunOptions],
    ) -> ExecutionResult:
        """``invoke``, calling ``on_event`` in this thread for tokens, tool calls and status changes as they come."""
        return client.stream_events(self._streaming(value, options), on_event, timeout)

    def stream_async(
        self, value: Input, *, on_event: Callable[[StreamEvent], object], **options: Unpack[RunOptions]
    ) -> ExecutionTask:
        """``invoke_async``; ``on_event`` is called on a pool thread, one event at a time, in order."""
        return client.stream_in_pool(self._streaming(value, options), on_event)

    def astream(self, value: Input, **options: Unpack[RunOptions]) -> AsyncIterator[StreamEvent]:
        """The events of a run as an asynchronous iterator."""
        return client.stream_async_events(self._streaming(value, options))

    def _streaming(
        self, value: Input, options: RunOptions
    ) -> Callable[[Callable[[StreamEvent], None]], ExecutionTask]:
        definition = definition_of(type(self))
        return lambda listener: client.start_execution(
            definition, self.agent_id, value, stream=True, listener=listener, **options
        )

    def reserve(self) -> Reservation:
        """An ``execution_id`` for a run that starts later. It holds no admission."""
        return client.reserve_execution(self.agent_id)

    def start_reserved_async(
        self, reservation: Reservation, value: Input, **options: Unpack[RunOptions]
    ) -> ExecutionTask:
        """Start the run whose id was reserved; an id starts once."""
        if reservation.agent_id != self.agent_id:
            raise InputError(
                f"The reservation {reservation.execution_id} is for agent {reservation.agent_id!r}, not "
                f"{self.agent_id!r}."
            )
        return client.start_execution(
            definition_of(type(self)), self.agent_id, value, execution_id=reservation.execution_id, **options
        )

    def cancel_async(self, execution_id: str, *, reason: str = "", by: Any = None) -> TaskResult[bool]:
        """Ask to cancel a run. The answer: True once the request is stored, False if the run had ended before.

        The run ends as ``cancelled`` when all its work has really stopped (rule 9).
        """
        return client.cancel_execution(execution_id, reason, by)

    def approve(
        self,
        execution_id: str,
        *,
        approval_request_id: str,
        approved: bool = True,
        edited_arguments: Mapping[str, Any] | None = None,
        arguments_digest: str | None = None,
        reason: str = "",
        by: Any = None,
    ) -> ExecutionTask:
        """Decide on one request (``approved=False``: reject), in the caller's transaction; then the run goes on.

        ``arguments_digest`` binds the decision to what was shown, ``edited_arguments`` take the place of the model's. The
        same decision twice is no error. Raises ``ConflictError`` for another decision than the first, an expired or
        withdrawn request, other arguments, an execution that is to stop; ``NotFoundError``; ``InputError``.
        """
        decisions.store_decision(
            definition_of(type(self)),
            self.agent_id,
            execution_id,
            approval_request_id=approval_request_id,
            approved=approved,
            edited_arguments=edited_arguments,
            arguments_digest=arguments_digest,
            reason=reason,
            by=by,
        )
        return self.resume(execution_id)

    def resolve(
        self,
        execution_id: str,
        *,
        expected_execution_revision: int,
        subject: str,
        outcome: str,
        result: Any = None,
        error: str = "",
        by: Any = None,
    ) -> ExecutionTask:
        """Say what became of a step whose outcome nobody could know; then the run goes on.

        ``outcome``: ``succeeded`` (with ``result``), ``failed`` (with ``error``), or ``not_performed``: then the operation
        may run, once. Raises ``ConflictError`` for a stale revision, a subject that is not the current one, and another
        answer than the first; ``NotFoundError``; ``InputError``.
        """
        decisions.store_resolution(
            self.agent_id,
            execution_id,
            expected_execution_revision=expected_execution_revision,
            subject=subject,
            outcome=outcome,
            result=result,
            error=error,
            by=by,
        )
        return self.resume(execution_id)

    def resume(self, execution_id: str) -> ExecutionTask:
        """Take an unfinished execution up again from its rows; the task ends as the execution does.

        A runtime does so by itself at its start. The task raises ``ResolutionRequiredError`` if only a person can say
        what became of a step, and ``DefinitionMismatchError`` if the rows are of another definition or version.
        """
        return client.resume_execution(definition_of(type(self)), self.agent_id, execution_id)

    def result(self, execution_id: str) -> ExecutionResult:
        """How an execution of this agent stands, read from its rows; needs no runtime."""
        return client.execution_result(definition_of(type(self)), self.agent_id, execution_id)

    # --- what a subclass may override ---------------------------------------------------------------------

    def filter_input(self, message: UserMessage, context: Preparation) -> UserMessage:
        """Preparation, first: the input as the model is to see it. The journal keeps the original."""
        return message

    def retrieve_knowledge(self, message: UserMessage, context: Preparation) -> Sequence[str]:
        """Preparation, second: pieces of knowledge for this run alone."""
        return ()

    def select_context(self, messages: tuple[Message, ...], context: Preparation) -> Sequence[Message]:
        """Preparation, third (the context policy): which earlier messages the model is shown."""
        return messages

    def before_llm_input(self, request: LLMRequest, context: Preparation) -> LLMRequest:
        """Preparation, last: the whole input of the run's first provider call."""
        return request

    def needs_approval(self, proposal: ToolProposal, context: Preparation) -> bool:
        """The approval policy: whether a person has to decide on this call. Runs in a pool; on values only."""
        return proposal.requires_approval

    def on_admission(self, execution: ExecutionInfo) -> None:
        """Runs inside the transaction that admits the run; what it raises refuses the run. Our database only."""

    def on_terminal(self, execution: ExecutionInfo, result: ExecutionResult) -> None:
        """Runs inside the transaction that ends the run: the ticket is closed exactly if the answer is stored."""
