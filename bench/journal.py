"""The same turn on an agent with a short journal and on one with a long journal, taking turns with each other.

The records are copies of those that a real run wrote, so that the long journal looks as a year of runs would. Both
agents are shown the same number of earlier messages.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

from bench.child import serve
from bench.phronomy import prepare

_BATCH = 5000


def _agent(name: str, records: int) -> Any:
    """An agent whose journal has ``records`` records (a multiple of those of one run, at least)."""
    from bench.agents import QUESTION, RememberingAgent
    from phronomy_django.domain.ids import new_id
    from phronomy_django.models import AgentRoot, JournalRecord

    agent = RememberingAgent.create(agent_id=name)
    template = RememberingAgent.create(agent_id=f"{name}-template")
    template.invoke(QUESTION, timeout=60)
    rows = list(JournalRecord.objects.filter(agent__agent_id=template.agent_id).order_by("sequence"))
    root = AgentRoot.objects.get(agent_id=name)
    for first in range(0, records, _BATCH):
        JournalRecord.objects.bulk_create(
            JournalRecord(
                agent=root,
                sequence=number + 1,
                record_id=new_id(),
                kind=row.kind,
                channel=row.channel,
                role=row.role,
                content_id=row.content_id,
                context_generation=row.context_generation,
                context_candidate=row.context_candidate,
                data=row.data,
                created_at=row.created_at,
            )
            for number in range(first, min(records, first + _BATCH))
            for row in [rows[number % len(rows)]]
        )
    AgentRoot.objects.filter(pk=root.pk).update(journal_position=records)
    return agent


def measure(*, sizes: list[int], turns: int, cold_turns: int) -> dict[str, Any]:
    """Median milliseconds of a turn for each journal size: the agent live in memory, and loaded anew."""
    from django.db import connection

    from bench.agents import QUESTION
    from phronomy_django.runtime import reset_runtime

    agents = [_agent(f"bench-journal-{size}", size) for size in sizes]
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")

    def timed(agent: Any) -> float:
        started = time.perf_counter()
        result = agent.invoke(QUESTION, timeout=60)
        assert result.status == "completed", result
        return 1000 * (time.perf_counter() - started)

    for agent in agents:
        timed(agent)
    warm = [[timed(agent) for agent in agents] for _ in range(turns)]
    cold = []
    for _ in range(cold_turns):
        reset_runtime()
        _start(agents[0])
        cold.append([timed(agent) for agent in agents])
    return {
        "sizes": sizes,
        "live_ms": [statistics.median(column) for column in zip(*warm, strict=True)],
        "loaded_ms": [statistics.median(column) for column in zip(*cold, strict=True)],
        "ratio_live": statistics.median(row[-1] / row[0] for row in warm),
        "ratio_loaded": statistics.median(row[-1] / row[0] for row in cold),
    }


def _start(like: Any) -> None:
    """Start a runtime with an agent that is not measured, so that its start is nobody's turn."""
    from bench.agents import QUESTION
    from phronomy_django.domain.ids import new_id

    type(like).create(agent_id=f"bench-other-{new_id()}").invoke(QUESTION, timeout=60)


if __name__ == "__main__":
    prepare()
    serve(measure)
