"""Runs of an agent through the public API, in one process with an embedded runtime."""

from __future__ import annotations

import itertools
import os
import threading
import time
from typing import Any

import django

from bench.child import serve
from bench.driver import Sample, Watch, drive_threads

__all__ = ["prepare"]

_WAIT = 120
_numbers = itertools.count()
_agents: dict[str, list[Any]] = {}


def prepare() -> None:
    """Django, its tables, and the runtime."""
    os.environ["DJANGO_SETTINGS_MODULE"] = "bench.settings"
    django.setup()
    from django.core.management import call_command

    call_command("migrate", verbosity=0, interactive=False)


def measure(*, slots: int, tool: bool, seconds: float, runs: int) -> Sample:
    """``slots`` agents, each running one turn after another."""
    from bench.agents import QUESTION, PlainAgent, ToolAgent

    kind = ToolAgent if tool else PlainAgent
    agents = _agents.setdefault(kind.definition_id, [])
    while len(agents) < slots:
        agents.append(kind.create(agent_id=f"{kind.definition_id}-{next(_numbers)}"))
    if slots == 1:
        return drive_threads(
            lambda slot: _checked(agents[slot].invoke(QUESTION, timeout=_WAIT)), 1, seconds, runs
        )
    for task in [agent.invoke_async(QUESTION) for agent in agents[:slots]]:
        _checked(task.wait_result(_WAIT))
    return _in_flight(agents[:slots], QUESTION, seconds, runs)


def _in_flight(agents: list[Any], question: str, seconds: float, runs: int) -> Sample:
    """Each agent's next turn is started by the end of its last one."""
    over = threading.Semaphore(0)
    watch = Watch(seconds, runs)

    def start(agent: Any) -> None:
        if not watch.more():
            over.release()
            return
        sent = time.perf_counter()

        def ended(task: Any) -> None:
            try:
                _checked(task.wait_result(0))
            except BaseException as error:
                watch.failed(error)
            watch.ended(sent)
            start(agent)

        try:
            agent.invoke_async(question).on_complete(ended)
        except BaseException as error:
            watch.failed(error)
            over.release()

    for agent in agents:
        start(agent)
    for _ in agents:
        if not over.acquire(timeout=_WAIT):
            raise TimeoutError(f"A run did not end within {_WAIT} s.")
    return watch.sample()


def _checked(result: Any) -> None:
    if result.status != "completed":
        raise RuntimeError(f"Execution {result.execution_id} ended as {result.status}: {result.error}")


if __name__ == "__main__":
    prepare()
    serve(measure)
