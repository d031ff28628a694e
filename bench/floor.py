"""The floor: three bare committed transactions a run, each the insertion of one small row.

Each is one statement that commits by itself, prepared, on a connection of its own: the least that three commits
can cost a Python process with threads.
"""

from __future__ import annotations

import os
import queue
import threading
from contextlib import ExitStack

import psycopg

from bench.child import serve
from bench.driver import Sample, drive_threads

__all__ = ["CONNECTIONS"]

CONNECTIONS = 32
_TEXT = "x" * 200


def measure(*, slots: int, tool: bool, seconds: float, runs: int) -> Sample:
    """``slots`` callers on as many connections, but at most ``CONNECTIONS``. A run with a tool has two more commits.

    (DESIGN §12: at most three commits without tools, two more for a batch of tools.)
    """
    url, commits = os.environ["BENCH_DATABASE"], 5 if tool else 3
    size = min(slots, CONNECTIONS)
    with ExitStack() as stack:
        free: queue.SimpleQueue[psycopg.Connection] = queue.SimpleQueue()
        for _ in range(size):
            free.put(stack.enter_context(psycopg.connect(url, autocommit=True, prepare_threshold=0)))
        own = threading.local()

        def run(slot: int) -> None:
            connection = free.get() if slots > size else _owned(own, free)
            for number in range(commits):
                connection.execute("INSERT INTO bare (id, text) VALUES (%s, %s)", [number, _TEXT])
            if slots > size:
                free.put(connection)

        return drive_threads(run, slots, seconds, runs)


def _owned(own: threading.local, free: queue.SimpleQueue[psycopg.Connection]) -> psycopg.Connection:
    if not hasattr(own, "connection"):
        own.connection = free.get()
    return own.connection


if __name__ == "__main__":
    with psycopg.connect(os.environ["BENCH_DATABASE"], autocommit=True) as prepared:
        prepared.execute("CREATE TABLE bare (id bigint, text text)")
    serve(measure)
