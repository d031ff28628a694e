"""Finite state machines on the event loop: a table as data, a pure step, and the session that runs it."""

from __future__ import annotations

import itertools
import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeAlias, TypeVar

from phronomy_django.engine.errors import RegistrationError, SessionTableError

if TYPE_CHECKING:
    from phronomy_django.engine.loop import EventLoop

__all__ = ["Ending", "FSMSession", "Rule", "SessionEnd", "SessionEvent", "SessionTable", "Step"]

logger = logging.getLogger("phronomy_django.engine")

D = TypeVar("D")
C = TypeVar("C")


class Ending(StrEnum):
    """How a session may end; a table maps each of its final states to one of them."""

    FINISHED = "finished"
    HALTED = "halted"
    ERROR = "error"
    RECOVERY_REQUIRED = "recovery_required"


class SessionEvent(NamedTuple):
    """An event for one incarnation of a session; a later incarnation never sees it."""

    fsm_session_id: str
    name: str
    payload: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule(Generic[D, C]):
    """In ``state``, at ``event``, if ``guard`` holds: do ``action`` and go to ``target``.

    ``guard(data, event)`` and ``action(data, event) -> (new data, commands)`` are pure functions. Without an
    action the data stays and nothing is asked for.
    """

    state: str
    event: str
    target: str
    action: Callable[[D, SessionEvent], tuple[D, tuple[C, ...]]] | None = None
    guard: Callable[[D, SessionEvent], bool] | None = None


@dataclass(frozen=True, slots=True)
class Step(Generic[D, C]):
    """What one event leads to; ``ending`` is set if ``state`` is a final one."""

    state: str
    data: D
    commands: tuple[C, ...] = ()
    ending: Ending | None = None


@dataclass(frozen=True, slots=True)
class SessionEnd:
    """The value of a registration's completion after ``finished`` or ``halted``."""

    ending: Ending
    state: str
    data: Any = None


#: Guard, action, target, the target's ending: what a dispatch needs of a rule.
CompiledRule: TypeAlias = "tuple[Callable[..., Any] | None, Callable[..., Any] | None, str, Ending | None]"

_NO_EVENTS: dict[str, tuple[CompiledRule, ...]] = {}


class SessionTable(Generic[D, C]):
    """States, events, guards and actions as data; checked when it is built.

    Rules of one state and event are tried in the given order, the first whose guard holds is taken. Raises
    ``SessionTableError`` for an unknown target, a state that cannot be reached, a rule that can never be
    taken (it follows an unguarded one), a rule that leaves a final state, and an unknown ending.
    """

    def __init__(
        self, *, initial: str, rules: Iterable[Rule[D, C]], endings: Mapping[str, Ending | str]
    ) -> None:
        self.initial = initial
        self.rules = tuple(rules)
        self.endings: dict[str, Ending] = {}
        for state, ending in endings.items():
            if ending not in list(Ending):
                raise SessionTableError(f"The final state {state!r} has the unknown ending {ending!r}.")
            self.endings[state] = Ending(ending)
        self._by_state: dict[str, dict[str, tuple[Rule[D, C], ...]]] = {}
        for rule in self.rules:
            self._add(rule)
        self._check_states()
        self.compiled: dict[str, dict[str, tuple[CompiledRule, ...]]] = {
            state: {event: tuple(map(self._compile, rules)) for event, rules in by_event.items()}
            for state, by_event in self._by_state.items()
        }

    def _compile(self, rule: Rule[D, C]) -> CompiledRule:
        return rule.guard, rule.action, rule.target, self.endings.get(rule.target)

    def _add(self, rule: Rule[D, C]) -> None:
        if rule.state in self.endings:
            raise SessionTableError(f"A rule for {rule.event!r} leaves the final state {rule.state!r}.")
        by_event = self._by_state.setdefault(rule.state, {})
        earlier = by_event.get(rule.event, ())
        if earlier and earlier[-1].guard is None:
            raise SessionTableError(
                f"In state {rule.state!r} a rule for {rule.event!r} follows one without a guard and is never "
                f"taken; give the earlier one a guard or drop one of the two."
            )
        by_event[rule.event] = (*earlier, rule)

    def _check_states(self) -> None:
        known = set(self._by_state) | set(self.endings)
        for rule in self.rules:
            if rule.target not in known:
                raise SessionTableError(
                    f"The rule for {rule.event!r} in state {rule.state!r} leads to {rule.target!r}, which "
                    f"has neither rules nor an ending."
                )
        if self.initial not in self._by_state:
            raise SessionTableError(f"The initial state {self.initial!r} has no rules.")
        reached, edge = {self.initial}, [self.initial]
        while edge:
            for rules in self._by_state.get(edge.pop(), {}).values():
                fresh = {rule.target for rule in rules} - reached
                reached |= fresh
                edge.extend(fresh)
        if lost := sorted(known - reached):
            raise SessionTableError(f"No event leads to: {', '.join(lost)}.")

    @property
    def states(self) -> frozenset[str]:
        return frozenset(self._by_state) | frozenset(self.endings)

    def step(self, state: str, data: D, event: SessionEvent) -> Step[D, C] | None:
        """What ``event`` leads to from ``state``; None if no rule takes it. Pure: it changes nothing."""
        for guard, action, target, ending in self.compiled.get(state, _NO_EVENTS).get(event.name, ()):
            if guard is None or guard(data, event):
                if action is None:
                    return Step(target, data, (), ending)
                after, commands = action(data, event)
                return Step(target, after, commands, ending)
        return None


