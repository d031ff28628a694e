"""``settings.PHRONOMY``: every typo is told, and a test that overrides it is seen."""

from __future__ import annotations

from typing import Any

import pytest
from django.core.management import call_command
from django.core.management.base import SystemCheckError
from django.test import override_settings

from phronomy_django.conf import PhronomySettings, PoolSettings, phronomy_settings, read_settings
from phronomy_django.domain.errors import ConfigurationError


def test_without_a_setting_the_defaults_hold() -> None:
    found, problems = read_settings({})
    assert (found, problems) == (PhronomySettings(), [])
    assert (found.runtime, found.database) == ("embedded", "default")
    assert set(found.pools) == {"default", "llm"}


def test_every_key_is_read() -> None:
    raw = {
        "RUNTIME": "inline",
        "DATABASE": "other",
        "POOLS": {"tools": {"BACKEND": "thread", "SIZE": 3, "QUEUE_SIZE": 7}, "llm": {"SIZE": 9}},
        "LEASE_SECONDS": 12,
        "WRITER_BATCH": 5,
        "READER_THREADS": 2,
        "DRAIN_SECONDS": 0.5,
        "STOP_SECONDS": 1.5,
        "MAX_INPUT_BYTES": 100,
        "MAX_CONTEXT_BYTES": 50,
        "MAX_LIVE_AGENTS": 10,
    }
    found, problems = read_settings(raw)
    assert problems == []
    for key, value in raw.items():
        if key != "POOLS":
            assert getattr(found, key.lower()) == value
    assert found.pools["tools"] == PoolSettings(backend="thread", size=3, queue_size=7)
    assert found.pools["default"] == PoolSettings()
    with pytest.raises(TypeError):
        found.pools["x"] = PoolSettings()  # type: ignore[index]
    with pytest.raises(AttributeError):
        found.runtime = "hosted"  # type: ignore[misc]


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("raw", "told"),
    [
        ([], "is a list; it has to be a dict"),
        ({"RUNTIM": "inline"}, "unknown key 'RUNTIM'. Did you mean 'RUNTIME'?"),
        ({"runtime": "inline"}, "unknown key 'runtime'. Did you mean 'RUNTIME'?"),
        ({"XYZ": 1}, "Known are DATABASE, DRAIN_SECONDS"),
        ({7: 1}, "unknown key 7"),
        ({"RUNTIME": "embeded"}, "['RUNTIME'] is 'embeded'; use one of"),
        ({"RUNTIME": None}, "['RUNTIME'] is None"),
        ({"DATABASE": 3}, "['DATABASE'] is 3"),
        ({"LEASE_SECONDS": "30"}, "['LEASE_SECONDS'] is '30'"),
        ({"LEASE_SECONDS": 0}, "['LEASE_SECONDS'] is 0"),
        ({"LEASE_SECONDS": float("nan")}, "['LEASE_SECONDS'] is nan"),
        ({"WRITER_BATCH": True}, "['WRITER_BATCH'] is True"),
        ({"WRITER_BATCH": 1.5}, "['WRITER_BATCH'] is 1.5"),
        ({"MAX_INPUT_BYTES": -1}, "['MAX_INPUT_BYTES'] is -1"),
        ({"POOLS": []}, "['POOLS'] is a list"),
        ({"POOLS": {"tools": 8}}, "['POOLS']['tools'] is a int"),
        ({"POOLS": {"tools": {"SIZES": 8}}}, "['tools'] has an unknown key 'SIZES'. Did you mean 'SIZE'?"),
        ({"POOLS": {"tools": {"SIZE": 0}}}, "['tools']['SIZE'] is 0"),
        ({"POOLS": {"tools": {"BACKEND": "threads"}}}, "['BACKEND'] is 'threads'; use one of"),
    ],
)
def test_what_does_not_fit_is_told_by_name(raw: Any, told: str) -> None:
    _, problems = read_settings(raw)
    assert len(problems) == 1
    assert told in problems[0]
    with override_settings(PHRONOMY=raw):
        with pytest.raises(ConfigurationError) as caught:
            phronomy_settings()
        assert told in str(caught.value)
        with pytest.raises(SystemCheckError, match=r"phronomy\.E001"):
            call_command("check")


def test_all_problems_are_told_at_once() -> None:
    _, problems = read_settings({"A": 1, "RUNTIME": "x", "POOLS": {"p": {"B": 1, "SIZE": "1"}}})
    assert len(problems) == 4


def test_an_override_is_seen_and_forgotten() -> None:
    before = phronomy_settings()
    with override_settings(PHRONOMY={"LEASE_SECONDS": 7}):
        assert phronomy_settings().lease_seconds == 7
    assert phronomy_settings() == before
    assert phronomy_settings() is phronomy_settings()
