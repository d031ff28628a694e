"""Who may move which agent (DESIGN §8, HARD_POINTS 5): runtimes, their beats, takeover in two steps, claims.

Every time that decides here is the database's.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import timedelta

from django.db import connections, transaction
from django.db.models import Exists, F, OuterRef, Q, QuerySet
from django.db.models.functions import Now

from phronomy_django.domain.errors import AgentPurgedError, ConflictError, NotFoundError
from phronomy_django.domain.statuses import LifecycleStatus, RuntimeState
from phronomy_django.models import AgentRoot, RuntimeInstance
from phronomy_django.store.reads import RootSnapshot, snapshot_of

__all__ = ["beat", "claim_root", "mark_lost", "register_runtime", "release_root", "stop_runtime"]


def register_runtime(
    *, runtime_id: str, host: str, pid: int, mode: str, version: str, using: str = "default"
) -> None:
    """Make a runtime known, alive as of now by the database's clock. Its id is fresh for every instance."""
    RuntimeInstance.objects.using(using).create(
        runtime_id=runtime_id,
        host=host[:255],
        pid=pid,
        mode=mode,
        state=RuntimeState.RUNNING,
        version=version[:64],
        started_at=Now(),
        heartbeat_at=Now(),
    )


def beat(runtime_id: str, using: str = "default") -> bool:
    """Sign of life: only a ``running`` row takes it, so a runtime once declared lost never comes back.

    False means that no row was changed: drop all live state and register as a new instance.
    """
    return _running(using).filter(pk=runtime_id).update(heartbeat_at=Now()) == 1


def mark_lost(lease_seconds: float, using: str = "default") -> tuple[str, ...]:
    """First step of a takeover: declare runtimes lost whose last beat is older than the lease.

    The age is compared again under the row's lock by the same update, so a beat that came in between wins and keeps
    the runtime. Returns those that this call declared lost; their roots can be claimed once this has committed.
    """
    silent = _running(using).filter(heartbeat_at__lt=Now() - timedelta(seconds=lease_seconds))
    candidates = list(silent.order_by("pk").values_list("pk", flat=True))
    return tuple(
        pk for pk in candidates if silent.filter(pk=pk).update(state=RuntimeState.LOST, stopped_at=Now()) == 1
    )


def stop_runtime(runtime_id: str, *, keep: Collection[int] = (), using: str = "default") -> int:
    """Give the roots of a runtime back, and end it. Returns how many roots were given back.

    ``keep`` are roots with work that still runs: they stay owned, and the runtime stays ``running`` without a beat,
    so that nobody takes them before its lease is over (HARD_POINTS 18).
    """
    with transaction.atomic(using=using):
        if not keep:
            _running(using).filter(pk=runtime_id).update(state=RuntimeState.STOPPED, stopped_at=Now())
        return AgentRoot.objects.using(using).filter(owner=runtime_id).exclude(pk__in=keep).update(owner=None)


def release_root(root_id: int, runtime_id: str, fencing_token: int, using: str = "default") -> bool:
    """Give one root back, if this runtime still owns it by that token."""
    mine = AgentRoot.objects.using(using).filter(pk=root_id, owner=runtime_id, fencing_token=fencing_token)
    return mine.update(owner=None) == 1


def claim_root(agent_id: str, runtime_id: str, lease_seconds: float, using: str = "default") -> RootSnapshot:
    """Become the owner of an agent: its fencing token rises by one, so that whoever moved it before cannot now.

    Raises ``NotFoundError``, ``AgentPurgedError``, and ``ConflictError`` that names the runtime that owns the agent
    and lives, or says that this runtime itself is not running any more.
    """
    snapshot = _claim(agent_id, runtime_id, using)
    if snapshot is None and mark_lost(lease_seconds, using):
        snapshot = _claim(agent_id, runtime_id, using)
    if snapshot is None:
        raise _refusal(agent_id, runtime_id, using)
    return snapshot


def _claim(agent_id: str, runtime_id: str, using: str) -> RootSnapshot | None:
    """Second step of a takeover: one update takes a root that has no owner, is ours, or whose owner's row says
    ``stopped`` or ``lost``; and only for a runtime that is itself ``running``. Neither word is ever taken back."""
    runtimes = RuntimeInstance.objects.using(using)
    gone = runtimes.filter(pk=OuterRef("owner_id")).exclude(state=RuntimeState.RUNNING)
    free = Q(owner=None) | Q(owner=runtime_id) | Exists(gone)
    with transaction.atomic(using=using):
        _bound_locks(using, seconds=2)
        taken = (
            AgentRoot.objects.using(using)
            .filter(free, Exists(_running(using).filter(pk=runtime_id)), agent_id=agent_id)
            .exclude(lifecycle_status=LifecycleStatus.PURGED)
            .update(owner=runtime_id, fencing_token=F("fencing_token") + 1)
        )
        if not taken:
            return None
        return snapshot_of(AgentRoot.objects.using(using).get(agent_id=agent_id))


def _refusal(agent_id: str, runtime_id: str, using: str) -> Exception:
    root = AgentRoot.objects.using(using).select_related("owner").filter(agent_id=agent_id).first()
    if root is None:
        return NotFoundError(f"There is no agent {agent_id!r}; create it first.")
    if root.lifecycle_status == LifecycleStatus.PURGED:
        return AgentPurgedError(f"The agent {agent_id!r} was purged; its agent_id stays reserved.")
    if not _running(using).filter(pk=runtime_id).exists():
        return ConflictError(
            f"Runtime {runtime_id} may not take agent {agent_id!r}: it is not running by its own row. Drop all live "
            "state and register as a new instance."
        )
    owner = root.owner
    if owner is None or owner.pk == runtime_id:
        return ConflictError(f"The agent {agent_id!r} was just given back by another runtime. Try again.")
    age = RuntimeInstance.objects.using(using).filter(pk=owner.pk).annotate(now=Now()).get()
    seconds = max(0.0, (age.now - age.heartbeat_at).total_seconds())
    return ConflictError(
        f"The agent {agent_id!r} is owned by runtime {owner.pk} on host {owner.host}, process {owner.pid}, whose last "
        f"heartbeat is {seconds:.1f} s old. Send the request to that runtime, or stop it."
    )


def _running(using: str) -> QuerySet[RuntimeInstance]:
    return RuntimeInstance.objects.using(using).filter(state=RuntimeState.RUNNING)


def _bound_locks(using: str, *, seconds: int) -> None:
    """A root that a frozen transaction holds makes this transaction fail, not wait (HARD_POINTS 3)."""
    connection = connections[using]
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute("SELECT set_config('lock_timeout', %s, true)", [str(seconds * 1000)])
