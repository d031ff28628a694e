"""The system checks: each id, raised by what it warns of and by nothing else."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.core.checks import run_checks
from django.core.management import call_command
from django.db import connections
from django.test import override_settings
from django.test.utils import override_settings as override

from example_project.support.agents import SupportDesk
from phronomy_django.agents import Agent, registry, tool
from phronomy_django.agents.registry import definition_of, register, unregister
from phronomy_django.domain.errors import ConfigurationError
from phronomy_django.llm import ScriptedLLM

SQLITE = {
    "ENGINE": "django.db.backends.sqlite3",
    "NAME": "unused.sqlite3",
    "OPTIONS": {"transaction_mode": "IMMEDIATE", "init_command": "PRAGMA journal_mode=WAL;"},
}


def ids(tag: str = "phronomy") -> list[str]:
    return sorted(str(message.id) for message in run_checks(tags=[tag]))


@pytest.mark.django_db
def test_a_sound_installation_has_nothing_to_tell() -> None:
    assert ids() == []
    call_command("check")


@contextmanager
def database(**changes: Any) -> Iterator[None]:
    """A second alias with these settings, chosen for our tables; nothing connects to it."""
    connections.settings["other"] = connections.settings["default"] | SQLITE | changes
    try:
        with override(PHRONOMY={"DATABASE": "other"}, DATABASE_ROUTERS=[_ToOther()]):
            yield
    finally:
        del connections["other"]
        del connections.settings["other"]


class _ToOther:
    def db_for_read(self, model: Any, **hints: Any) -> str:
        return "other"

    db_for_write = db_for_read


def test_a_sound_second_database_has_nothing_to_tell() -> None:
    with database():
        assert ids() == []


def test_an_unknown_alias_is_e010() -> None:
    with override_settings(PHRONOMY={"DATABASE": "nowhere"}):
        assert ids() == ["phronomy.E010"]


def test_another_kind_of_database_is_e011() -> None:
    with database(ENGINE="django.db.backends.dummy"):
        assert ids() == ["phronomy.E011"]


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ({}, ["phronomy.E012", "phronomy.W010"]),
        ({"transaction_mode": "DEFERRED", "init_command": "PRAGMA journal_mode=WAL"}, ["phronomy.E012"]),
        ({"transaction_mode": "immediate", "init_command": "pragma journal_mode = wal"}, []),
        ({"transaction_mode": "IMMEDIATE"}, ["phronomy.W010"]),
        (
            {
                "transaction_mode": "IMMEDIATE",
                "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL",
            },
            ["phronomy.E015"],
        ),
        (
            {
                "transaction_mode": "IMMEDIATE",
                "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous = 0",
            },
            ["phronomy.E015"],
        ),
        (
            {
                "transaction_mode": "IMMEDIATE",
                "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=EXTRA",
            },
            [],
        ),
    ],
)
def test_sqlite_that_would_fail_or_forget_is_told(options: dict[str, str], found: list[str]) -> None:
    with database(OPTIONS=options):
        assert ids() == found


def test_a_hosted_runtime_on_sqlite_is_e013() -> None:
    with database(), override_settings(PHRONOMY={"DATABASE": "other", "RUNTIME": "hosted"}):
        assert ids() == ["phronomy.E013"]


def test_routers_that_send_our_tables_elsewhere_are_e014() -> None:
    with database(), override_settings(PHRONOMY={"DATABASE": "other"}, DATABASE_ROUTERS=[]):
        assert ids() == ["phronomy.E014"]


def test_a_pool_on_celery_is_e002() -> None:
    with override_settings(PHRONOMY={"POOLS": {"tools": {"BACKEND": "celery"}}}):
        assert ids() == ["phronomy.E002"]


# --- agents -----------------------------------------------------------------------------------------------


@pytest.fixture
def registered() -> Iterator[Callable[..., type[Agent]]]:
    made: list[type[Agent]] = []

    def make(**attributes: Any) -> type[Agent]:
        attributes = {"definition_id": "tests.checked", "model": ScriptedLLM(["x"]), **attributes}
        made.append(register(type("Checked", (Agent,), attributes)))
        return made[-1]

    yield make
    for cls in made:
        unregister(cls)


def test_an_unknown_pool_is_e020_for_the_agent_and_for_its_tools(
    registered: Callable[..., type[Agent]],
) -> None:
    @tool(pool="nowhere")
    def look() -> str:
        """Look."""
        return ""

    cls = registered(pool="neither", tools=[look])
    messages = run_checks(tags=["phronomy"])
    assert [(message.id, message.obj) for message in messages] == [("phronomy.E020", cls)] * 2
    assert "'neither'" in messages[0].msg
    assert "'nowhere'" in messages[1].msg
    assert "default, llm" in str(messages[0].hint)


def test_a_model_that_cannot_be_reached_is_e021(registered: Callable[..., type[Agent]]) -> None:
    cls = registered(model="no-such-provider:x")
    (message,) = run_checks(tags=["phronomy"])
    assert (message.id, message.obj) == ("phronomy.E021", cls)
    assert "no-such-provider" in message.msg


def test_two_agents_with_one_id_in_installed_apps_are_e022_and_only_the_first_works(
    registered: Callable[..., type[Agent]], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = registered()
    other: dict[str, Any] = {}

    def discovered(name: str) -> None:
        attributes = {"definition_id": "tests.checked", "model": ScriptedLLM(["y"])}
        other["class"] = register(type("Other", (Agent,), attributes))

    monkeypatch.setattr(registry, "autodiscover_modules", discovered)
    registry.autodiscover()
    try:
        (message,) = run_checks(tags=["phronomy"])
        assert message.id == "phronomy.E022"
        assert "Checked" in message.msg
        assert "Other" in message.msg
        with pytest.raises(ConfigurationError, match="Give one of them another id"):
            other["class"].load("a")
        assert definition_of(first).agent_class is first
    finally:
        unregister(other["class"])
    assert ids() == []


def test_outside_the_start_a_second_agent_with_one_id_raises(registered: Callable[..., type[Agent]]) -> None:
    registered()
    with pytest.raises(ConfigurationError, match=r"'tests.checked'.*Checked.*Another"):
        register(type("Another", (Agent,), {"definition_id": "tests.checked", "model": ScriptedLLM(["y"])}))


def test_agents_py_of_every_installed_app_was_imported_at_the_start() -> None:
    known = {item.definition_id for item in registry.definitions()}
    assert "example_project.support.agents" in sys.modules
    assert {SupportDesk.definition_id} <= known
