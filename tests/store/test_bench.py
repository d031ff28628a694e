"""The benchmark of commits runs on both forms; how large its figures are is not for a test to say."""

from __future__ import annotations

import pytest
from django.db import connection

from bench.store_commit import run


@pytest.mark.postgres
def test_the_benchmark_gives_a_figure_for_each_level(transactional_db: None) -> None:
    figures = run(transitions=12, levels=(1, 6))
    assert figures[6]["writer"]["per_commit"] > 1
    assert all(figure["writer"]["rate"] > 0 and figure["bare"]["rate"] > 0 for figure in figures.values())
    with connection.cursor() as cursor:
        cursor.execute("DROP TABLE bench_bare")
