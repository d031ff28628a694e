"""Durable runs a second of everything that is compared, cell by cell, taking turns with each other."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bench.child import Child

__all__ = ["CONTENDERS", "FORMS", "PEERS", "compare", "measure_runs", "start"]

MODULES = {
    "floor": "bench.floor",
    "postgresql": "bench.phronomy",
    "sqlite": "bench.phronomy",
    "dbos": "bench.dbos_peer",
    "langgraph": "bench.langgraph_peer",
}
CONTENDERS = tuple(MODULES)
PEERS = ("dbos", "langgraph")
FORMS: Mapping[str, Sequence[str]] = dict.fromkeys(PEERS, ("threads", "asyncio"))
_MANY = 1_000_000


def start(databases: Mapping[str, str]) -> dict[str, Child]:
    """A process for each contender, all of them ready before anything is measured."""
    children = {name: Child(module, databases[name]) for name, module in MODULES.items()}
    for child in children.values():
        child.wait_ready()
    return children


def measure_runs(
    children: Mapping[str, Child],
    *,
    levels: Sequence[int],
    seconds: float,
    rounds: int,
    tell: Callable[[str], None],
) -> list[dict[str, Any]]:
    """One cell for each (tool, level, contender), with the median of ``rounds`` rounds.

    In a round all contenders measure the same cell one after the other, in an order that turns from round to round. A
    peer measures with threads and with asyncio; the better of its two rates counts.
    """
    samples: dict[tuple[bool, int, str, str], list[dict[str, float]]] = {}
    for tool in (False, True):
        for level in levels:
            for number in range(rounds):
                order = CONTENDERS[number % len(CONTENDERS) :] + CONTENDERS[: number % len(CONTENDERS)]
                for name in order:
                    for form in FORMS.get(name, ("",)):
                        tell(f"{'one tool' if tool else 'no tool'}, {level} at a time: {name} {form}")
                        extra = {"form": form} if form else {}
                        sample = children[name].ask(
                            slots=level, tool=tool, seconds=seconds, runs=_MANY, **extra
                        )
                        samples.setdefault((tool, level, name, form), []).append(sample)
    cells = []
    for tool in (False, True):
        for level in levels:
            for name in CONTENDERS:
                forms = {form: samples[tool, level, name, form] for form in FORMS.get(name, ("",))}
                best = max(forms, key=lambda form: statistics.median(s["rate"] for s in forms[form]))
                cells.append(
                    {"tool": tool, "level": level, "contender": name, "form": best, **_median(forms[best])}
                )
    return cells


def _median(rounds: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    medians: dict[str, Any] = {
        key: statistics.median(sample[key] for sample in rounds)
        for key in ("rate", "p50_ms", "p95_ms", "cpu_us")
    }
    return {
        **medians,
        "runs": sum(int(sample["runs"]) for sample in rounds),
        "rates": [round(sample["rate"], 1) for sample in rounds],
        "p50s_ms": [round(sample["p50_ms"], 3) for sample in rounds],
    }


def compare(cells: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """For each (tool, level): our ratio to the floor (p50) and to each peer (rate), on PostgreSQL.

    A ratio is the median of the rounds' own ratios: what disturbs the machine disturbs both of its sides.
    """
    found = {(cell["tool"], cell["level"], cell["contender"]): cell for cell in cells}
    ratios = []
    for tool, level in dict.fromkeys((cell["tool"], cell["level"]) for cell in cells):
        ours = found[tool, level, "postgresql"]
        ratios.append(
            {
                "tool": tool,
                "level": level,
                "p50_to_floor": _ratio(ours["p50s_ms"], found[tool, level, "floor"]["p50s_ms"]),
                **{
                    f"rate_to_{peer}": _ratio(ours["rates"], found[tool, level, peer]["rates"])
                    for peer in PEERS
                },
            }
        )
    return ratios


def _ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    return statistics.median(mine / other for mine, other in zip(ours, theirs, strict=True))
