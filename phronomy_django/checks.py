"""System checks: what is wrong with the installation, told at start. Ids are stable."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from django.apps import AppConfig
from django.conf import settings
from django.core.checks import CheckMessage, Error, register
from django.core.checks import Warning as CheckWarning
from django.db import connections, router
from django.utils.connection import ConnectionDoesNotExist

from phronomy_django.agents.registry import definitions, duplicates
from phronomy_django.conf import PhronomySettings, read_settings
from phronomy_django.domain.errors import PhronomyError

__all__ = ["check_agents", "check_database", "check_settings", "register_checks"]


_SYNCHRONOUS = re.compile(r"\bsynchronous\s*=\s*(\w+)", re.IGNORECASE)


def register_checks() -> None:
    register("phronomy")(check_settings)
    register("phronomy")(check_database)
    register("phronomy")(check_agents)


def _settings() -> tuple[PhronomySettings, list[str]]:
    return read_settings(getattr(settings, "PHRONOMY", {}))


def check_settings(app_configs: Sequence[AppConfig] | None = None, **kwargs: Any) -> list[CheckMessage]:
    """E001: a setting that does not fit. E002: a pool whose backend this version does not run."""
    found, problems = _settings()
    messages: list[CheckMessage] = [
        Error(problem, hint="See docs/settings.md.", id="phronomy.E001") for problem in problems
    ]
    messages += [
        Error(
            f"The pool {name!r} has the backend 'celery', which this version does not run yet.",
            hint="Use 'thread' or 'asyncio'.",
            id="phronomy.E002",
        )
        for name, pool in found.pools.items()
        if pool.backend == "celery"
    ]
    return messages


def check_database(app_configs: Sequence[AppConfig] | None = None, **kwargs: Any) -> list[CheckMessage]:
    """E010 to E015, W010: the alias, its engine, its options, and whether the routers keep our tables there."""
    found, _ = _settings()
    alias = found.database
    try:
        connection = connections[alias]
    except ConnectionDoesNotExist:
        return [
            Error(
                f"settings.PHRONOMY['DATABASE'] is {alias!r}, which settings.DATABASES does not have.",
                id="phronomy.E010",
            )
        ]
    messages: list[CheckMessage] = []
    if connection.vendor not in ("sqlite", "postgresql"):
        messages.append(
            Error(
                f"The database {alias!r} is {connection.display_name}; PostgreSQL and SQLite are supported.",
                id="phronomy.E011",
            )
        )
    if connection.vendor == "sqlite":
        options = connection.settings_dict.get("OPTIONS", {})
        if str(options.get("transaction_mode", "")).upper() != "IMMEDIATE":
            messages.append(
                Error(
                    f"The SQLite database {alias!r} does not use immediate transactions: a transaction that reads "
                    f"first would fail at once when another one writes.",
                    hint="Set OPTIONS = {'transaction_mode': 'IMMEDIATE', 'init_command': "
                    "'PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL;'}.",
                    id="phronomy.E012",
                )
            )
        if "wal" not in str(options.get("init_command", "")).lower():
            messages.append(
                CheckWarning(
                    f"The SQLite database {alias!r} does not say journal_mode=WAL: readers and the writer block "
                    f"each other.",
                    hint="Set OPTIONS['init_command'] = 'PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL;'.",
                    id="phronomy.W010",
                )
            )
        synchronous = _SYNCHRONOUS.search(str(options.get("init_command", "")))
        if synchronous is not None and synchronous[1].upper() not in ("FULL", "EXTRA", "2", "3"):
            messages.append(
                Error(
                    f"The SQLite database {alias!r} sets synchronous={synchronous[1]}: a power failure would lose what "
                    f"was confirmed.",
                    hint="Set PRAGMA synchronous=FULL.",
                    id="phronomy.E015",
                )
            )
        if found.runtime == "hosted":
            messages.append(
                Error(
                    "PHRONOMY['RUNTIME'] is 'hosted', but its database is SQLite, which takes one process only.",
                    hint="Use PostgreSQL, or RUNTIME = 'embedded'.",
                    id="phronomy.E013",
                )
            )
    return messages + list(_routing(alias))


def _routing(alias: str) -> Iterable[CheckMessage]:
    from phronomy_django.models import AgentRoot

    chosen = {router.db_for_read(AgentRoot), router.db_for_write(AgentRoot)}
    if chosen != {alias}:
        yield Error(
            f"The routers send our tables to {sorted(chosen)}, but settings.PHRONOMY['DATABASE'] is {alias!r}.",
            hint="All our tables live on one alias; make both name it.",
            id="phronomy.E014",
        )


def check_agents(app_configs: Sequence[AppConfig] | None = None, **kwargs: Any) -> list[CheckMessage]:
    """E020: an unknown pool. E021: a model that cannot be reached as it is named. E022: one id for two agents."""
    found, _ = _settings()
    messages: list[CheckMessage] = [
        Error(problem, hint="Records name a definition by its id.", id="phronomy.E022")
        for problem in duplicates()
    ]
    for definition in definitions():
        name = definition.agent_class.__qualname__
        try:
            pools = {definition.llm_pool(index) for index in range(len(definition.adapters))}
        except PhronomyError as error:
            messages.append(Error(f"{name}.model: {error}", id="phronomy.E021", obj=definition.agent_class))
            continue
        pools |= {definition.tool_pool(tool) for tool in definition.tools.values() if not tool.cooperative}
        messages += [
            Error(
                f"{name} uses the pool {pool!r}, which settings.PHRONOMY['POOLS'] does not have.",
                hint=f"Add it, or use one of: {', '.join(sorted(found.pools))}.",
                id="phronomy.E020",
                obj=definition.agent_class,
            )
            for pool in sorted(pools - set(found.pools))
        ]
    return messages
