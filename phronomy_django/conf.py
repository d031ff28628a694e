"""``settings.PHRONOMY`` as one frozen object; reloaded when a test overrides it.

``phronomy_settings()`` raises ``ConfigurationError`` while the setting has problems; the system checks
(``phronomy.E001``) list every one of them at start.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from functools import lru_cache
from types import MappingProxyType
from typing import Any

from django.conf import settings
from django.core.signals import setting_changed

from phronomy_django.domain.errors import ConfigurationError

__all__ = [
    "BACKENDS",
    "RUNTIME_MODES",
    "PhronomySettings",
    "PoolSettings",
    "phronomy_settings",
    "read_settings",
]

RUNTIME_MODES = ("embedded", "hosted", "inline")
BACKENDS = ("thread", "asyncio", "celery")


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSettings:
    """One named offload pool: where it runs, how much at once, and how much may wait."""

    backend: str = "thread"
    size: int = 8
    queue_size: int = 1000
    queue: str = ""


DEFAULT_POOLS: Mapping[str, PoolSettings] = MappingProxyType(
    {"default": PoolSettings(), "llm": PoolSettings(backend="asyncio", size=256, queue_size=10_000)}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PhronomySettings:
    """The settings, with their defaults; the names in ``settings.PHRONOMY`` are these in upper case.

    ``runtime``: embedded, hosted or inline (DESIGN §9). ``database``: the alias that holds our tables.
    ``pools``: named offload pools, added to the defaults ``default`` and ``llm``. ``lease_seconds``: how long a
    silent runtime keeps its agents. ``writer_batch``: transitions in one commit at most. ``drain_seconds`` and
    ``stop_seconds``: what a shutdown waits for running work and for threads. ``max_input_bytes``,
    ``max_context_bytes``: limits of one input and of one ``durable_context``. ``max_live_agents``: idle agents
    kept in memory; more are dropped from memory, oldest first, and loaded again when needed.
    """

    runtime: str = "embedded"
    database: str = "default"
    pools: Mapping[str, PoolSettings] = field(default_factory=lambda: DEFAULT_POOLS)
    lease_seconds: float = 30.0
    writer_batch: int = 256
    reader_threads: int = 4
    drain_seconds: float = 10.0
    stop_seconds: float = 5.0
    max_input_bytes: int = 5 * 1024 * 1024
    max_context_bytes: int = 64 * 1024
    max_live_agents: int = 20_000


_TYPES: dict[str, type | tuple[type, ...]] = {
    "runtime": str,
    "database": str,
    "lease_seconds": (int, float),
    "writer_batch": int,
    "reader_threads": int,
    "drain_seconds": (int, float),
    "stop_seconds": (int, float),
    "max_input_bytes": int,
    "max_context_bytes": int,
    "max_live_agents": int,
}
_POOL_TYPES: dict[str, type] = {"backend": str, "size": int, "queue_size": int, "queue": str}


def read_settings(raw: object) -> tuple[PhronomySettings, list[str]]:
    """The settings in ``raw`` and a sentence for each thing that is wrong with them."""
    if not isinstance(raw, Mapping):
        return PhronomySettings(), [f"settings.PHRONOMY is a {type(raw).__name__}; it has to be a dict."]
    problems: list[str] = []
    known = {item.name.upper(): item.name for item in fields(PhronomySettings)}
    values: dict[str, Any] = {}
    for key, value in raw.items():
        name = known.get(key) if isinstance(key, str) else None
        if name is None:
            problems.append(f"settings.PHRONOMY has an unknown key {key!r}.{_did_you_mean(key, known)}")
        elif name == "pools":
            values["pools"] = _read_pools(value, problems)
        elif _fits(value, _TYPES[name]):
            values[name] = value
        else:
            problems.append(f"settings.PHRONOMY[{key!r}] is {value!r}, which does not fit.")
    if values.get("runtime", "embedded") not in RUNTIME_MODES:
        problems.append(
            f"settings.PHRONOMY['RUNTIME'] is {values.pop('runtime')!r}; use one of {RUNTIME_MODES}."
        )
    return PhronomySettings(**values), problems


def _fits(value: object, types: type | tuple[type, ...]) -> bool:
    if isinstance(value, bool) or not isinstance(value, types):
        return False
    return isinstance(value, str) or (isinstance(value, int | float) and value > 0)


def _did_you_mean(key: object, known: Mapping[str, object]) -> str:
    close = get_close_matches(str(key).upper(), list(known), n=1)
    return f" Did you mean {close[0]!r}?" if close else f" Known are {', '.join(sorted(known))}."


def _read_pools(value: object, problems: list[str]) -> Mapping[str, PoolSettings]:
    if not isinstance(value, Mapping):
        problems.append(f"settings.PHRONOMY['POOLS'] is a {type(value).__name__}; it has to be a dict.")
        return DEFAULT_POOLS
    pools = dict(DEFAULT_POOLS)
    for name, options in value.items():
        where = f"settings.PHRONOMY['POOLS'][{name!r}]"
        if not isinstance(options, Mapping):
            problems.append(f"{where} is a {type(options).__name__}; it has to be a dict.")
            continue
        chosen: dict[str, Any] = {}
        for key, option in options.items():
            kind = _POOL_TYPES.get(str(key).lower())
            if kind is None:
                problems.append(f"{where} has an unknown key {key!r}.{_did_you_mean(key, _UPPER_POOL_KEYS)}")
            elif not _fits(option, kind):
                problems.append(f"{where}[{key!r}] is {option!r}, which does not fit.")
            else:
                chosen[str(key).lower()] = option
        if chosen.get("backend", "thread") not in BACKENDS:
            problems.append(f"{where}['BACKEND'] is {chosen.pop('backend')!r}; use one of {BACKENDS}.")
        pools[str(name)] = PoolSettings(**chosen)
    return MappingProxyType(pools)


_UPPER_POOL_KEYS = {key.upper(): key for key in _POOL_TYPES}


@lru_cache(maxsize=1)
def phronomy_settings() -> PhronomySettings:
    """The current settings; raises ``ConfigurationError`` that lists what is wrong with them."""
    found, problems = read_settings(getattr(settings, "PHRONOMY", {}))
    if problems:
        raise ConfigurationError(" ".join(problems))
    return found


def _reload(*, setting: str, **_: object) -> None:
    if setting == "PHRONOMY":
        phronomy_settings.cache_clear()


setting_changed.connect(_reload, dispatch_uid="phronomy_django.conf")
