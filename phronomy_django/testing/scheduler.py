"""Virtual time and a seeded order for tests: the engine's own deterministic scheduler."""

from __future__ import annotations

from phronomy_django.engine.deterministic import DeterministicScheduler, VirtualClock
from phronomy_django.engine.errors import DeadlockError

__all__ = ["DeadlockError", "DeterministicScheduler", "VirtualClock"]
