"""SIGKILL at every boundary: nothing confirmed is lost, nothing happens twice, nothing stays stuck (DESIGN §12).

The boundaries are the failpoints that the scenario is seen to reach, not a list: one that is declared and neither
reached nor excused fails the test. After each kill the next process takes up what was left, a person answers what
nobody can know, and everything ends. ``make crash`` takes the long form.
"""

from __future__ import annotations

import json
import os
import random
import signal
from typing import Any

import pytest
from django.db import connection

from tests.crash.account import Account
from tests.crash.conftest import Program

#: The barriers of a recovery.
RECOVERY = [
    f"agent.{barrier}.{side}_commit" for barrier in ("resume", "unresolved") for side in ("before", "after")
]
#: Declared, and not reached by one process that works well; the test that reaches it.
ELSEWHERE = {
    "store.batch.before_commit": "test_a_kill_among_many_loses_nothing",
    "store.batch.after_commit": "test_a_kill_among_many_loses_nothing",
    **dict.fromkeys(RECOVERY, "test_a_second_kill_during_the_recovery_changes_nothing"),
    "store.beat.before": "tests/store/test_writer.py",
    "store.beat.after": "tests/store/test_writer.py",
}
LONG = bool(os.environ.get("PHRONOMY_CRASH_LONG"))
HITS = 3 if LONG else 1
SEEDS = 40 if LONG else 3


def reached_by(program: Program, scenario: str, **order: Any) -> dict[str, int]:
    """How often the scenario passes each failpoint when nothing kills it."""
    died, code, told = program.play(scenario, name="watched", watch=True, **order)
    assert (died, code) == (0, 0), program.errors()
    seen = json.loads("".join(told))
    if scenario == "all_barriers":
        assert set(seen["declared"]) - set(seen["reached"]) == set(ELSEWHERE)
    program.account("watched").check()
    counts: dict[str, int] = seen["reached"]
    return counts


def killed_at(
    program: Program, scenario: str, name: str, failpoint: str, hit: int = 1, **order: Any
) -> list[str]:
    """Play ``scenario`` until it is killed there; what it had told its caller."""
    died, code, told = program.play(scenario, name=name, failpoint=failpoint, hit=hit, **order)
    assert died == signal.SIGKILL, (failpoint, hit, code, program.errors())
    return told


def agents_of(account: Account) -> list[tuple[str, str]]:
    """The agents whose keyed run is asked for again."""
    return [
        (root.agent_id, kind)
        for root in account.roots
        for kind in ("PlainAgent", "HookedAgent")
        if kind in root.agent_id and "fresh" not in root.agent_id
    ]


def after(program: Program, name: str, **order: Any) -> tuple[int, int, list[str]]:
    """The process that comes next, with a fresh agent of its own."""
    account = program.account(name)
    number = sum("fresh" in root.agent_id for root in account.roots)
    return program.play(
        "after",
        name=f"{name}-PlainAgent-fresh-{number}",
        prefix=f"{name}-",
        agents=agents_of(account),
        truth=sorted(account.effects),
        **order,
    )


def check_after_the_kill(program: Program, name: str, told: list[str]) -> int:
    """Everything after a kill; the number of steps that a person had to answer."""
    account = program.account(name)
    account.check()
    account.keeps(told)
    died, code, lines = after(program, name)
    assert (died, code) == (0, 0), program.errors()
    assert lines[-1] == "fresh completed"
    later = program.account(name)
    later.check()
    later.keeps(told)
    stuck = [root.agent_id for root in later.roots if root.lifecycle_status == "busy"]
    assert not stuck, later.describe(stuck) + program.errors()[-3000:]
    asked = dict(agents_of(later))
    ended = {
        (execution.agent.agent_id, execution.execution_id, execution.status)
        for execution in later.executions
        if execution.idempotency_key == "k" and execution.agent.agent_id in asked
    }
    assert {tuple(line.split()[1:]) for line in lines if line.startswith("answered")} == ended
    assert not (account.effects - later.effects)
    return sum(line.startswith("resolved") for line in lines)


def test_a_kill_at_any_boundary_loses_nothing_and_does_nothing_twice(program: Program) -> None:
    counts = reached_by(program, "all_barriers")
    only = os.environ.get("PHRONOMY_CRASH_ONLY", "")  # one failpoint, while a fault is being looked for
    answered = 0
    for failpoint, count in sorted(item for item in counts.items() if only in item[0]):
        for hit in sorted({1, min(count, HITS), count if LONG else 1}):
            name = f"{failpoint}-{hit}".replace(".", "-")
            told = killed_at(program, "all_barriers", name, failpoint, hit)
            try:
                answered += check_after_the_kill(program, name, told)
            except AssertionError as error:
                raise AssertionError(f"killed at {failpoint}, hit {hit}: {error}") from error
    assert answered, "no kill left anything to a person: the scenario has lost its outside tool"
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
        told = killed_at(program, "many", name, failpoint, hit, count=64)
        try:
            check_after_the_kill(program, name, told)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}, killed at {failpoint}, hit {hit}: {error}") from error


@pytest.mark.parametrize("first", ["agent.tool.after", "agent.provider.after"])
def test_a_second_kill_during_the_recovery_changes_nothing(program: Program, first: str) -> None:
    """Killed with work under way, and again at each boundary of what takes it up."""
    places = [*RECOVERY] if first == "agent.tool.after" else [*RECOVERY[:2], "agent.claim.after_commit"]
    for second in [*places, "agent.provider.before"]:
        name = f"{first}-{second}".replace(".", "-")
        told = killed_at(program, "all_barriers", name, first)
        died, code, _ = after(program, name, failpoint=second)
        assert died == signal.SIGKILL, (first, second, code, program.errors())
        program.account(name).check()
        try:
            check_after_the_kill(program, name, told)
        except AssertionError as error:
            raise AssertionError(f"killed at {first}, then at {second}: {error}") from error
