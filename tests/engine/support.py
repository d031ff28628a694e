"""What the engine's tests share: a counting session table and a receiver that writes down what it hears."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from phronomy_django.engine import EventLoop, ExecutionReceiver, FSMSession, Rule, SessionEvent, SessionTable


def count(data: int, event: SessionEvent) -> tuple[int, tuple[Any, ...]]:
    return data + 1, (event.payload,) if event.payload is not None else ()


def fail(data: int, event: SessionEvent) -> tuple[int, tuple[Any, ...]]:
    raise ValueError("the action failed")


COUNTING: SessionTable[int, Any] = SessionTable(
    initial="open",
    rules=[
        Rule(state="open", event="count", target="open", action=count),
        Rule(state="open", event="fail", target="open", action=fail),
        Rule(state="open", event="finish", target="finished"),
        Rule(state="open", event="halt", target="halted"),
        Rule(state="open", event="break", target="broken"),
        Rule(state="open", event="doubt", target="doubtful"),
    ],
    endings={"finished": "finished", "halted": "halted", "broken": "error", "doubtful": "recovery_required"},
)


def counting_session(
    execute: Callable[[FSMSession[int, Any], Sequence[Any]], None] = lambda session, commands: None,
) -> FSMSession[int, Any]:
    return FSMSession(table=COUNTING, data=0, execute=execute)


class Recorder(ExecutionReceiver):
    """Calls messages that are callable, and writes everything down."""

    def __init__(self, loop: EventLoop) -> None:
        super().__init__(loop)
        self.messages: list[Any] = []
        self.retired: list[tuple[str, str]] = []
        self.shutdowns: list[BaseException | None] = []
        self.busy = False
        self.on_shutdown: Callable[[], object] = lambda: None

    def deliver(self, message: Any) -> None:
        self.messages.append(message)
        if callable(message):
            message()

    def idle(self) -> bool:
        return not self.busy

    def session_retired(self, session_id: str, reason: str) -> None:
        self.retired.append((session_id, reason))

    def shutdown(self, error: BaseException | None = None) -> None:
        self.shutdowns.append(error)
        self.on_shutdown()
