"""Loop dispatch beside what it is compared with, in one run on one machine (DESIGN §12).

One item: post from another thread, dispatch, one step of a session. The same step is driven through
``asyncio``'s ``call_soon_threadsafe``; two plain threads passing items through ``queue.SimpleQueue`` are the
upper bound that Python allows.

    python -m bench.loop_dispatch [events]
"""

from __future__ import annotations

import asyncio
import logging
import queue
import statistics
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from phronomy_django.engine import (
    EventLoop,
    FSMSession,
    Rule,
    SessionEvent,
    SessionTable,
    TaskResult,
    ThreadScheduler,
)

ROUNDS = 5


def _count(data: int, event: SessionEvent) -> tuple[int, tuple[()]]:
    return data + 1, ()


def _last(data: int, event: SessionEvent) -> bool:
    return bool(event.payload)


TABLE: SessionTable[int, Any] = SessionTable(
    initial="counting",
    rules=[
        Rule(state="counting", event="tick", target="done", guard=_last),
        Rule(state="counting", event="tick", target="counting", action=_count),
    ],
    endings={"done": "finished"},
)


def _session() -> FSMSession[int, Any]:
    return FSMSession(table=TABLE, data=0, execute=lambda session, commands: None)


def _post_all(post: Callable[[SessionEvent], object], session_id: str, events: int) -> None:
    for number in range(1, events + 1):
        post(SessionEvent(session_id, "tick", number == events))


def phronomy(events: int) -> float:
    scheduler = ThreadScheduler()
    loop = EventLoop("bench", scheduler=scheduler)
    loop.start()
    session, done = _session(), TaskResult[Any](scheduler)
    loop.register(session, done)
    started = time.perf_counter()
    _post_all(loop.post_to_session, session.fsm_session_id, events)
    done.wait_result(60)
    took = time.perf_counter() - started
    loop.stop(scheduler.clock.monotonic() + 5)
    return events / took


def with_asyncio(events: int) -> float:
    session, done, ready = _session(), threading.Event(), threading.Event()
    loops: list[asyncio.AbstractEventLoop] = []

    def step(event: SessionEvent) -> None:
        if session.dispatch(event) is not None:
            done.set()

    async def main() -> None:
        loops.append(asyncio.get_running_loop())
        ready.set()
        await asyncio.to_thread(done.wait)

    thread = threading.Thread(target=lambda: asyncio.run(main()))
    thread.start()
    ready.wait()
    started = time.perf_counter()
    post = loops[0].call_soon_threadsafe
    for number in range(1, events + 1):
        post(step, SessionEvent(session.fsm_session_id, "tick", number == events))
    done.wait(60)
    took = time.perf_counter() - started
    thread.join()
    return events / took


def simple_queue(events: int) -> float:
    items: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def consume() -> None:
        while items.get() is not None:
            pass

    thread = threading.Thread(target=consume)
    thread.start()
    started = time.perf_counter()
    for number in range(events):
        items.put(number)
    items.put(None)
    thread.join()
    return events / (time.perf_counter() - started)


def run(events: int = 100_000, rounds: int = ROUNDS) -> dict[str, float]:
    """Median rates (items a second) of ``rounds`` interleaved rounds, and our ratio to each of the others."""
    contenders = {"phronomy": phronomy, "asyncio": with_asyncio, "simple_queue": simple_queue}
    rates: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, contender in contenders.items():
            rates[name].append(contender(events))
    medians = {name: statistics.median(values) for name, values in rates.items()}
    return {
        **medians,
        "ratio_to_asyncio": medians["phronomy"] / medians["asyncio"],
        "ratio_to_simple_queue": medians["phronomy"] / medians["simple_queue"],
    }


if __name__ == "__main__":
    logging.getLogger("phronomy_django.engine").setLevel(logging.ERROR)  # a backlog is the point here
    figures = run(int(sys.argv[1]) if len(sys.argv) > 1 else 100_000)
    for name, value in figures.items():
        print(
            f"{name:24} {value:12,.3f}" if name.startswith("ratio") else f"{name:24} {value:12,.0f} items/s"
        )
