"""The runtime of a process: how it begins, how it ends, and that there is one."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from django.db import connection
from django.test import override_settings

from phronomy_django.agents import Agent
from phronomy_django.domain.errors import ConfigurationError, RuntimeShutdownError
from phronomy_django.llm import ScriptedLLM
from phronomy_django.models import AgentExecution, AgentRoot, RuntimeInstance
from phronomy_django.runtime import current_hosting, reset_runtime, start_hosting
from phronomy_django.signals import execution_finished
from phronomy_django.store import mark_lost
from tests.agents.conftest import Define, define
from tests.waiting import wait_until

__all__ = ["define"]

ROOT = Path(__file__).resolve().parent.parent.parent

CHILD = """
import django, sys
django.setup()
from phronomy_django.agents import Agent, register
from phronomy_django.llm import ScriptedLLM

@register
class Child(Agent):
    definition_id = "tests.child"
    model = ScriptedLLM(lambda request: "from the child")

print(Child.create("child").invoke("x", timeout=30).output)
"""


def run_child(environment: Mapping[str, str], code: str = CHILD) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_nothing_starts_before_it_is_needed(define: Define) -> None:
    cls = define()
    assert current_hosting(start=False) is None
    cls.create("a")
    assert cls.get("a") is None
    assert current_hosting(start=False) is None
    cls("a").invoke("x", timeout=30)
    assert current_hosting(start=False) is start_hosting()


def test_many_threads_that_need_it_first_share_one(define: Define) -> None:
    define()
    barrier, found = threading.Barrier(6), []

    def need() -> None:
        barrier.wait()
        found.append(start_hosting())
        connection.close()

    threads = [threading.Thread(target=need) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(found) == 6
    assert len(set(map(id, found))) == 1
    assert RuntimeInstance.objects.count() == 1


def test_a_process_that_ends_gives_its_agents_back(subprocess_environment: Mapping[str, str]) -> None:
    done = run_child(subprocess_environment)
    assert (done.returncode, done.stdout.strip()) == (0, "from the child"), done.stderr
    assert RuntimeInstance.objects.get().state == "stopped"
    assert AgentRoot.objects.get().owner_id is None


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"RUNTIME": "hosted"}, "does not run yet; use 'embedded'"),
        (
            {"POOLS": {"tools": {"BACKEND": "celery"}}},
            "the backend 'celery', which this version does not run yet",
        ),
        ({"RUNTIM": "x"}, "Did you mean 'RUNTIME'"),
    ],
)
def test_settings_that_cannot_run_are_refused_before_anything_is_stored(
    define: Define, settings: dict[str, Any], told: str
) -> None:
    agent = define().create("a")
    with override_settings(PHRONOMY=settings), pytest.raises(ConfigurationError, match=told):
        agent.invoke("x", timeout=30)
    assert AgentExecution.objects.count() == 0
    assert RuntimeInstance.objects.count() == 0
    assert agent.invoke("x", timeout=30).output == "ok"


@pytest.mark.sqlite
def test_on_sqlite_a_second_process_is_told_who_runs_the_agents(
    define: Define, subprocess_environment: Mapping[str, str]
) -> None:
    define().create("a").invoke("x", timeout=30)
    done = run_child(subprocess_environment)
    assert done.returncode == 1
    assert f"Another process (process {os.getpid()}) runs the agents of this SQLite database" in done.stderr
    reset_runtime()
    assert run_child(subprocess_environment).returncode == 1  # its agent exists by now
    assert "already exists" in run_child(subprocess_environment).stderr


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork.*:DeprecationWarning")
def test_a_forked_child_has_no_runtime_and_holds_nothing_of_its_parents(define: Define) -> None:
    agent = define().create("a")
    agent.invoke("x", timeout=30)
    ready_read, ready_write = os.pipe()
    end_read, end_write = os.pipe()
    child = os.fork()
    if child == 0:  # pragma: no cover - measured in another process
        try:
            os.close(end_write)
            os.write(ready_write, b"y" if current_hosting(start=False) is None else b"n")
            os.read(end_read, 1)
        finally:
            os._exit(0)
    try:
        os.close(ready_write)
        assert os.read(ready_read, 1) == b"y"
        assert agent.invoke("the parent goes on", timeout=30).output == "ok"
        reset_runtime()
        assert agent.invoke("a lock that the child kept would refuse this", timeout=30).output == "ok"
    finally:
        os.close(end_write)
        os.waitpid(child, 0)
        os.close(ready_read)
        os.close(end_read)


def test_a_runtime_that_was_declared_lost_drops_everything_and_the_next_one_goes_on(define: Define) -> None:
    cls = define()
    agent = cls.create("a")
    with override_settings(PHRONOMY={"RUNTIME": "embedded", "LEASE_SECONDS": 0.6}):
        agent.invoke("x", timeout=30)
        first = start_hosting()
        assert cls.get("a") is not None
        mark_lost(0.0, "default")
        wait_until(lambda: first.ended, "the end of the lost runtime")
        assert agent.invoke("y", timeout=30).output == "ok"
        assert start_hosting() is not first
        reset_runtime()
    states = RuntimeInstance.objects.order_by("started_at").values_list("state", flat=True)
    assert list(states) == ["lost", "stopped"]
    assert AgentExecution.objects.filter(status="completed").count() == 2


def test_a_shutdown_waits_for_what_can_end(define: Define) -> None:
    entered, go_on = threading.Event(), threading.Event()

    def script(request: Any) -> str:
        entered.set()
        assert go_on.wait(30)
        return "done"

    agent = define(script).create("a")
    task = agent.invoke_async("x")
    assert entered.wait(30)
    ended: list[Any] = []

    def stop() -> None:
        ended.append(start_hosting().shutdown(30, 5))
        connection.close()

    thread = threading.Thread(target=stop)
    thread.start()
    wait_until(lambda: start_hosting().services.loop.state != "running", "the drain")
    with pytest.raises(RuntimeShutdownError):
        agent.invoke_async("too late").wait_result(30)
    go_on.set()
    thread.join(30)
    assert ended[0].cleanup_complete
    assert task.wait_result(0).output == "done"
    assert RuntimeInstance.objects.get().state == "stopped"


def test_a_shutdown_that_waits_no_longer_cancels_nothing_and_tells_the_waiting(define: Define) -> None:
    agent = define(model=ScriptedLLM(["late"], delay=60)).create("a")
    task = agent.invoke_async("x")
    wait_until(lambda: AgentExecution.objects.filter(phase="calling_llm").exists(), "the provider call")
    start_hosting().shutdown(0.05, 5)
    with pytest.raises(RuntimeShutdownError, match="nothing was cancelled"):
        task.wait_result(30)
    row = AgentExecution.objects.get()
    assert (row.status, row.stop_kind) == ("active", "")


# --- signals ----------------------------------------------------------------------------------------------


def test_the_signal_tells_of_each_end_after_its_commit_and_steers_nothing(define: Define) -> None:
    heard: list[tuple[Any, str, str, str]] = []

    def listen(sender: type[Agent], execution_id: str, agent_id: str, status: str, **_: Any) -> None:
        stored = AgentExecution.objects.get(pk=execution_id).status
        heard.append((sender, agent_id, status, stored))
        raise ValueError("a receiver that fails")

    cls = define(lambda request: "fine")
    execution_finished.connect(listen)
    try:
        assert cls.create("a").invoke("x", timeout=30).output == "fine"
        wait_until(lambda: heard, "the signal")
    finally:
        execution_finished.disconnect(listen)
    assert heard == [(cls, "a", "completed", "completed")]
