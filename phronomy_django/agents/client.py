"""The caller's side: checks what is asked, posts it to the runtime, and waits without owning (rule 8)."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Collection
from typing import Any

from django.db import transaction

from phronomy_django.agents.definition import Definition
from phronomy_django.agents.host import Host, host, live_host
from phronomy_django.agents.inputs import Input, check_agent_id, check_id, check_text, make_start
from phronomy_django.agents.loading import stored_result
from phronomy_django.agents.messages import Change, RecoverAll, ResumeExecution, StartExecution, StopExecution
from phronomy_django.agents.registry import known_definition
from phronomy_django.agents.results import ExecutionResult, ExecutionTask, Feed, Reservation, StreamEvent
from phronomy_django.agents.run import Stop
from phronomy_django.agents.services import Services
from phronomy_django.conf import phronomy_settings
from phronomy_django.domain.errors import (
    ConfigurationError,
    DefinitionMismatchError,
    ExecutionTimeoutError,
    InputError,
    NotFoundError,
)
from phronomy_django.domain.ids import new_id
from phronomy_django.domain.statuses import StopKind
from phronomy_django.engine import EventLoop, EventLoopReentrancyError, TaskResult
from phronomy_django.store import (
    RootSnapshot,
    create_root,
    in_passing_thread,
    list_recoverable,
    load_execution,
    load_root,
)

__all__ = [
    "await_result",
    "cancel_execution",
    "change_agent",
    "create_agent",
    "execution_result",
    "load_agent_root",
    "recover_all",
    "recoverable",
    "reserve_execution",
    "resume_execution",
    "run_blocking",
    "start_execution",
    "stream_async_events",
    "stream_events",
    "stream_in_pool",
]

Listener = Callable[[StreamEvent], object]


def create_agent(
    definition: Definition, agent_id: str, metadata: dict[str, Any] | None, by: Any
) -> RootSnapshot:
    check_agent_id(agent_id)
    return create_root(
        agent_id=agent_id,
        definition_id=definition.definition_id,
        definition_version=definition.definition_version,
        created_by_id=getattr(by, "pk", by),
        metadata=metadata,
        using=phronomy_settings().database,
    )


def load_agent_root(definition: Definition, agent_id: str) -> RootSnapshot:
    root = load_root(check_agent_id(agent_id), phronomy_settings().database)
    if (root.definition_id, root.definition_version) != (
        definition.definition_id,
        definition.definition_version,
    ):
        raise DefinitionMismatchError(
            f"Agent {agent_id!r} was made by definition {root.definition_id!r} version {root.definition_version}; "
            f"{definition.agent_class.__qualname__} is {definition.definition_id!r} version "
            f"{definition.definition_version}."
        )
    return root


def start_execution(
    definition: Definition,
    agent_id: str,
    value: Input,
    *,
    execution_id: str | None = None,
    stream: bool = False,
    listener: Callable[[StreamEvent], None] | None = None,
    **options: Any,
) -> ExecutionTask:
    """Ask for an execution. Inside ``atomic()`` of our database it starts at commit, or never (DESIGN §8)."""
    here, settings = host(), phronomy_settings()
    check_pools(definition, here)
    start = make_start(
        value,
        execution_id=execution_id or new_id(),
        now=here.services.now(),
        max_input_bytes=settings.max_input_bytes,
        max_context_bytes=settings.max_context_bytes,
        stream=stream,
        **{"durable_context": None, "deadline": None, "idempotency_key": None, "by": None, **options},
    )
    task = ExecutionTask(start.execution_id, agent_id, here.services.scheduler)
    feed = Feed()
    if listener is not None:
        feed.follow(listener)
    request = StartExecution(agent_id=agent_id, definition=definition, start=start, task=task, feed=feed)
    _at_commit(here, lambda: here.receiver.request(request))
    return task


def check_pools(definition: Definition, here: Host) -> None:
    """Resolve the models (which may import) and refuse a pool that this runtime does not have."""
    names = {definition.llm_pool(index) for index in range(len(definition.adapters))}
    names |= {definition.tool_pool(tool) for tool in definition.tools.values() if not tool.cooperative}
    unknown = sorted(names - here.services.pool_names())
    if unknown:
        raise ConfigurationError(
            f"{definition.agent_class.__qualname__} uses the pool {unknown[0]!r}, which settings.PHRONOMY['POOLS'] does "
            f"not have; there are: {', '.join(sorted(here.services.pool_names()))}."
        )


def _at_commit(here: Host, action: Callable[[], object]) -> None:
    if here.inline or not transaction.get_connection(here.services.database).in_atomic_block:
        action()
    else:
        transaction.on_commit(action, using=here.services.database)


def refuse_waiting_inside_atomic(what: str, instead: str) -> None:
    """A blocking call inside ``atomic()`` would wait for its own caller's commit."""
    here = host()
    if EventLoop.on_loop_thread():
        raise EventLoopReentrancyError(f"{what} blocks, and this is the event loop thread; use {instead}.")
    if not here.inline and transaction.get_connection(here.services.database).in_atomic_block:
        raise ConfigurationError(
            f"{what} was called inside transaction.atomic(): it would wait for work that starts only when this "
            f"transaction commits. Use {instead}, call it after the block, or, in a view of an ATOMIC_REQUESTS site, "
            f"decorate the view with transaction.non_atomic_requests. In a TestCase set PHRONOMY['RUNTIME'] = 'inline'."
        )


