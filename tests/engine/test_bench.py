"""The benchmark of loop dispatch runs and gives its ratios; how large they are is not for a test to say."""

from __future__ import annotations

from bench.loop_dispatch import run


def test_the_benchmark_counts_every_item_of_each_contender() -> None:
    figures = run(events=200, rounds=1)
    assert set(figures) == {
        "phronomy",
        "asyncio",
        "simple_queue",
        "ratio_to_asyncio",
        "ratio_to_simple_queue",
    }
    assert all(figure > 0 for figure in figures.values())
