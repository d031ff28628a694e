"""SIGKILL at every boundary: nothing confirmed is lost, nothing happens twice, what is exact stays exact (DESIGN §12).

The boundaries are the failpoints that the scenario is seen to reach, not a list: one that is declared and neither
reached nor excused fails the test.
"""

from __future__ import annotations

import json
import os
import random
import signal

from django.db import connection

from tests.crash.conftest import Program

#: The barriers of people and of recovery.
RECOVERY = ("resume", "unresolved", "b3_suspend", "b4")
#: Declared, and not reached by one process that works well; the test that reaches it.
ELSEWHERE = {
    "store.batch.before_commit": "test_a_kill_among_many_loses_nothing",
    "store.batch.after_commit": "test_a_kill_among_many_loses_nothing",
    **dict.fromkeys(
        (f"agent.{barrier}.{side}_commit" for barrier in RECOVERY for side in ("before", "after")),
        "test_a_second_kill_during_the_recovery",
    ),
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


def check_after_the_kill(program: Program, name: str, told: list[str]) -> int:
    """Everything after a kill; the number of steps that a person had to answer."""
    account = program.account(name)
    account.check()
    account.keeps(told)
    agents = [
        [root.agent_id, kind]
        for root in account.roots
        for kind in ("PlainAgent", "HookedAgent")
        if kind in root.agent_id
    ]
    died, code, lines = program.play(
        "after",
        name=f"{name}-PlainAgent-fresh",
        prefix=f"{name}-",
        agents=agents,
        truth=sorted(account.effects),
    )
    assert (died, code) == (0, 0), program.errors()
    assert lines[-1] == "fresh completed"
    later = program.account(name)
    later.check()
    later.keeps(told)
    assert not [root.agent_id for root in later.roots if root.lifecycle_status == "busy"], (
        "something is stuck"
    )
    ended = {
        (execution.agent.agent_id, execution.execution_id, execution.status)
        for execution in later.executions
        if execution.idempotency_key == "k"
    }
    answers = {tuple(line.split()[1:]) for line in lines if line.startswith("answered")}
    assert answers == {item for item in ended if any(item[0] == agent_id for agent_id, _ in agents)}
    assert not (account.effects - later.effects)
    return sum(line.startswith("resolved") for line in lines)


def test_a_kill_at_any_boundary_loses_nothing_and_does_nothing_twice(program: Program) -> None:
    counts = reached_by(program, "all_barriers")
    asked_for = 0
    only = os.environ.get("PHRONOMY_CRASH_ONLY", "")  # one failpoint, while a fault is being looked for
    for failpoint, count in sorted(item for item in counts.items() if only in item[0]):
        for hit in sorted({1, min(count, HITS), count}):
            name = f"{failpoint}-{hit}".replace(".", "-")
            died, code, told = program.play("all_barriers", name=name, failpoint=failpoint, hit=hit)
            assert died == signal.SIGKILL, (failpoint, hit, code, program.errors())
            try:
                asked = check_after_the_kill(program, name, told)
            except AssertionError as error:
                raise AssertionError(f"killed at {failpoint}, hit {hit}: {error}") from error
            asked_for += bool(asked)
    assert asked_for, "no kill left anything to a person: the scenario has lost its outside tool"
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
