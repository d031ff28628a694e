"""The targets of the design beside what was measured; what misses is said to miss."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["Verdict", "verdicts"]

_PEER_TARGETS = {8: 4.0, 64: 10.0}
_PEER_NAMES = {"dbos": "DBOS", "langgraph": "LangGraph"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """One target: what it is about, what was asked, what was measured, and whether it was met."""

    what: str
    target: str
    measured: str
    met: bool

    @property
    def word(self) -> str:
        return "met" if self.met else "missed"


def verdicts(figures: Mapping[str, Any]) -> list[Verdict]:
    """Every target of the design that this benchmark measures."""
    loop = figures["loop"]
    found = [
        _at_least(
            "Loop dispatch, to asyncio's call_soon_threadsafe", 1.0, loop["ratio_to_asyncio"], " times"
        ),
        _at_least(
            "Loop dispatch, to two threads on queue.SimpleQueue",
            5.0,
            100 * loop["ratio_to_simple_queue"],
            " %",
        ),
    ]
    found += _runs(figures)
    journal = figures["journal"]
    sizes = f"{journal['sizes'][-1]:,} records to one with {journal['sizes'][0]:,}"
    found.append(_at_most(f"A turn on a journal of {sizes}, agent live", 1.2, journal["ratio_live"]))
    found.append(_at_most(f"A turn on a journal of {sizes}, agent loaded anew", 1.2, journal["ratio_loaded"]))
    return found


def _runs(figures: Mapping[str, Any]) -> Iterator[Verdict]:
    for row in figures["ratios"]:
        job = "one model call and one tool" if row["tool"] else "one model call"
        if row["level"] == 1:
            floor = "bare commits" if row["tool"] else "three bare commits"
            yield _at_most(f"{job}, one at a time: p50, to {floor}", 1.2, row["p50_to_floor"])
        least = _PEER_TARGETS.get(row["level"])
        if least is not None:
            for peer, name in _PEER_NAMES.items():
                yield _at_least(
                    f"{job}, {row['level']} at a time: rate, to {name}",
                    least,
                    row[f"rate_to_{peer}"],
                    " times",
                )


def _at_least(what: str, target: float, measured: float, unit: str) -> Verdict:
    return Verdict(
        what=_capital(what),
        target=f"at least {target:g}{unit}",
        measured=f"{measured:.2f}{unit}",
        met=measured >= target,
    )


def _at_most(what: str, target: float, measured: float) -> Verdict:
    return Verdict(
        what=_capital(what),
        target=f"at most {target:g} times",
        measured=f"{measured:.2f} times",
        met=measured <= target,
    )


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
