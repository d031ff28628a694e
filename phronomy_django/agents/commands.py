"""The words between a session and its coordinator: states, events with their payloads, and commands.

All are frozen values. A session answers events with commands; the coordinator carries them out.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeAlias

from phronomy_django.agents.run import Failure, ProviderOutcome, Run, ToolOutcome

__all__ = [
    "PREPARATION",
    "Abandon",
    "CancelWork",
    "Command",
    "Commit",
    "Committed",
    "EventName",
    "Fail",
    "Finish",
    "Hold",
    "LLMEnded",
    "Limits",
    "Prepare",
    "Prepared",
    "StartLLM",
    "StartTools",
    "State",
    "Step",
    "Suspend",
    "TellLLM",
    "ToolEnded",
]

#: Stands for the preparation among the work that still runs.
PREPARATION = "preparation"


class State(StrEnum):
    ADMITTING = "admitting"
    PREPARING = "preparing"
    DISPATCHING = "dispatching"
    CALLING_LLM = "calling_llm"
    RECORDING = "recording"
    RUNNING_TOOLS = "running_tools"
    ACCEPTING_STOP = "accepting_stop"
    QUIESCING = "quiescing"
    ENDING = "ending"
    FINISHED = "finished"
    ERROR = "error"
    RECOVERY_REQUIRED = "recovery_required"
    RESUMING = "resuming"
    HOLDING = "holding"
    AUTHORIZING = "authorizing"
    SUSPENDING = "suspending"
    SUSPENDED = "suspended"


class EventName(StrEnum):
    BEGIN = "begin"
    COMMITTED = "committed"
    REFUSED = "refused"
    UNKNOWN = "unknown"
    PREPARED = "prepared"
    LLM_ENDED = "llm_ended"
    TOOL_ENDED = "tool_ended"
    WORK_ENDED = "work_ended"
    STOP = "stop"
    RESUME = "resume"


# --- commands -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Commit:
    """Commit the barrier of this name; its answer comes back as committed, refused or unknown."""

    barrier: str
    delay: float = 0.0


@dataclass(frozen=True, slots=True)
class Prepare:
    """Run the application's preparation in a pool."""


@dataclass(frozen=True, slots=True)
class StartLLM:
    """Start (or queue) the provider call that was just committed."""


@dataclass(frozen=True, slots=True)
class TellLLM:
    """Go on with what a person said of the provider call, as if the provider had."""


@dataclass(frozen=True, slots=True)
class Suspend:
    """It is committed that a person has to decide: tell the callers and keep nothing of it in memory."""


@dataclass(frozen=True, slots=True)
class Hold:
    """It is committed that a person has to answer: settle the callers and keep nothing of it in memory."""


@dataclass(frozen=True, slots=True)
class StartTools:
    """Start (or queue) the tool operations that were just committed."""


@dataclass(frozen=True, slots=True)
class CancelWork:
    """Withdraw what has not started; tell the rest that it is cancelled."""


@dataclass(frozen=True, slots=True)
class Finish:
    """The end is committed: settle the callers and free the admission."""


@dataclass(frozen=True, slots=True)
class Fail:
    """The run cannot go on here: settle the callers with ``error``."""

    error: BaseException


@dataclass(frozen=True, slots=True)
class Abandon:
    """What was committed is unknown: keep the admission, settle the callers with ``error``."""

    error: BaseException


Command: TypeAlias = (
    Commit | Prepare | StartLLM | TellLLM | StartTools | CancelWork | Suspend | Hold | Finish | Fail | Abandon
)
Step: TypeAlias = tuple[Run, tuple[Command, ...]]


# --- payloads -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Committed:
    """What becomes live at the positive answer: new values of the run, and the work that was dispatched."""

    changes: dict[str, Any]
    work: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Prepared:
    """The preparation's result: values of fields of the run, or a failure."""

    changes: dict[str, Any]
    failure: Failure | None = None


@dataclass(frozen=True, slots=True)
class ToolEnded:
    """A tool call has its answer. ``over``: its operation, unless the body still runs (it was abandoned)."""

    tool_invocation_id: str
    outcome: ToolOutcome
    over: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The parts of a definition that the table decides by; carried by the events of a provider call."""

    max_iterations: int
    model_count: int
    exceeded: str = ""
    separate_end: bool = False


@dataclass(frozen=True, slots=True)
class LLMEnded:
    """A provider call has its outcome. ``limits``: what the definition says of the run with this outcome."""

    llm_call_id: str
    outcome: ProviderOutcome
    limits: Limits
    over: str = ""
