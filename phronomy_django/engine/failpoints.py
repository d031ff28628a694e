"""Failpoints: named places at every boundary where a test can make this process fail.

``failpoint(name)`` costs one attribute check unless something is armed or counted. Every name is declared
when its module is imported, so that a crash test can list them all and notice one that is never reached.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

from phronomy_django.engine.errors import PhronomyError

__all__ = [
    "FailpointError",
    "arm",
    "armed",
    "declare",
    "declared",
    "disarm",
    "failpoint",
    "reached",
    "watching",
]

#: Names to arm when the engine is imported: ``name=action`` or ``name=action@hit``, separated by commas.
ENVIRONMENT_VARIABLE = "PHRONOMY_FAILPOINTS"

Action: TypeAlias = "str | Callable[[], object]"


class FailpointError(PhronomyError):
    """An armed failpoint raised this on purpose."""


class _Armed:
    __slots__ = ("act", "left")

    def __init__(self, act: Callable[[], object], hit: int) -> None:
        self.act = act
        self.left = hit


class _State:
    """``active`` is all that an unarmed failpoint looks at."""

    __slots__ = ("active", "armed", "counts", "declared", "lock", "watchers")

    def __init__(self) -> None:
        self.active = False
        self.armed: dict[str, _Armed] = {}
        self.counts: Counter[str] = Counter()
        self.declared: set[str] = set()
        self.watchers = 0
        self.lock = threading.Lock()

    def refresh(self) -> None:
        self.active = bool(self.armed) or self.watchers > 0


_state = _State()


def declare(*names: str) -> None:
    """Make names known; call it when the module that holds the failpoints is imported."""
    _state.declared.update(names)


def declared() -> frozenset[str]:
    """All names that the imported modules have declared."""
    return frozenset(_state.declared)


def failpoint(name: str) -> None:
    """Fail here if ``name`` is armed; nothing otherwise.

    An undeclared name raises ``LookupError`` as soon as failpoints are in use at all.
    """
    if _state.active:
        _hit(name)


def _hit(name: str) -> None:
    if name not in _state.declared:
        raise LookupError(f"The failpoint {name!r} is not declared; call declare({name!r}) in its module.")
    with _state.lock:
        _state.counts[name] += 1
        entry = _state.armed.get(name)
        if entry is None:
            return
        entry.left -= 1
        if entry.left > 0:
            return
    entry.act()


def arm(name: str, action: Action, *, hit: int = 1) -> None:
    """From the ``hit``-th time on, do ``action`` at ``name``.

    ``"kill"`` (SIGKILL to itself), ``"raise"`` (``FailpointError``), ``"sleep:<seconds>"``, or a callable.
    """
    act = _action(name, action)
    with _state.lock:
        _state.armed[name] = _Armed(act, hit)
        _state.refresh()


def disarm(name: str | None = None) -> None:
    """Take back one name, or all with None."""
    with _state.lock:
        if name is None:
            _state.armed.clear()
        else:
            _state.armed.pop(name, None)
        _state.refresh()


@contextmanager
def armed(name: str, action: Action, *, hit: int = 1) -> Iterator[None]:
    """``arm`` for the length of a block."""
    arm(name, action, hit=hit)
    try:
        yield
    finally:
        disarm(name)


@contextmanager
def watching() -> Iterator[None]:
    """Count from zero what is reached inside the block, without failing; read it with ``reached``."""
    with _state.lock:
        _state.counts.clear()
        _state.watchers += 1
        _state.refresh()
    try:
        yield
    finally:
        with _state.lock:
            _state.watchers -= 1
            _state.refresh()


def reached() -> dict[str, int]:
    """How often each failpoint was passed while something was armed or watched."""
    with _state.lock:
        return dict(_state.counts)


def _action(name: str, action: Action) -> Callable[[], object]:
    if callable(action):
        return action
    kind, _, argument = action.partition(":")
    match kind:
        case "kill":
            return lambda: os.kill(os.getpid(), signal.SIGKILL)
        case "raise":
            return lambda: _raise(name)
        case "sleep":
            seconds = float(argument)
            return lambda: time.sleep(seconds)
        case _:
            raise ValueError(
                f"Unknown action {action!r} for the failpoint {name!r}: kill, raise or sleep:<seconds>."
            )


def _raise(name: str) -> None:
    raise FailpointError(f"The failpoint {name!r} raised on purpose.")


def arm_from_environment(value: str | None = None) -> None:
    """Arm what the environment variable names; called when the engine is imported."""
    text = os.environ.get(ENVIRONMENT_VARIABLE, "") if value is None else value
    for entry in filter(None, (part.strip() for part in text.split(","))):
        name, _, action = entry.partition("=")
        action, _, hit = action.partition("@")
        arm(name, action, hit=int(hit) if hit else 1)


arm_from_environment()
