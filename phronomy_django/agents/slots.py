"""Which agents are live in this runtime, and which request holds the admission of each.

Loop thread only, but for ``is_live``, ``idle`` and ``len``. Admission is taken here before any durable work of a
run (rule 3); only the token that took it can free it.
"""

from __future__ import annotations

from collections.abc import Callable

from phronomy_django.agents.coordinator import Coordinator
from phronomy_django.agents.live import LiveAgent
from phronomy_django.agents.messages import OwnerToken, Request
from phronomy_django.engine import EventLoop, ExecutionReceiver

__all__ = ["Slot", "Slots"]


class Slot:
    """One agent: its live state if it is loaded, the request that holds its admission, and its run if it has begun."""

    __slots__ = ("coordinator", "live", "request", "token")

    def __init__(self) -> None:
        self.live: LiveAgent | None = None
        self.token: OwnerToken | None = None
        self.request: Request | None = None
        self.coordinator: Coordinator | None = None


class Slots:
    """By ``agent_id``, the longest unused first. At most ``max_live`` agents stay live; busy ones always do.

    ``freed(agent_id)`` is called whenever an admission has become free.
    """

    def __init__(
        self,
        loop: EventLoop,
        receiver: ExecutionReceiver,
        max_live: int,
        freed: Callable[[str], object],
    ) -> None:
        self._freed = freed
        self._loop = loop
        self._receiver = receiver
        self._max_live = max_live
        self._slots: dict[str, Slot] = {}
        self._active = 0

    def __len__(self) -> int:
        return len(self._slots)

    def __getitem__(self, agent_id: str) -> Slot:
        return self._slots[agent_id]

    def get(self, agent_id: str) -> Slot:
        """The slot of this agent; an empty one appears if it has none."""
        slot = self._slots.get(agent_id)
        if slot is None:
            slot = self._slots[agent_id] = Slot()
        return slot

    def idle(self) -> bool:
        return self._active == 0

    def is_live(self, agent_id: str, definition_id: str) -> bool:
        slot = self._slots.get(agent_id)
        live = None if slot is None else slot.live
        return live is not None and live.definition.definition_id == definition_id

    def admit(self, slot: Slot, request: Request) -> OwnerToken:
        """Give the slot's admission to ``request``. Raises ``RuntimeShutdownError`` when the loop admits nothing."""
        token = OwnerToken()
        with self._loop.admit_execution(self._receiver):
            slot.token = token
            slot.request = request
            self._active += 1
        return token

    def release(self, agent_id: str, token: OwnerToken | None) -> None:
        slot = self._slots.get(agent_id)
        if slot is None or slot.token is not token or token is None:
            return
        with self._loop.synchronize_execution_state():
            slot.token = slot.request = slot.coordinator = None
            self._active -= 1
        self._slots.pop(agent_id)
        if slot.live is not None:
            self._slots[agent_id] = slot  # at the end: the most recently used
            self._evict()
        self._freed(agent_id)

    def clear(self) -> None:
        self._slots.clear()

    def _evict(self) -> None:
        surplus = len(self._slots) - self._max_live
        if surplus <= 0:
            return
        for agent_id in [name for name, slot in self._slots.items() if slot.token is None][:surplus]:
            del self._slots[agent_id]
