"""Transitions a second through the durable writer, with 1, 8, 64 and 256 that wait, beside bare commits.

Every transition is half a run of an agent (one model call, no tool): B1 with B2, or B3 with B6. A bare commit is a
transaction that inserts one row, on as many connections as there are callers. The transitions are made beforehand: what
is measured is the writer and the database.

    DATABASE_URL=postgresql://… python -m bench.store_commit [transitions]
"""

from __future__ import annotations

import os
import statistics
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import django

LEVELS = (1, 8, 64, 256)


@contextmanager
def scratch_database() -> Iterator[None]:
    """A database of its own for the benchmark, made by the migrations and dropped afterwards."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings_postgres")
    django.setup()
    from django.db import connection

    name = connection.settings_dict["NAME"]
    connection.creation.create_test_db(verbosity=0, autoclobber=True, serialize=False)
    try:
        yield
    finally:
        connection.creation.destroy_test_db(name, verbosity=0)


def _chains(level: int, transitions: int) -> list[Iterator[Any]]:
    from tests.store.transitions import Agent, new_runtime

    runtime_id = new_runtime()
    chains = []
    for _ in range(level):
        agent, works = Agent.create(runtime_id), []
        for _ in range(max(1, transitions // level // 2)):
            agent.events = 0
            for make in (agent.admission, agent.ending):
                works.append(make())
                agent.advance(works[-1])
        chains.append(iter(works))
    return chains


def writer_rate(level: int, transitions: int) -> dict[str, float]:
    """Transitions a second and the median wait for an answer, with ``level`` agents that each wait for theirs."""
    from phronomy_django.engine import ThreadScheduler
    from phronomy_django.store import Committed, DurableWriter

    scheduler = ThreadScheduler()
    writer = DurableWriter(scheduler=scheduler)
    chains = _chains(level, transitions)
    waits: list[float] = []
    done = threading.Semaphore(0)
    bad: list[Any] = []

    def proceed(chain: Iterator[Any]) -> None:
        work = next(chain, None)
        if work is None:
            done.release()
            return
        sent = time.perf_counter()

        def answered(answer: Any) -> None:
            waits.append(time.perf_counter() - sent)
            if answer != Committed():
                bad.append(answer)
            proceed(chain)

        writer.submit(work, answered)

    started = time.perf_counter()
    cpu = time.process_time()
    for chain in chains:
        proceed(chain)
    writer.start()
    for _ in chains:
        done.acquire()
    took, used = time.perf_counter() - started, time.process_time() - cpu
    writer.close()
    writer.join(10)
    if bad:
        raise RuntimeError(f"A transition was not committed: {bad[0]}")
    metrics = writer.metrics
    return {
        "rate": len(waits) / took,
        "p50_ms": 1000 * statistics.median(waits),
        "cpu_us": 1_000_000 * used / len(waits),
        "per_commit": len(waits) / metrics.commits,
    }


def bare_rate(level: int, transactions: int) -> dict[str, float]:
    """Bare committed transactions a second on ``level`` connections (at most 64)."""
    from django.db import connection, connections

    threads = min(level, 64)
    with connection.cursor() as cursor:
        cursor.execute("CREATE TABLE IF NOT EXISTS bench_bare (id bigint, text text)")
    waits: list[float] = []

    def work() -> None:
        cursor = connections["default"].cursor()
        for number in range(max(1, transactions // threads)):
            sent = time.perf_counter()
            cursor.execute("INSERT INTO bench_bare VALUES (%s, %s)", [number, "x" * 200])
            waits.append(time.perf_counter() - sent)
        connections.close_all()

    workers = [threading.Thread(target=work) for _ in range(threads)]
    started = time.perf_counter()
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    took = time.perf_counter() - started
    return {"rate": len(waits) / took, "p50_ms": 1000 * statistics.median(waits)}


def run(transitions: int = 4000, levels: Sequence[int] = LEVELS) -> dict[int, dict[str, dict[str, float]]]:
    """Figures for each level: the writer's and the bare ones, measured one after the other."""
    figures = {}
    for level in levels:
        count = max(2, min(transitions, 500 * level))
        figures[level] = {"writer": writer_rate(level, count), "bare": bare_rate(level, count)}
    return figures


if __name__ == "__main__":
    with scratch_database():
        for level, figure in run(int(sys.argv[1]) if len(sys.argv) > 1 else 8000).items():
            ours, bare = figure["writer"], figure["bare"]
            print(
                f"{level:4} waiting: {ours['rate']:7,.0f} transitions/s, p50 {ours['p50_ms']:7.2f} ms, "
                f"{ours['per_commit']:6.1f} a commit, {ours['cpu_us']:5.0f} µs of our CPU each; "
                f"bare {bare['rate']:7,.0f}/s, p50 {bare['p50_ms']:6.2f} ms"
            )
