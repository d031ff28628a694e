"""The event loop: the single writer of live state (DESIGN §3, rules 1 and 2; §4)."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from phronomy_django.engine.current import current_event_loop, refuse_on_loop_thread, set_current_event_loop
from phronomy_django.engine.errors import RegistrationError, RuntimeShutdownError
from phronomy_django.engine.loop_parts import (
    BACKLOG,
    LAG_SAMPLE,
    AnySession,
    Delivery,
    Gauge,
    LiveSession,
    LoopState,
    LoopStop,
    Receivers,
)
from phronomy_django.engine.metrics import LoopMetrics
from phronomy_django.engine.receivers import ExecutionReceiver
from phronomy_django.engine.results import TaskResult
from phronomy_django.engine.scheduling import Scheduler, WorkerHandle
from phronomy_django.engine.sessions import Ending, SessionEnd, SessionEvent

__all__ = ["EventLoop", "LoopState", "LoopStop"]

logger = logging.getLogger("phronomy_django.engine")

#: Events dispatched before the loop looks at its lock again.
BATCH = 128


class EventLoop:
    """One daemon thread, one first-in first-out queue, any producers.

    ``running → draining → stopping → terminated``, or ``failed``. Admissions are taken only while running,
    continuations while draining too; once stopping, the queue refuses and the thread ends when what it holds
    has been dispatched. The thread starts with the first post or registration.
    """

    def __init__(self, name: str = "phronomy", *, scheduler: Scheduler) -> None:
        self.name = name
        self._scheduler = scheduler
        self._monotonic = scheduler.clock.monotonic
        self._lock = threading.RLock()
        self._posted = threading.Condition(self._lock)
        self._queue: deque[SessionEvent | Delivery] = deque()
        self._stamps: deque[float] = deque()  # when each was posted; appended before the item, never fewer
        self._state = LoopState.RUNNING
        self._open = True
        self._sleeping = True
        self._dispatching = False
        self._current: Delivery | None = None
        self._handle: WorkerHandle | None = None
        self._stop_lock = threading.Lock()
        self._failure_told = False
        self.error: BaseException | None = None
        self._receivers = Receivers(self)
        self._sessions: dict[str, LiveSession] = {}
        self._unowned = 0
        self._gauge = Gauge()
        self._max_depth = 0

    @property
    def state(self) -> LoopState:
        return self._state

    @staticmethod
    def on_loop_thread() -> bool:
        """Whether this thread is dispatching some event loop at this moment."""
        return current_event_loop() is not None

    def start(self) -> None:
        """Start the thread now rather than with the first post. Idempotent."""
        if self._state is LoopState.RUNNING and self._handle is None:
            self._wake()

    def register_receiver(self, key: str, receiver: ExecutionReceiver) -> None:
        """Attach ``receiver``, while running, once, and only to the loop that it is bound to."""
        with self._lock:
            self._receivers.refuse_foreign(receiver)
            if self._state is not LoopState.RUNNING:
                raise self._refusal()
            self._receivers.add(key, receiver)

    def receiver(self, key: str) -> ExecutionReceiver | None:
        """The receiver registered under ``key``, or None; never creates one."""
        return self._receivers.get(key)

    # --- posting ----------------------------------------------------------------------------------------

    def post_execution(
        self,
        receiver: ExecutionReceiver,
        message: Any,
        *,
        admission: bool = False,
        completion: TaskResult[Any] | None = None,
    ) -> bool:
        """Queue ``message`` for ``receiver.deliver``; False if the loop takes it no more.

        An admission needs a running loop; a continuation is taken while draining too. The delivery counts as
        pending until its dispatch has ended. ``completion`` fails when the loop refuses the message, when
        its dispatch raises, and when the loop ends before it; its success is the receiver's to tell.
        """
        self._receivers.refuse_unknown(receiver)
        with self._lock:
            accepted = self._state is LoopState.RUNNING if admission else self._open
            if accepted:
                self._stamps.append(self._monotonic())
                self._queue.append(Delivery(receiver, message, admission, completion))
            depth = len(self._queue)
            self._max_depth = max(depth, self._max_depth)
            if accepted and self._sleeping:
                self._wake()
        if not accepted and completion is not None:
            completion.set_error(self._refusal())
        if accepted and depth == BACKLOG + 1:
            self._gauge.warn_of_backlog(self.name, depth, self._monotonic())
        return accepted

    def post(self, event: SessionEvent) -> bool:
        """Queue ``event``; False if the loop takes it no more. Dropped if its session is gone by then."""
        # The busiest path: no lock. The thread ends only if it sees the queue closed and then empty.
        queue = self._queue
        self._stamps.append(self._monotonic())
        queue.append(event)
        if not self._open:
            return self._too_late(event)
        depth = len(queue)
        if depth > self._max_depth:
            self._max_depth = depth
            if depth == BACKLOG + 1:  # the loop itself looks after each batch, if it comes to it
                self._gauge.warn_of_backlog(self.name, depth, self._monotonic())
        if self._sleeping:
            self._wake()
        return True

    def post_to_session(self, event: SessionEvent) -> bool:
        """As ``post``, and False, with nothing queued, if the session is not live."""
        return event.fsm_session_id in self._sessions and self.post(event)

    def _too_late(self, event: SessionEvent) -> bool:
        """The queue was closed when ``event`` was in it: take it back, or see that it was dispatched."""
        with self._lock:
            while True:
                try:
                    self._queue.remove(event)
                except ValueError:
                    return self._state is not LoopState.FAILED
                except IndexError:  # the queue changed under the search
                    continue
                self._stamps.pop()
                return False

    def route_execution_event(
        self, receiver: ExecutionReceiver, lookup: Callable[[], SessionEvent | None]
    ) -> bool:
        """Resolve a semantic identity to a session's event and queue it, both under one lock.

        ``lookup()`` reads the receiver's state and returns the event, or None when nothing is live under that
        identity. False then, and when the loop or the session takes no more.
        """
        self._receivers.refuse_unknown(receiver)
        with self._lock:
            event = lookup()
            return event is not None and self.post_to_session(event)

    def synchronize_execution_state(self) -> AbstractContextManager[Any]:
        """The one lock over feature state and the idle decision; take it around what ``idle`` reads."""
        return self._lock

    def _wake(self) -> None:
        with self._lock:
            if self._sleeping:
                self._sleeping = False
                if self._handle is None:
                    self._handle = self._scheduler.start(self)
                else:
                    self._posted.notify()

    def _refusal(self) -> BaseException:
        if self.error is not None:
            return self.error
        return RuntimeShutdownError(f"The event loop {self.name!r} is {self._state} and admits nothing new.")

    # --- admission and sessions -------------------------------------------------------------------------

    @contextmanager
    def admit_execution(self, receiver: ExecutionReceiver) -> Iterator[None]:
        """Hold the lock while ``receiver`` takes an admission, on the loop's thread only.

        Accepted while running, and while draining for the very delivery that was accepted as an admission
        before; ``RuntimeShutdownError`` otherwise.
        """
        if current_event_loop() is not self:
            raise RegistrationError(
                f"An execution is admitted on the thread of the event loop {self.name!r} only."
            )
        self._receivers.refuse_unknown(receiver)
        with self._lock:
            current = self._current if self._state is LoopState.DRAINING else None
            accepted_before = current is not None and current.admission and current.receiver is receiver
            if self._state is not LoopState.RUNNING and not accepted_before:
                raise self._refusal()
            yield

    def register(
        self,
        session: AnySession,
        completion: TaskResult[SessionEnd] | None = None,
        receiver: ExecutionReceiver | None = None,
    ) -> SessionEnd | None:
        """Make ``session`` live: from now on it gets its events.

        With a ``completion`` that is settled at the end (failed for error and recovery_required), with a
        ``receiver`` it hears of the end; either returns None at once. With neither, this waits for the end,
        and returns or raises it; refused on the loop's thread. Raises ``RuntimeShutdownError`` unless the
        loop is running (or, on its own thread, draining), ``RegistrationError`` for the second time.
        """
        waits = completion is None and receiver is None
        if waits:
            refuse_on_loop_thread("Registering a session without a completion")
            completion = TaskResult(self._scheduler)
        if receiver is not None:
            self._receivers.refuse_unknown(receiver)
        with self._lock:
            here = current_event_loop() is self
            if self._state is not LoopState.RUNNING and not (here and self._open):
                raise self._refusal()
            session.bind(self)
            self._sessions[session.fsm_session_id] = LiveSession(session, completion, receiver)
            self._unowned += receiver is None
        return completion.wait_result() if waits and completion is not None else None

    # --- worker -----------------------------------------------------------------------------------------

    def run_step(self, *, block: bool) -> bool:
        with self._lock:
            while not self._queue:
                if not self._open or not block:
                    return False
                self._sleeping = True
                if not self._queue:  # posts look at _sleeping after they have queued
                    self._posted.wait()
            self._sleeping = False
            self._dispatching = True
        set_current_event_loop(self)
        try:
            self._dispatch_batch(BATCH if block else 1)
        finally:
            set_current_event_loop(None)
            with self._lock:
                self._dispatching = False
            self._scheduler.wake()
        return True

    def _dispatch_batch(self, limit: int) -> None:
        queue, live_session, gauge = self._queue, self._sessions.get, self._gauge
        take, take_stamp, count = queue.popleft, self._stamps.popleft, 0
        try:
            while queue and count < limit:
                item, posted_at = take(), take_stamp()
                if not count & LAG_SAMPLE:
                    gauge.lag(self._monotonic() - posted_at)
                count += 1
                try:
                    if type(item) is SessionEvent:
                        live = live_session(item[0])
                        if live is None:
                            gauge.drop(item)
                            continue
                        ending = live.session.dispatch(item)
                        if ending is not None:
                            self._retire(live, ending)
                    else:
                        self._deliver(item)  # type: ignore[arg-type]
                except BaseException as error:
                    self._fail(error, item)
                    if not isinstance(error, Exception):
                        raise
                    return
        finally:
            gauge.dispatched += count
            if len(queue) > BACKLOG:
                gauge.warn_of_backlog(self.name, len(queue), self._monotonic())

    def _deliver(self, delivery: Delivery) -> None:
        self._current = delivery
        try:
            delivery.receiver.deliver(delivery.message)
        finally:
            self._current = None

    def _retire(self, live: LiveSession, ending: Ending) -> None:
        with self._lock:
            del self._sessions[live.session.fsm_session_id]
            self._unowned -= live.receiver is None
        live.retire(ending)

    def runnable(self) -> bool:
        return bool(self._queue)

    def finished(self) -> bool:
        with self._lock:
            if self._state is LoopState.FAILED:
                return self._failure_told
            return not self._open and not self._queue and not self._dispatching

    # --- idle, drain, stop, failure ---------------------------------------------------------------------

    def idle(self) -> bool:
        """Whether nothing is pending: no queued or running delivery, no live session that nobody owns, and
        every receiver says that it is idle."""
        with self._lock:
            pending = self._queue or self._dispatching or self._unowned
            return not pending and self._receivers.all_idle()

    def begin_draining(self) -> None:
        """Take no further admission; what was admitted goes on. Idempotent."""
        with self._lock:
            if self._state is LoopState.RUNNING:
                self._state = LoopState.DRAINING

    def wait_until_idle(self, deadline: float) -> bool:
        """Wait until ``idle``; its value at ``deadline`` (monotonic seconds), or when the loop has ended."""
        ended = (LoopState.TERMINATED, LoopState.FAILED)
        left = deadline - self._monotonic()
        self._scheduler.wait(lambda: self._state in ended or self.idle(), max(0.0, left))
        return self.idle()

    def stop(self, deadline: float) -> LoopStop:
        """Close the queue, wait for the thread until ``deadline``, then tell the receivers, each once.

        A loop that still runs at the deadline is left as it is, its receivers are not told; stop it again
        later. Idempotent. Refused on the loop's thread.
        """
        refuse_on_loop_thread("Stopping the event loop")
        with self._lock:
            self._open = False
            if self._state in (LoopState.RUNNING, LoopState.DRAINING):
                self._state = LoopState.STOPPING
            self._posted.notify()
            handle = self._handle
        if handle is not None and not handle.join(max(0.0, deadline - self._monotonic())):
            return LoopStop(False)
        with self._stop_lock:
            if self._state is LoopState.STOPPING:
                self._receivers.tell(None)
                self._settle_rest(self._refusal())
                with self._lock:
                    self._state = LoopState.TERMINATED
        self._scheduler.wake()
        return LoopStop(True, tuple(self._receivers.errors))

    def _fail(self, error: BaseException, item: SessionEvent | Delivery) -> None:
        """Dispatch raised: refuse from now on, tell the receivers here, leave nobody waiting."""
        logger.error("The event loop %s failed in dispatch", self.name, exc_info=error)
        with self._lock:
            self._state = LoopState.FAILED
            self._open = False
            self.error = error
        if isinstance(item, Delivery) and item.completion is not None:
            item.completion.set_error(error)
        self._receivers.tell(error)
        self._settle_rest(error)
        with self._lock:
            self._failure_told = True

    def _settle_rest(self, error: BaseException) -> None:
        """Leave nobody waiting. After a clean stop the queue holds at most what its producers take back."""
        with self._lock:
            completions = [live.completion for live in self._sessions.values()]
            while self._queue and self._state is LoopState.FAILED:
                completions.append(getattr(self._queue.popleft(), "completion", None))
            self._sessions.clear()
            self._unowned = 0
        for completion in completions:
            if completion is not None:
                completion.set_error(error)

    def metrics(self) -> LoopMetrics:
        with self._lock:
            return self._gauge.snapshot(len(self._queue), self._max_depth, len(self._sessions))

    def live_sessions(self) -> dict[str, str]:
        """The state of every live session by its id."""
        with self._lock:
            return {key: live.session.state for key, live in self._sessions.items()}

    def live_receivers(self) -> dict[str, bool]:
        """Whether each registered receiver is idle, by its key."""
        with self._lock:
            return self._receivers.idle_by_key()
