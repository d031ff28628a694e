"""What other threads ask of the agents receiver, and what readers answer: frozen values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from phronomy_django.agents.definition import Definition
from phronomy_django.agents.draft import Built
from phronomy_django.agents.results import ExecutionTask, Feed
from phronomy_django.agents.run import ContextMessage, Start, Stop
from phronomy_django.domain.errors import PhronomyError
from phronomy_django.engine import TaskResult
from phronomy_django.store import (
    CommitAnswer,
    ExecutionSnapshot,
    OpenExecution,
    RootSnapshot,
    UnfinishedExecution,
)

__all__ = [
    "Change",
    "ChangeAnswered",
    "Loaded",
    "LoadedAgent",
    "OwnerToken",
    "RecoverAll",
    "ResumeExecution",
    "StartExecution",
    "StopExecution",
    "StopLookedUp",
]


class OwnerToken:
    """Proves who took an admission; process-local, compared by identity, never stored."""

    __slots__ = ()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StartExecution:
    agent_id: str
    definition: Definition
    start: Start
    task: ExecutionTask
    feed: Feed


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Change:
    """A change of an idle agent outside executions: knowledge, a cleared transcript, a purge.

    ``kind`` is ``knowledge`` (with ``text``), ``clear`` or ``purge``.
    """

    agent_id: str
    definition: Definition
    kind: str
    text: str = ""
    task: TaskResult[None]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ResumeExecution:
    """Take an unfinished execution up again from its rows. ``execution_id`` empty: whichever the agent has.

    ``definition`` is None if this process has none of that id and version.
    """

    agent_id: str
    execution_id: str
    definition: Definition | None
    task: ExecutionTask


@dataclass(frozen=True, slots=True, eq=False)
class RecoverAll:
    """What a scan of the rows found."""

    requests: list[ResumeExecution]


@dataclass(frozen=True, slots=True, eq=False)
class StopExecution:
    execution_id: str
    stop: Stop
    task: TaskResult[bool]


@dataclass(frozen=True, slots=True, eq=False)
class LoadedAgent:
    """What a load found: the root, now owned by this runtime, its context, and an earlier answer to the key."""

    root: RootSnapshot
    context: tuple[ContextMessage, ...]
    knowledge: tuple[str, ...]
    earlier: ExecutionSnapshot | None = None
    open: OpenExecution | None = None
    unfinished: UnfinishedExecution | None = None
    rehydrated: Any = None
    mismatch: PhronomyError | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Loaded:
    request: StartExecution | Change | ResumeExecution
    token: OwnerToken
    found: LoadedAgent | None
    error: BaseException | None


@dataclass(frozen=True, slots=True, eq=False)
class ChangeAnswered:
    change: Change
    token: OwnerToken
    built: Built
    answer: CommitAnswer


@dataclass(frozen=True, slots=True, eq=False)
class StopLookedUp:
    request: StopExecution
    found: ExecutionSnapshot | None
    error: BaseException | None


Request: TypeAlias = StartExecution | Change | ResumeExecution
Post: TypeAlias = Callable[[Any], object]
