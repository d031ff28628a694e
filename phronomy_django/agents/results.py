"""What a caller holds: the task of an execution, its result, its events.

Any thread may wait here; nothing here touches live state. A wait that runs out cancels nothing (rule 8).
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from phronomy_django.agents.run import Failure
from phronomy_django.domain.errors import (
    ExecutionCancelledError,
    ExecutionFailedError,
    ExecutionTimeoutError,
    NotFoundError,
)
from phronomy_django.domain.messages import Usage
from phronomy_django.domain.statuses import ExecutionStatus
from phronomy_django.engine import Scheduler, TaskResult, TaskTimeoutError

__all__ = ["ExecutionResult", "ExecutionTask", "Feed", "Reservation", "StreamEvent"]


@dataclass(frozen=True, slots=True)
class Reservation:
    """An ``execution_id`` that exists before its execution; it holds no admission."""

    agent_id: str
    execution_id: str


@dataclass(frozen=True, slots=True)
class StreamEvent:
    """One thing that happened in an execution.

    ``type``: ``token`` (a piece of text as it comes, not stored, ``sequence`` 0), or a stored event:
    ``status``, ``message``, ``tool_call``, ``tool_result``, ``end``. ``sequence`` counts the stored ones.
    """

    type: str
    sequence: int
    payload: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionResult:
    """How an execution ended. ``status`` is always there; ``output`` raises if it did not complete."""

    execution_id: str
    status: ExecutionStatus
    usage: Usage = field(default_factory=Usage)
    reason: str = ""
    error: Failure | None = None
    approval_request: Any = None
    raw_output: bytes | None = field(default=None, repr=False)
    decoder: Callable[[bytes], Any] = field(default=json.loads, repr=False, compare=False)

    @property
    def output(self) -> Any:
        """The answer: a string, or an instance of the agent's ``output_type``.

        Raises ``ExecutionCancelledError`` after a cancel, ``ExecutionTimeoutError`` after a deadline and
        ``ExecutionFailedError`` otherwise, each with the stored reason.
        """
        if self.status is ExecutionStatus.COMPLETED and self.raw_output is not None:
            return self.decoder(self.raw_output)
        what = f"Execution {self.execution_id} ended as {self.status}"
        if self.reason:
            what += f" ({self.reason})"
        if self.error is not None:
            what += f": {self.error.message}"
        if self.status is ExecutionStatus.CANCELLED:
            raise ExecutionTimeoutError(what) if self.reason == "deadline" else ExecutionCancelledError(what)
        raise ExecutionFailedError(what)


def suspended_result(execution_id: str, usage: Usage, approvals: tuple[str, ...]) -> ExecutionResult:
    """What a caller gets whose run waits for a person: the first of the requests that are pending."""
    return ExecutionResult(
        execution_id=execution_id,
        status=ExecutionStatus.SUSPENDED,
        usage=usage,
        reason="awaiting_approval",
        approval_request=approvals[0],
    )


class Feed:
    """The events of one execution on their way to whoever follows it. Producers never wait.

    Tokens are taken only from the provider call that is active now (rule 6).
    """

    __slots__ = ("_listeners", "active_call")

    def __init__(self) -> None:
        self._listeners: tuple[Callable[[StreamEvent], None], ...] = ()
        self.active_call = ""

    @property
    def wanted(self) -> bool:
        return bool(self._listeners)

    def follow(self, listener: Callable[[StreamEvent], None]) -> None:
        """Call ``listener`` (short; it must not raise) for every event from now on."""
        self._listeners = (*self._listeners, listener)

    def token(self, llm_call_id: str, text: str) -> None:
        if text and llm_call_id == self.active_call:
            self._send(StreamEvent("token", 0, {"text": text}))

    def stored(self, kind: str, sequence: int, payload: str) -> None:
        if self._listeners:
            self._send(StreamEvent(kind, sequence, json.loads(payload)))

    def _send(self, event: StreamEvent) -> None:
        for listener in self._listeners:
            listener(event)


class ExecutionTask(TaskResult[ExecutionResult]):
    """The pending result of an execution whose id is known at once.

    Cancelling or dropping the task cancels nothing: ask the agent to ``cancel_async(execution_id)``.
    """

    __slots__ = ("_events", "agent_id", "execution_id", "scheduler")

    def __init__(self, execution_id: str, agent_id: str, scheduler: Scheduler | None = None) -> None:
        super().__init__(scheduler)
        self.execution_id = execution_id
        self.agent_id = agent_id
        self.scheduler = scheduler
        self._events: deque[StreamEvent] = deque()

    def wait_result(self, timeout: float | None = None) -> ExecutionResult:
        """Wait for the end; raises ``ExecutionTimeoutError`` when ``timeout`` seconds are over.

        The execution goes on in that case; wait again, read its result later, or cancel it.
        """
        try:
            return super().wait_result(timeout)
        except TaskTimeoutError:
            raise ExecutionTimeoutError(
                f"Execution {self.execution_id} of agent {self.agent_id!r} did not end within {timeout} s. It goes on: "
                f"wait again, read its result later, or cancel it."
            ) from None

    def follow(self, first: ExecutionTask) -> None:
        """End as ``first`` ends: this caller asked for the same execution by its idempotency key."""
        self.execution_id = first.execution_id

        def ended(_: object) -> None:
            self.execution_id = first.execution_id
            if first.error is None:
                self.set_result(first.result())
            else:
                self.set_error(first.error)

        first.on_complete(ended)


def result_not_found(execution_id: str) -> NotFoundError:
    return NotFoundError(f"There is no execution {execution_id!r}.")