def _process_prefix() -> str:
    return os.urandom(6).hex() + "-"


_prefix = _process_prefix()
_numbers = itertools.count(1)


def _new_prefix_in_child() -> None:
    global _prefix
    _prefix = _process_prefix()


os.register_at_fork(after_in_child=_new_prefix_in_child)


@dataclass(slots=True, eq=False, kw_only=True)
class FSMSession(Generic[D, C]):
    """One incarnation of a state machine in one event loop; never stored.

    The loop gives it its events one at a time, each run to completion: the new state is set first, then
    ``execute(session, commands)`` carries out what the step asked for, on the loop's thread. An event that no
    rule takes is dropped, counted and logged. A guard, an action or ``execute`` that raises ends the session
    in ``error``, with the exception in ``error``; it does not fail the loop.
    """

    table: SessionTable[D, C]
    data: D
    execute: Callable[[FSMSession[D, C], Sequence[C]], None]
    fsm_session_id: str = field(init=False)
    state: str = field(init=False)
    ending: Ending | None = field(default=None, init=False)
    error: BaseException | None = field(default=None, init=False)
    dropped: int = field(default=0, init=False)
    loop: EventLoop | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.fsm_session_id = _prefix + str(next(_numbers))
        self.state = self.table.initial

    def post(self, name: str, payload: Any = None) -> bool:
        """The session's own event sink: post an event to itself; False if it is not live."""
        loop = self.loop
        return loop is not None and loop.post_to_session(SessionEvent(self.fsm_session_id, name, payload))

    def bind(self, loop: EventLoop) -> None:
        """For the loop alone. Raises ``RegistrationError`` the second time: an incarnation lives once."""
        if self.loop is not None:
            raise RegistrationError(
                f"The session {self.fsm_session_id} was registered before; make a new one to run again."
            )
        self.loop = loop

    def dispatch(self, event: SessionEvent) -> Ending | None:
        """For the loop alone: run one event to completion; the ending if this was the last one."""
        data = self.data
        try:
            # The same choice as SessionTable.step makes, without a Step for each event.
            for guard, action, target, ending in self.table.compiled[self.state].get(event.name, ()):
                if guard is None or guard(data, event):
                    if action is None:
                        self.state = target
                    else:
                        after, commands = action(data, event)
                        self.state = target
                        self.data = after
                        if commands:
                            self.execute(self, commands)
                    self.ending = ending
                    return ending
        except Exception as error:
            logger.exception("Session %s failed at %s and ends in error", self.fsm_session_id, event.name)
            self.error = error
            self.ending = Ending.ERROR
            return self.ending
        self.dropped += 1
        logger.info(
            "Session %s in state %s dropped the unexpected event %s",
            self.fsm_session_id,
            self.state,
            event.name,
        )
        return None
