"""Readings as values: what the snapshots give."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["LoopMetrics", "PoolMetrics", "RuntimeDiagnostics", "RuntimeMetrics"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopMetrics:
    """Lags are seconds between post and dispatch."""

    queue_depth: int = 0
    max_queue_depth: int = 0
    last_lag: float = 0.0
    average_lag: float = 0.0
    max_lag: float = 0.0
    dispatched: int = 0
    dropped: int = 0
    sessions: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolMetrics:
    """``active`` counts bodies that run, ``abandoned`` those of them whose caller was settled already."""

    size: int = 0
    queue_size: int = 0
    active: int = 0
    queued: int = 0
    reserved: int = 0
    abandoned: int = 0
    started: int = 0
    refused: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeMetrics:
    """The numbers of one runtime; zeros for parts that do not exist."""

    loop: LoopMetrics = field(default_factory=LoopMetrics)
    pools: Mapping[str, PoolMetrics] = field(default_factory=dict)
    pending_timers: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeDiagnostics:
    """What a person wants to see when something is stuck."""

    loop_state: str = ""
    loop_error: str = ""
    idle: bool = True
    sessions: Mapping[str, str] = field(default_factory=dict)
    receivers: Mapping[str, bool] = field(default_factory=dict)
    participants: tuple[str, ...] = ()
    pools: Mapping[str, PoolMetrics] = field(default_factory=dict)
    shutting_down: bool = False
