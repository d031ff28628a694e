"""The engine: event loop, sessions, task results, pools, timers, time (DESIGN §4).

It uses the standard library only and knows nothing of Django, databases or agents.
"""

from __future__ import annotations

from phronomy_django.engine.blocking import Blocking
from phronomy_django.engine.cancellation import CancellationToken
from phronomy_django.engine.clock import Clock, SystemClock
from phronomy_django.engine.current import current_event_loop
from phronomy_django.engine.deterministic import DeterministicScheduler, VirtualClock
from phronomy_django.engine.errors import (
    BackpressureError,
    DeadlockError,
    EventLoopBlockingError,
    EventLoopReentrancyError,
    PhronomyError,
    RegistrationError,
    RuntimeShutdownError,
    SessionEndedError,
    SessionTableError,
    TaskCancelledError,
    TaskPendingError,
    TaskTimeoutError,
)
from phronomy_django.engine.execution import Execution
from phronomy_django.engine.failpoints import FailpointError, declare, failpoint
from phronomy_django.engine.jobs import Cancelable, Reservation
from phronomy_django.engine.loop import EventLoop, LoopState, LoopStop
from phronomy_django.engine.metrics import LoopMetrics, PoolMetrics, RuntimeDiagnostics, RuntimeMetrics
from phronomy_django.engine.pools import BoundedPool, OffloadPool
from phronomy_django.engine.receivers import ExecutionReceiver
from phronomy_django.engine.results import Outcome, TaskResult, TaskStatus
from phronomy_django.engine.runtime import (
    Runtime,
    ShutdownParticipant,
    ShutdownResult,
    diagnostics_snapshot,
    metrics_snapshot,
)
from phronomy_django.engine.scheduling import Scheduler, ThreadScheduler, TimedWorker, Worker, WorkerHandle
from phronomy_django.engine.sessions import (
    Ending,
    FSMSession,
    Rule,
    SessionEnd,
    SessionEvent,
    SessionTable,
    Step,
)
from phronomy_django.engine.thread_pool import ThreadPool
from phronomy_django.engine.timers import TimerHandle, Timers

__all__ = [
    "BackpressureError",
    "Blocking",
    "BoundedPool",
    "Cancelable",
    "CancellationToken",
    "Clock",
    "DeadlockError",
    "DeterministicScheduler",
    "Ending",
    "EventLoop",
    "EventLoopBlockingError",
    "EventLoopReentrancyError",
    "Execution",
    "ExecutionReceiver",
    "FSMSession",
    "FailpointError",
    "LoopMetrics",
    "LoopState",
    "LoopStop",
    "OffloadPool",
    "Outcome",
    "PhronomyError",
    "PoolMetrics",
    "RegistrationError",
    "Reservation",
    "Rule",
    "Runtime",
    "RuntimeDiagnostics",
    "RuntimeMetrics",
    "RuntimeShutdownError",
    "Scheduler",
    "SessionEnd",
    "SessionEndedError",
    "SessionEvent",
    "SessionTable",
    "SessionTableError",
    "ShutdownParticipant",
    "ShutdownResult",
    "Step",
    "SystemClock",
    "TaskCancelledError",
    "TaskPendingError",
    "TaskResult",
    "TaskStatus",
    "TaskTimeoutError",
    "ThreadPool",
    "ThreadScheduler",
    "TimedWorker",
    "TimerHandle",
    "Timers",
    "VirtualClock",
    "Worker",
    "WorkerHandle",
    "current_event_loop",
    "declare",
    "diagnostics_snapshot",
    "failpoint",
    "metrics_snapshot",
]
