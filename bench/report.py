"""The figures as tables of the terminal and as ``docs/benchmarks.md``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.runs import CONTENDERS
from bench.targets import verdicts

__all__ = ["markdown", "show"]

NAMES = {
    "floor": "Bare commits (psycopg)",
    "postgresql": "phronomy_django, PostgreSQL",
    "sqlite": "phronomy_django, SQLite",
    "dbos": "DBOS",
    "langgraph": "LangGraph",
}
Rows = list[Sequence[str]]
_Section = tuple[str, Sequence[str], Rows]


def show(figures: Mapping[str, Any], console: Console) -> None:
    """Print every table."""
    for title, header, rows in _sections(figures):
        table = Table(title=title, title_justify="left")
        for number, name in enumerate(header):
            table.add_column(name, justify="left" if number == 0 else "right")
        for row in rows:
            table.add_row(*row)
        console.print(table)


def _sections(figures: Mapping[str, Any]) -> Iterator[_Section]:
    yield (
        "Targets",
        ("What", "Target", "Measured", ""),
        [(item.what, item.target, item.measured, item.word) for item in verdicts(figures)],
    )
    for tool in (False, True):
        job = "One model call and one tool" if tool else "One model call, no tool"
        yield (
            f"{job}: runs a second (p50 / p95 in ms)",
            ("", *(f"{level} at a time" for level in _levels(figures))),
            [(NAMES[name], *_row(figures, tool, name, _rate)) for name in CONTENDERS],
        )
        yield (
            f"{job}: CPU time of the measured process for one run (µs)",
            ("", *(f"{level} at a time" for level in _levels(figures))),
            [(NAMES[name], *_row(figures, tool, name, _cpu)) for name in CONTENDERS],
        )
    loop = figures["loop"]
    yield (
        "Loop dispatch: items a second",
        ("phronomy_django", "asyncio, call_soon_threadsafe", "two threads, queue.SimpleQueue"),
        [tuple(f"{loop[name]:,.0f}" for name in ("phronomy", "asyncio", "simple_queue"))],
    )
    journal = figures["journal"]
    yield (
        "One turn by length of the journal: p50 in ms",
        ("", *(f"{size:,} records" for size in journal["sizes"]), "ratio"),
        [
            (label, *(f"{value:.2f}" for value in journal[f"{key}_ms"]), f"{journal[f'ratio_{key}']:.2f}")
            for label, key in (("agent live in memory", "live"), ("agent loaded anew", "loaded"))
        ],
    )
    yield (
        "Resident memory by idle agents",
        ("", "agents live", "MiB", "KiB more for one agent"),
        _memory(figures["memory"]),
    )


def _levels(figures: Mapping[str, Any]) -> list[int]:
    return list(dict.fromkeys(cell["level"] for cell in figures["cells"]))


def _row(figures: Mapping[str, Any], tool: bool, name: str, form: Any) -> list[str]:
    return [form(cell) for cell in figures["cells"] if cell["tool"] is tool and cell["contender"] == name]


def _rate(cell: Mapping[str, Any]) -> str:
    form = f" {cell['form']}" if cell["form"] else ""
    return f"{cell['rate']:,.0f} ({cell['p50_ms']:,.1f} / {cell['p95_ms']:,.1f}){form}"


def _cpu(cell: Mapping[str, Any]) -> str:
    return f"{cell['cpu_us']:,.0f}"


def _memory(samples: Sequence[Mapping[str, float]]) -> Rows:
    rows: Rows = []
    first = samples[0]
    for sample in samples:
        more = sample["agents"] - first["agents"]
        each = 1024 * (sample["resident_mib"] - first["resident_mib"]) / more if more else None
        rows.append(
            (
                f"{sample['agents']:,.0f} agents",
                f"{sample['live']:,.0f}",
                f"{sample['resident_mib']:,.0f}",
                f"{each:.2f}" if each is not None else "",
            )
        )
    return rows


_PREFACE = """\
# Benchmarks

Written by `make bench ARGS=--write`, from one run on one machine; do not edit. Everything that is compared was measured
in the same run, one process each, taking turns cell by cell. A figure is the median of {rounds} rounds of {seconds:g} s,
a ratio the median of the rounds' own ratios. Targets are those of the design; what misses is marked as missed.

## The machine

{machine}

## What one run is

- **phronomy_django**: `invoke` one at a time, `invoke_async` beyond that, through the public API with an embedded
  runtime and a scripted model. One agent for each that runs at a time; the end of a turn starts the agent's next. No
  earlier messages are shown to the model. The run with a tool makes two model calls, before and after the tool.
- **DBOS**: a workflow with one step for the model call; with a tool three steps: model, tool, model.
- **LangGraph**: a graph with the PostgreSQL checkpointer and `durability="sync"`: two nodes (receive, model), or three
  (model, tool, model).
- Both are measured with threads and with asyncio; the better rate counts, and the table says which it was.
- **Bare commits**: three inserted rows, each committed by itself on a prepared statement; five where the run has a
  tool, as the design allows two more commits for a batch of tools. At most 32 connections.
- SQLite commits with `journal_mode=WAL` and `synchronous=FULL`.
- CPU time is that of the measured process, all of its threads; the database server's own is not in it.
"""


def markdown(figures: Mapping[str, Any]) -> str:
    """``docs/benchmarks.md``."""
    settings = figures["settings"]
    parts = [
        _PREFACE.format(
            rounds=settings["rounds"], seconds=settings["seconds"], machine=_machine(figures["machine"])
        )
    ]
    for title, header, rows in _sections(figures):
        lines = [f"## {title}", "", _line(header), _line(["---"] + ["---:"] * (len(header) - 1))]
        parts.append("\n".join([*lines, *(_line(row) for row in rows)]) + "\n")
    return "\n".join(parts)


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _machine(machine: Mapping[str, Any]) -> str:
    settings = ", ".join(f"{name} {value}" for name, value in machine["postgresql_settings"].items())
    packages = ", ".join(f"{name} {number}" for name, number in machine["packages"].items())
    return "\n".join(
        (
            f"- {machine['cores']} cores ({machine['processor']}), {machine['memory_gib']} GiB, {machine['system']}; "
            f"load average {machine['load_before']} when the run began",
            f"- {machine['python']}; {packages}",
            f"- PostgreSQL {machine['postgresql']} on the same machine ({settings}); SQLite {machine['sqlite']}",
        )
    )
