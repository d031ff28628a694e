"""Resident memory of a process with many idle agents: each has run one turn and waits for its next."""

from __future__ import annotations

import gc
import os
import threading
from pathlib import Path
from typing import Any

from bench.child import serve
from bench.phronomy import prepare

_BATCH = 2000
_AT_ONCE = 256
_made = 0


def resident_mib() -> float:
    """Resident memory of this process in MiB (Linux)."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def measure(*, agents: int) -> dict[str, float]:
    """Grow to ``agents`` idle agents; how many the process keeps live, and its memory."""
    global _made
    from bench.agents import PlainAgent
    from phronomy_django.models import AgentRoot

    while _made < agents:
        names = [f"bench-idle-{number}" for number in range(_made, min(agents, _made + _BATCH))]
        AgentRoot.objects.bulk_create(
            AgentRoot(
                agent_id=name,
                definition_id=PlainAgent.definition_id,
                definition_version=PlainAgent.definition_version,
            )
            for name in names
        )
        _turns([PlainAgent(name) for name in names])
        _made += len(names)
    gc.collect()
    live = sum(PlainAgent.get(f"bench-idle-{number}") is not None for number in range(_made))
    return {"agents": _made, "live": live, "resident_mib": resident_mib()}


def _turns(agents: list[Any]) -> None:
    from bench.agents import QUESTION

    room, failed = threading.Semaphore(_AT_ONCE), []

    def ended(task: Any) -> None:
        if task.wait_result(0).status != "completed":
            failed.append(task)
        room.release()

    for agent in agents:
        room.acquire()
        agent.invoke_async(QUESTION).on_complete(ended)
    for _ in range(_AT_ONCE):
        room.acquire()
    if failed:
        raise RuntimeError(f"{len(failed)} turns did not complete; the first is {failed[0].execution_id}.")


def _first_turn() -> None:
    """What the process needs however many agents it has is there before the first figure is taken."""
    from bench.agents import PlainAgent

    _turns([PlainAgent.create(agent_id="bench-idle-first")])


if __name__ == "__main__":
    prepare()
    _first_turn()
    serve(measure)
