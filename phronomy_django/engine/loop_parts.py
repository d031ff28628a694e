"""The parts of the event loop that are no business of its thread: states, records, receivers, gauge."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, TypeAlias

from phronomy_django.engine.errors import RegistrationError, SessionEndedError
from phronomy_django.engine.metrics import LoopMetrics
from phronomy_django.engine.receivers import ExecutionReceiver
from phronomy_django.engine.results import TaskResult
from phronomy_django.engine.sessions import Ending, FSMSession, SessionEnd, SessionEvent

if TYPE_CHECKING:
    from phronomy_django.engine.loop import EventLoop

__all__ = ["AnySession", "Delivery", "Gauge", "LiveSession", "LoopState", "LoopStop", "Receivers"]

logger = logging.getLogger("phronomy_django.engine")

#: A queue deeper than this is worth a warning, at most once in ``BACKLOG_PERIOD`` seconds.
BACKLOG = 1_000
BACKLOG_PERIOD = 60.0
#: Bit mask of the items of a batch whose lag is not read.
LAG_SAMPLE = 15

AnySession: TypeAlias = FSMSession[Any, Any]


class LoopState(StrEnum):
    RUNNING = "running"
    DRAINING = "draining"
    STOPPING = "stopping"
    TERMINATED = "terminated"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class LoopStop:
    """``stopped``: the thread has ended. ``errors``: what receivers raised when they were told."""

    stopped: bool
    errors: tuple[BaseException, ...] = ()


@dataclass(slots=True, eq=False)
class Delivery:
    """A message for a receiver, in the loop's queue."""

    receiver: ExecutionReceiver
    message: Any
    admission: bool
    completion: TaskResult[Any] | None


@dataclass(slots=True, eq=False)
class LiveSession:
    """A registered session, and who wants to hear of its end."""

    session: AnySession
    completion: TaskResult[SessionEnd] | None
    receiver: ExecutionReceiver | None

    def retire(self, ending: Ending) -> None:
        """Tell the receiver, then settle the completion, which is left pending in no case."""
        session, completion = self.session, self.completion
        if self.receiver is not None:
            try:
                self.receiver.session_retired(session.fsm_session_id, ending.value)
            except BaseException as error:
                if completion is not None:
                    completion.set_error(error)
                raise
        if completion is None:
            return
        if session.error is not None:
            completion.set_error(session.error)
        elif ending in (Ending.FINISHED, Ending.HALTED):
            completion.set_result(SessionEnd(ending, session.state, session.data))
        else:
            text = f"The session {session.fsm_session_id} ended in {ending} (state {session.state!r})."
            completion.set_error(SessionEndedError(text, ending=ending.value, state=session.state))


class Receivers:
    """The receivers of one loop by key. The loop calls it under its lock."""

    def __init__(self, loop: EventLoop) -> None:
        self._loop = loop
        self._by_key: dict[str, ExecutionReceiver] = {}
        self._known: set[ExecutionReceiver] = set()
        self.errors: list[BaseException] = []

    def add(self, key: str, receiver: ExecutionReceiver) -> None:
        if key in self._by_key or receiver in self._known:
            raise RegistrationError(f"The receiver {key!r} is registered with {self._loop.name!r} already.")
        self._by_key[key] = receiver
        self._known.add(receiver)

    def get(self, key: str) -> ExecutionReceiver | None:
        return self._by_key.get(key)

    def __contains__(self, receiver: ExecutionReceiver) -> bool:
        return receiver in self._known

    def refuse_foreign(self, receiver: ExecutionReceiver) -> None:
        """Raise unless ``receiver`` is bound to this loop."""
        if receiver.loop is not self._loop:
            raise RegistrationError(
                f"The receiver {receiver!r} belongs to another event loop than {self._loop.name!r}; "
                f"make one for this loop."
            )

    def refuse_unknown(self, receiver: ExecutionReceiver) -> None:
        """Raise unless ``receiver`` is registered here."""
        if receiver not in self._known:
            self.refuse_foreign(receiver)
            raise RegistrationError(f"Register the receiver {receiver!r} with {self._loop.name!r} first.")

    def all_idle(self) -> bool:
        return all(receiver.idle() for receiver in self._by_key.values())

    def idle_by_key(self) -> dict[str, bool]:
        return {key: receiver.idle() for key, receiver in self._by_key.items()}

    def tell(self, error: BaseException | None) -> None:
        """Shut all of them down; what one raises is kept in ``errors`` and stops no other."""
        for key, receiver in list(self._by_key.items()):
            try:
                receiver.shutdown(error)
            except Exception as failure:
                logger.exception("The receiver %s failed to shut down; the others are still told", key)
                self.errors.append(failure)


class Gauge:
    """What a loop's thread counts. Lag is read at the first item of a batch and every 16th after it."""

    __slots__ = ("_warned_at", "dispatched", "dropped", "last_lag", "max_lag", "samples", "total_lag")

    def __init__(self) -> None:
        self.dispatched = 0
        self.samples = 0
        self.dropped = 0
        self.last_lag = 0.0
        self.total_lag = 0.0
        self.max_lag = 0.0
        self._warned_at: float | None = None

    def lag(self, seconds: float) -> None:
        """A sampled item was posted ``seconds`` before its dispatch."""
        self.samples += 1
        self.last_lag = seconds
        self.total_lag += seconds
        if seconds > self.max_lag:
            self.max_lag = seconds

    def drop(self, event: SessionEvent) -> None:
        """An event came for a session that is not live."""
        self.dropped += 1
        logger.info("Dropped the late event %s for session %s", event.name, event.fsm_session_id)

    def warn_of_backlog(self, name: str, depth: int, now: float) -> None:
        """Log the backlog unless it was logged within the last ``BACKLOG_PERIOD`` seconds."""
        if self._warned_at is None or now - self._warned_at >= BACKLOG_PERIOD:
            self._warned_at = now
            logger.warning("The event loop %s has a backlog of %d events", name, depth)

    def snapshot(self, depth: int, max_depth: int, sessions: int) -> LoopMetrics:
        return LoopMetrics(
            queue_depth=depth,
            max_queue_depth=max_depth,
            last_lag=self.last_lag,
            average_lag=self.total_lag / self.samples if self.samples else 0.0,
            max_lag=self.max_lag,
            dispatched=self.dispatched,
            dropped=self.dropped,
            sessions=sessions,
        )
