"""SIGKILL at every boundary: nothing confirmed is lost, nothing happens twice, what is exact stays exact (DESIGN §12).

The boundaries are the failpoints that the scenario is seen to reach, not a list: one that is declared and neither
reached nor excused fails the test.
"""

from __future__ import annotations

import json
import random
import signal

from django.db import connection

from tests.crash.conftest import Program

#: Declared, and not reached by one process that works well; the test that reaches it.
ELSEWHERE = {
    "store.batch.before_commit": "test_a_kill_among_many_loses_nothing",
    "store.batch.after_commit": "test_a_kill_among_many_loses_nothing",
    "store.beat.before": "tests/store/test_writer.py",
    "store.beat.after": "tests/store/test_writer.py",
}
HITS = 3
SEEDS = 8


def reached_by(program: Program, scenario: str, **order: object) -> dict[str, int]:
    """How often the scenario passes each failpoint when nothing kills it."""
    died, code, told = program.play(scenario, name="watched", watch=True, **order)
    assert (died, code) == (0, 0), program.errors()
    seen = json.loads("".join(told))
    if scenario == "all_barriers":
        assert set(seen["declared"]) - set(seen["reached"]) == set(ELSEWHERE)
    program.account("watched").check()
    counts: dict[str, int] = seen["reached"]
    return counts


def check_after_the_kill(program: Program, name: str, told: list[str]) -> None:
    account = program.account(name)
    account.check()
    account.keeps(told)
    agents = [
        [root.agent_id, kind]
        for root in account.roots
        for kind in ("PlainAgent", "HookedAgent")
        if kind in root.agent_id
    ]
    open_ = {root.agent_id for root in account.roots if root.lifecycle_status == "busy"}
    ended = {
        execution.agent.agent_id: execution.execution_id
        for execution in account.executions
        if execution.idempotency_key == "k" and execution.status == "completed"
    }
    known = [agent for agent in agents if agent[0] in open_ or agent[0] in ended]
    died, code, lines = program.play("after", name=f"{name}-PlainAgent-fresh", agents=known)
    assert (died, code) == (0, 0), program.errors()
    assert lines[-1] == "fresh completed"
    expected = [
        f"answered {agent_id} {ended[agent_id]} completed" if agent_id in ended else f"busy {agent_id}"
        for agent_id, _ in known
    ]
    assert lines[:-1] == expected
    later = program.account(name)
    later.check()
    assert later.effects == account.effects, "the next process did something again"


def test_a_kill_at_any_boundary_loses_nothing_and_does_nothing_twice(program: Program) -> None:
    counts = reached_by(program, "all_barriers")
    for failpoint, count in sorted(counts.items()):
        for hit in sorted({1, min(count, HITS), count}):
            name = f"{failpoint}-{hit}".replace(".", "-")
            died, code, told = program.play("all_barriers", name=name, failpoint=failpoint, hit=hit)
            assert died == signal.SIGKILL, (failpoint, hit, code, program.errors())
            try:
                check_after_the_kill(program, name, told)
            except AssertionError as error:
                raise AssertionError(f"killed at {failpoint}, hit {hit}: {error}") from error
    if connection.vendor == "sqlite":
        with connection.cursor() as cursor:
            cursor.execute("PRAGMA integrity_check")
            assert cursor.fetchone() == ("ok",)


def test_a_kill_among_many_loses_nothing(program: Program) -> None:
    counts = reached_by(program, "many", count=64)
    batch = ["store.batch.before_commit", "store.batch.after_commit"]
    assert all(counts[name] for name in batch)
    for seed in range(SEEDS):
        chosen = random.Random(seed)
        failpoint = chosen.choice([*batch, *sorted(name for name in counts if "connect" not in name)])
        hit = chosen.randint(1, max(1, counts[failpoint] // 3))
        name = f"many-{seed}"
        died, code, told = program.play("many", name=name, count=64, failpoint=failpoint, hit=hit)
        assert died == signal.SIGKILL, (seed, failpoint, hit, code, program.errors())
        try:
            check_after_the_kill(program, name, told)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}, killed at {failpoint}, hit {hit}: {error}") from error