def run_blocking(start: Callable[[], ExecutionTask], timeout: float | None) -> ExecutionResult:
    refuse_waiting_inside_atomic("invoke()", "invoke_async()")
    return start().wait_result(timeout)


async def await_result(start: Callable[[], ExecutionTask], timeout: float | None) -> ExecutionResult:
    """Start off the asyncio loop (the checks may query or import), then await."""
    here = await _host_for_async()
    if here.inline:
        return start().wait_result(timeout)
    task = start()
    try:
        return await asyncio.wait_for(asyncio.shield(_awaited(task)), timeout)
    except TimeoutError:
        raise ExecutionTimeoutError(
            f"Execution {task.execution_id} of agent {task.agent_id!r} did not end within {timeout} s. It goes on."
        ) from None


async def _host_for_async() -> Host:
    """The host; it is started off the asyncio loop, since that queries."""
    return await in_passing_thread(host) if live_host() is None else host()


async def _awaited(task: ExecutionTask) -> ExecutionResult:
    return await task


# --- following --------------------------------------------------------------------------------------------


def stream_events(
    start: Callable[[Callable[[StreamEvent], None]], ExecutionTask], on_event: Listener, timeout: float | None
) -> ExecutionResult:
    """Run, calling ``on_event`` in this thread for each event, and return the result."""
    refuse_waiting_inside_atomic("stream()", "stream_async()")
    scheduler = host().services.scheduler
    events: deque[StreamEvent] = deque()

    def listen(event: StreamEvent) -> None:
        events.append(event)
        scheduler.wake()

    task = start(listen)
    task.on_complete(lambda _: scheduler.wake())
    clock = scheduler.clock.monotonic
    until = None if timeout is None else clock() + timeout
    while True:
        left = None if until is None else max(0.0, until - clock())
        in_time = scheduler.wait(lambda: bool(events) or task.done, left)
        while events:
            on_event(events.popleft())
        if task.done and not events:
            return task.wait_result(0)
        if not in_time:
            return task.wait_result(0)


def stream_in_pool(
    start: Callable[[Callable[[StreamEvent], None]], ExecutionTask], on_event: Listener
) -> ExecutionTask:
    """Run; ``on_event`` is called on a pool thread, one event at a time, in order."""
    pool = host().services.pools["default"]
    events: deque[StreamEvent] = deque()
    busy = False

    def drain() -> None:
        nonlocal busy
        while True:
            try:
                event = events.popleft()
            except IndexError:
                busy = False
                if not events:
                    return
                busy = True
                continue
            on_event(event)

    def listen(event: StreamEvent) -> None:
        nonlocal busy
        events.append(event)
        if not busy:
            busy = True
            pool.submit(drain)

    return start(listen)


