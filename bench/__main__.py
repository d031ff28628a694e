"""``python -m bench``: measure everything of DESIGN §12 that a benchmark can, side by side, in one run."""

from __future__ import annotations

import argparse
import json
import logging
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql
from rich.console import Console

from bench import loop_dispatch
from bench.child import ROOT, Child
from bench.machine import assert_durable, describe
from bench.report import markdown, show
from bench.runs import CONTENDERS, compare, measure_runs, start
from tests.postgres import database_url, with_database

DOCUMENT = ROOT / "docs" / "benchmarks.md"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How much is measured."""

    levels: tuple[int, ...] = (1, 8, 64, 256)
    seconds: float = 2.0
    rounds: int = 3
    loop_events: int = 100_000
    journal: tuple[int, ...] = (10, 100_000)
    journal_turns: int = 200
    journal_loads: int = 15
    agents: tuple[int, ...] = (0, 1_000, 20_000)


QUICK = Settings(
    levels=(1, 8, 64),
    seconds=0.4,
    rounds=1,
    loop_events=20_000,
    journal=(10, 10_000),
    journal_turns=40,
    journal_loads=3,
    agents=(0, 200, 1_000),
)


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="under a minute; its figures are rough")
    parser.add_argument("--json", metavar="FILE", help="write all figures there; - for standard output")
    parser.add_argument("--write", action="store_true", help=f"write {DOCUMENT.relative_to(ROOT)}")
    options = parser.parse_args(words)
    if options.quick and options.write:
        parser.error("--quick is too rough for the document; run without it to --write")
    console = Console(stderr=options.json == "-")
    figures = measure(QUICK if options.quick else Settings(), console)
    show(figures, console)
    if options.json == "-":
        print(json.dumps(figures, indent=1))
    elif options.json:
        Path(options.json).write_text(json.dumps(figures, indent=1) + "\n")
    if options.write:
        DOCUMENT.write_text(markdown(figures))


def measure(settings: Settings, console: Console) -> dict[str, Any]:
    """All figures, as JSON can carry them."""
    logging.getLogger("phronomy_django.engine").setLevel(logging.ERROR)  # a backlog of the loop is the point
    with databases() as named, console.status("starting") as status:
        with psycopg.connect(named["floor"]) as connection:
            assert_durable(connection)
            machine = describe(connection)
        status.update("loop dispatch")
        loop = loop_dispatch.run(settings.loop_events)
        children = start(named)
        try:
            cells = measure_runs(
                children,
                levels=settings.levels,
                seconds=settings.seconds,
                rounds=settings.rounds,
                tell=status.update,
            )
        finally:
            for child in children.values():
                child.close()
        status.update("journal")
        with child_of("bench.journal", named["journal"]) as child:
            journal = child.ask(
                sizes=settings.journal, turns=settings.journal_turns, cold_turns=settings.journal_loads
            )
        status.update("memory")
        with child_of("bench.memory", named["memory"]) as child:
            memory = [child.ask(agents=count) for count in settings.agents]
    return {
        "machine": machine,
        "settings": asdict(settings),
        "loop": loop,
        "cells": cells,
        "ratios": compare(cells),
        "journal": journal,
        "memory": memory,
    }


@contextmanager
def databases() -> Iterator[Mapping[str, str]]:
    """A database for each part, by its name; they are dropped afterwards. SQLite's is a file."""
    server = database_url()
    names = [name for name in (*CONTENDERS, "journal", "memory") if name != "sqlite"]
    with ExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="phronomy-bench-"))
        admin = stack.enter_context(psycopg.connect(server, autocommit=True))
        for name in names:
            database = sql.Identifier(f"bench_{name}")
            admin.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(database))
            admin.execute(sql.SQL("CREATE DATABASE {}").format(database))
            stack.callback(admin.execute, sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(database))
        yield {
            **{name: with_database(server, f"bench_{name}") for name in names},
            "sqlite": str(Path(directory) / "bench.sqlite3"),
        }


@contextmanager
def child_of(module: str, database: str) -> Iterator[Child]:
    child = Child(module, database)
    try:
        child.wait_ready()
        yield child
    finally:
        child.close()


if __name__ == "__main__":
    main()
