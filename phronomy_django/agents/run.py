"""The live state of one execution, as a frozen value that the session replaces step by step.

Only the loop thread holds the current one. Nothing here is stored: the barriers turn it into rows.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

from phronomy_django.domain.errors import ResolutionRequiredError
from phronomy_django.domain.messages import LLMResponse, Message, ToolCall, Usage, UserMessage
from phronomy_django.domain.statuses import ExecutionStatus, OperationState, StopKind
from phronomy_django.tools import BoundArguments, ToolDefinition

__all__ = [
    "ApprovalNeed",
    "ContextMessage",
    "Ending",
    "Failure",
    "LLMCallState",
    "ProviderOutcome",
    "Run",
    "Start",
    "Stop",
    "ToolOutcome",
    "ToolState",
    "Unresolved",
    "Work",
    "resolution_required",
]


class ContextMessage(NamedTuple):
    """A message and its canonical JSON, made once: content in the journal, fragment of every manifest."""

    message: Message
    body: bytes


@dataclass(frozen=True, slots=True)
class Failure:
    """Why something did not work, as a value: the exception's type and its message."""

    type: str
    message: str

    def as_json(self) -> dict[str, str]:
        return {"type": self.type, "message": self.message}


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """One operation as the loop sees it: the row's identity, and the attempt and claim that count now."""

    operation_id: str
    pool: str
    attempt: int = 1
    claim: str | None = None
    state: OperationState = OperationState.QUEUED
    started_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LLMCallState:
    llm_call_id: str
    ordinal: int
    model_index: int
    work: Work
    manifest: bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalNeed:
    """A planned call that a person has to decide on: what is shown, as JSON, and for how many seconds it waits."""

    shown: str
    facts: str
    seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Unresolved:
    """A subject whose outcome nobody can know (rule 7): which attempt of what, in words for a person."""

    subject_id: str
    attempt: int
    what: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderOutcome:
    """What one provider call came to: a response (with its tool calls parsed), or a failure.

    ``plans`` has one entry for each tool call of the response: the tool and its validated arguments, or the
    sentence that tells the model what was wrong. ``output`` is the structured answer as canonical JSON,
    ``output_problem`` what was wrong with it. ``needs`` has one entry for each plan where a person has to decide on
    at least one of them, else it is empty.
    """

    response: LLMResponse | None = None
    plans: tuple[tuple[ToolDefinition[..., Any], BoundArguments] | str, ...] = ()
    output: bytes | None = None
    output_problem: str = ""
    failure: Failure | None = None
    attempts: int = 1
    needs: tuple[ApprovalNeed | None, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolOutcome:
    """The one answer to one tool call. ``status`` is a word of ``ToolInvocationStatus``.

    ``recorded`` says that the body's own transaction has stored it already (a transactional tool).
    """

    status: str
    text: str
    recorded: bool = False
    attempts: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolState:
    tool_invocation_id: str
    call: ToolCall
    arguments: bytes
    tool: ToolDefinition[..., Any] | None = None
    bound: BoundArguments | None = None
    work: Work | None = None
    outcome: ToolOutcome | None = None
    approved: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """What a caller asked for, checked already: the facts of B1."""

    execution_id: str
    message: UserMessage
    body: bytes
    attachments: tuple[tuple[bytes, str], ...] = ()
    durable_context: Any = None
    context_json: str = "{}"
    deadline: datetime | None = None
    idempotency_key: str | None = None
    digest: str = ""
    by: Any = None
    stream: bool = False
    admitted_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """A stop that was asked for; it counts once its row is committed (HARD_POINTS 9)."""

    kind: StopKind
    reason: str = ""
    by: Any = None
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How the execution is to end; it is final only when B6 is committed."""

    status: ExecutionStatus
    reason: str = ""
    output: bytes | None = None
    failure: Failure | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One execution. ``history`` is the context before its input, ``own`` what it added so far, in order.

    After a recovery ``entry`` is the state where it goes on, ``unresolved`` what keeps it from that, ``said`` what a
    person said of its provider call, ``disposition`` the word that its row has now. ``approvals`` are the requests that
    are pending.
    """

    execution_id: str
    revision: int
    iteration: int = 0
    event_sequence: int = 0
    prepared: bool
    history: tuple[ContextMessage, ...] = ()
    own: tuple[ContextMessage, ...] = ()
    knowledge: tuple[str, ...] = ()
    prepared_messages: tuple[ContextMessage, ...] | None = None
    instructions: str | None = None
    model_index: int = 0
    call_count: int = 0
    call: LLMCallState | None = None
    outcome: ProviderOutcome | None = None
    tools: tuple[ToolState, ...] = ()
    usage: Usage = field(default_factory=Usage)
    tool_call_count: int = 0
    stop: Stop | None = None
    stop_accepted: bool = False
    ending: Ending | None = None
    running: frozenset[str] = frozenset()
    input_content_id: str = ""
    started_at: datetime | None = None
    end_attempts: int = 0
    entry: str = ""
    unresolved: tuple[Unresolved, ...] = ()
    said: ProviderOutcome | None = None
    disposition: str = ""
    approvals: tuple[str, ...] = ()

    @property
    def messages(self) -> tuple[ContextMessage, ...]:
        """What the next provider call is shown."""
        if self.prepared_messages is None:
            return self.history + self.own
        return self.prepared_messages + self.own[1:]


def resolution_required(agent_id: str, run: Run) -> ResolutionRequiredError:
    what = "; ".join(f"{item.what} ({item.subject_id}, attempt {item.attempt})" for item in run.unresolved)
    return ResolutionRequiredError(
        f"Execution {run.execution_id} of agent {agent_id!r} waits for a person, since nobody can know the outcome of: "
        f"{what}. Resolve it: manage.py phronomy_recover."
    )
