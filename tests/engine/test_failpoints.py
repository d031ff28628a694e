"""Failpoints: off, armed in code, armed by the environment."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from phronomy_django.engine import FailpointError, declare, failpoint
from phronomy_django.engine import failpoints as module

NAME = "engine.test.point"
OTHER = "engine.test.other"


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    declare(NAME, OTHER)
    yield
    module.disarm()
    module._state.declared -= {NAME, OTHER}


def test_an_unarmed_failpoint_does_nothing_and_counts_nothing() -> None:
    module._state.counts.clear()
    failpoint(NAME)
    failpoint("never declared")
    assert module.reached() == {}


def test_declared_names_can_be_listed() -> None:
    assert {NAME, OTHER} <= module.declared()


def test_an_armed_failpoint_raises_until_it_is_disarmed() -> None:
    module.arm(NAME, "raise")
    failpoint(OTHER)
    with pytest.raises(FailpointError, match=NAME):
        failpoint(NAME)
    module.disarm(NAME)
    failpoint(NAME)


def test_a_failpoint_is_armed_for_a_block_and_from_a_hit_on() -> None:
    with module.armed(NAME, "raise", hit=3):
        failpoint(NAME)
        failpoint(NAME)
        for _ in range(2):
            with pytest.raises(FailpointError):
                failpoint(NAME)
    failpoint(NAME)


def test_an_action_may_be_a_callable_or_a_sleep() -> None:
    calls: list[int] = []
    with module.armed(NAME, lambda: calls.append(1)):
        failpoint(NAME)
    assert calls == [1]
    with module.armed(NAME, "sleep:0"):
        failpoint(NAME)


def test_what_is_reached_is_counted_while_watching() -> None:
    with module.watching():
        failpoint(NAME)
        failpoint(NAME)
        assert module.reached() == {NAME: 2}
        with pytest.raises(LookupError, match="not declared"):
            failpoint("engine.test.unknown")
    failpoint(NAME)
    assert module.reached() == {NAME: 2}


def test_an_unknown_action_is_refused() -> None:
    with pytest.raises(ValueError, match="explode"):
        module.arm(NAME, "explode")


def test_the_environment_arms_by_name_action_and_hit() -> None:
    module.arm_from_environment(f" {NAME}=raise@2, {OTHER}=sleep:0 ,")
    failpoint(OTHER)
    failpoint(NAME)
    with pytest.raises(FailpointError):
        failpoint(NAME)


def test_a_process_started_with_an_armed_failpoint_is_killed_there() -> None:
    code = (
        "from phronomy_django.engine import declare, failpoint\n"
        "declare('a', 'b')\n"
        "failpoint('a'); print('past a', flush=True)\n"
        "failpoint('b'); print('past b', flush=True)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PHRONOMY_FAILPOINTS": "b=kill"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL
    assert done.stdout == "past a\n"
