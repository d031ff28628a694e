"""Who may move an agent: beats, two-step takeover, claims (HARD_POINTS 5)."""

from __future__ import annotations

import threading
from datetime import timedelta

import pytest
from django.db import connections
from django.db.models.functions import Now

from phronomy_django.domain.errors import AgentPurgedError, ConflictError, NotFoundError
from phronomy_django.models import AgentRoot, RuntimeInstance
from phronomy_django.store import (
    HeldError,
    beat,
    claim_root,
    create_root,
    mark_lost,
    release_root,
    stop_runtime,
)
from tests.store.transitions import Agent, new_runtime

LEASE = 30.0


def silence(runtime_id: str, seconds: float) -> None:
    RuntimeInstance.objects.filter(pk=runtime_id).update(heartbeat_at=Now() - timedelta(seconds=seconds))


def age(runtime_id: str) -> float:
    row = RuntimeInstance.objects.annotate(now=Now()).get(pk=runtime_id)
    return (row.now - row.heartbeat_at).total_seconds()  # type: ignore[attr-defined]


def test_a_beat_renews_a_running_runtime_by_the_databases_clock(runtime_id: str) -> None:
    silence(runtime_id, 20)
    assert beat(runtime_id)
    assert age(runtime_id) < 10


@pytest.mark.parametrize("state", ["lost", "stopped"])
def test_a_beat_never_brings_a_runtime_back(runtime_id: str, state: str) -> None:
    RuntimeInstance.objects.filter(pk=runtime_id).update(state=state)
    assert not beat(runtime_id)
    assert RuntimeInstance.objects.get(pk=runtime_id).state == state


def test_only_a_runtime_silent_for_longer_than_the_lease_is_lost(runtime_id: str) -> None:
    silent = new_runtime()
    silence(silent, LEASE + 1)
    silence(runtime_id, LEASE - 15)
    assert mark_lost(LEASE) == (silent,)
    assert mark_lost(LEASE) == ()
    assert RuntimeInstance.objects.get(pk=runtime_id).state == "running"


def test_a_claim_raises_the_token_each_time(runtime_id: str) -> None:
    create_root(agent_id="a", definition_id="d", definition_version=1)
    first, second = claim_root("a", runtime_id, LEASE), claim_root("a", runtime_id, LEASE)
    assert (first.fencing_token, second.fencing_token) == (1, 2)
    assert (second.owner_id, second.agent_revision) == (runtime_id, 0)


def test_a_live_owner_keeps_its_agent_and_is_named(agent: Agent, runtime_id: str) -> None:
    other = new_runtime()
    with pytest.raises(ConflictError, match=rf"{runtime_id} on host host-a, process 4711.*heartbeat is \d"):
        claim_root(agent.agent_id, other, LEASE)
    assert AgentRoot.objects.get(pk=agent.root_id).fencing_token == agent.token


def test_the_agent_of_a_silent_runtime_is_taken_over(agent: Agent, runtime_id: str) -> None:
    silence(runtime_id, LEASE + 5)
    other = new_runtime()
    taken = claim_root(agent.agent_id, other, LEASE)
    assert (taken.owner_id, taken.fencing_token) == (other, agent.token + 1)
    assert RuntimeInstance.objects.get(pk=runtime_id).state == "lost"
    assert not beat(runtime_id)


def test_a_lost_runtime_may_take_nothing(agent: Agent, runtime_id: str) -> None:
    RuntimeInstance.objects.filter(pk=runtime_id).update(state="lost")
    with pytest.raises(ConflictError, match="register as a new instance"):
        claim_root(agent.agent_id, runtime_id, LEASE)


def test_claiming_what_is_not_there_says_so(runtime_id: str, agent: Agent) -> None:
    with pytest.raises(NotFoundError, match="'nobody'"):
        claim_root("nobody", runtime_id, LEASE)
    AgentRoot.objects.update(lifecycle_status="purged")
    with pytest.raises(AgentPurgedError, match=agent.agent_id):
        claim_root(agent.agent_id, runtime_id, LEASE)


def test_a_stop_gives_the_roots_back(agent: Agent, runtime_id: str) -> None:
    assert stop_runtime(runtime_id) == 1
    assert RuntimeInstance.objects.get(pk=runtime_id).state == "stopped"
    other = new_runtime()
    assert claim_root(agent.agent_id, other, LEASE).owner_id == other


def test_a_stop_keeps_the_roots_whose_work_still_runs(agent: Agent, runtime_id: str) -> None:
    free = Agent.create(runtime_id)
    assert stop_runtime(runtime_id, keep=[agent.root_id]) == 1
    assert AgentRoot.objects.get(pk=free.root_id).owner_id is None
    other = new_runtime()
    with pytest.raises(ConflictError, match=runtime_id):
        claim_root(agent.agent_id, other, LEASE)
    silence(runtime_id, LEASE + 1)
    assert claim_root(agent.agent_id, other, LEASE).owner_id == other


def test_a_root_is_released_only_by_its_owner_and_token(agent: Agent, runtime_id: str) -> None:
    assert not release_root(agent.root_id, runtime_id, agent.token + 1)
    assert not release_root(agent.root_id, new_runtime(), agent.token)
    assert release_root(agent.root_id, runtime_id, agent.token)


def test_of_many_that_claim_a_free_agent_at_once_one_gets_it(runtime_id: str) -> None:
    create_root(agent_id="contested", definition_id="d", definition_version=1)
    runtimes = [new_runtime() for _ in range(6)]
    start, results = threading.Barrier(6), []

    def claim(runtime: str) -> None:
        try:
            start.wait()
            results.append(claim_root("contested", runtime, LEASE).owner_id)
        except ConflictError:
            results.append(None)
        finally:
            connections.close_all()

    threads = [threading.Thread(target=claim, args=(runtime,)) for runtime in runtimes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 6 and sum(result is not None for result in results) == 1
    assert AgentRoot.objects.get(agent_id="contested").fencing_token == 1


def test_a_held_root_is_an_error_of_its_own_kind() -> None:
    assert "Try again" in str(HeldError())