async def stream_async_events(
    start: Callable[[Callable[[StreamEvent], None]], ExecutionTask],
) -> AsyncIterator[StreamEvent]:
    """The events as an asynchronous iterator; it ends after the ``end`` event, or raises what stopped the run."""
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[StreamEvent | None] = asyncio.Queue()

    def put(event: StreamEvent | None) -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(queue.put_nowait, event)

    await _host_for_async()
    task = start(put)
    task.on_complete(lambda _: put(None))
    while (event := await queue.get()) is not None:
        yield event
    if task.error is not None:
        raise task.error


# --- the rest ---------------------------------------------------------------------------------------------


def reserve_execution(agent_id: str) -> Reservation:
    here = host()
    reservation = Reservation(agent_id, new_id())
    here.receiver.stops.reserved.add(reservation.execution_id)
    return reservation


def cancel_execution(execution_id: str, reason: str, by: Any) -> TaskResult[bool]:
    if len(reason) > 500:
        raise InputError(f"The reason has {len(reason)} characters; 500 are the limit.")
    if reason:
        check_text(reason, "The reason", 2000)
    execution_id = check_id(execution_id, "execution")
    here = host()
    task: TaskResult[bool] = TaskResult(here.services.scheduler)
    stop = Stop(kind=StopKind.CANCEL, reason=reason, by=getattr(by, "pk", by), at=here.services.now())
    request = StopExecution(execution_id, stop, task)

    def post() -> None:
        here.services.loop.post_execution(here.receiver, request, completion=task)

    _at_commit(here, post)
    return task


def resume_execution(definition: Definition, agent_id: str, execution_id: str) -> ExecutionTask:
    """Ask for an unfinished execution to be taken up again; its task ends as the execution ends."""
    execution_id = check_id(execution_id, "execution")
    here = host()
    check_pools(definition, here)
    task = ExecutionTask(execution_id, agent_id, here.services.scheduler)
    request = ResumeExecution(agent_id=agent_id, execution_id=execution_id, definition=definition, task=task)
    _at_commit(here, lambda: here.receiver.request(request))
    return task


def recover_all() -> list[ExecutionTask]:
    """Ask for everything that this runtime may take up; a task for each."""
    here = host()
    requests = recoverable(here.services)
    if requests:
        here.receiver.post(RecoverAll(requests))
    return [request.task for request in requests]


def recoverable(services: Services, execution_ids: Collection[str] | None = None) -> list[ResumeExecution]:
    """Requests for what this runtime may take up, oldest first; of ``execution_ids`` only, if they are given."""
    return [
        ResumeExecution(
            agent_id=agent_id,
            execution_id=execution_id,
            definition=known_definition(definition_id, version),
            task=ExecutionTask(execution_id, agent_id, services.scheduler),
        )
        for execution_id, agent_id, definition_id, version in list_recoverable(
            services.runtime_id, services.database, execution_ids
        )
    ]


def change_agent(definition: Definition, agent_id: str, kind: str, text: str = "") -> TaskResult[None]:
    if kind == "knowledge":
        check_text(text, "The knowledge", phronomy_settings().max_input_bytes)
    here = host()
    task: TaskResult[None] = TaskResult(here.services.scheduler)
    change = Change(agent_id=agent_id, definition=definition, kind=kind, text=text, task=task)
    _at_commit(here, lambda: here.receiver.request(change))
    return task


def execution_result(definition: Definition, agent_id: str, execution_id: str) -> ExecutionResult:
    found = load_execution(check_id(execution_id, "execution"), phronomy_settings().database)
    if found.agent_id != agent_id:
        raise NotFoundError(f"Agent {agent_id!r} has no execution {execution_id}.")
    return stored_result(found, definition)
