"""What ``python -m tests`` relies on: the URLs of databases, the summary of a run, the choice of tests."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from django.db import connection

from tests.__main__ import ROOT, copy_output
from tests.postgres import database_settings, with_database
from tests.testapp.models import Order


def test_a_url_with_a_host_becomes_djangos_settings() -> None:
    found = database_settings("postgresql://me:p%40ss@db.example:5433/site?sslmode=require")
    assert found == {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": "site",
        "USER": "me",
        "PASSWORD": "p@ss",
        "HOST": "db.example",
        "PORT": "5433",
        "OPTIONS": {"sslmode": "require"},
    }


def test_a_url_with_a_socket_directory_becomes_djangos_settings() -> None:
    found = database_settings("postgresql://postgres:@/postgres?host=/tmp/a%20b")
    assert (found["HOST"], found["PORT"], found["USER"], found["OPTIONS"]) == ("/tmp/a b", "", "postgres", {})


@pytest.mark.parametrize("url", ["mysql://localhost/site", "sqlite:///file", "postgresql://localhost/"])
def test_a_url_that_cannot_be_used_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="DATABASE_URL"):
        database_settings(url)


@pytest.mark.parametrize(
    "url",
    ["postgresql://me:p%40ss@db.example:5433/site?sslmode=require", "postgresql://me:@/site?host=/tmp/a%20b"],
)
def test_only_the_name_of_the_database_changes(url: str) -> None:
    expected = database_settings(url) | {"NAME": "test site"}
    assert database_settings(with_database(url, "test site")) == expected


@pytest.mark.parametrize(
    "summary",
    [
        "=========================== 12 passed in 3.04s ===========================",
        "=== 1 failed, 11 passed, 3 deselected, 2 warnings in 62.10s (0:01:02) ===",
        "\x1b[32m===== \x1b[32m\x1b[1m12 passed\x1b[0m\x1b[32m in 3.04s\x1b[0m\x1b[32m =====\x1b[0m",
    ],
)
def test_the_last_summary_is_kept_and_everything_is_shown(summary: str) -> None:
    output = f"=== 9 passed in 1.00s ===\n....\n{summary}\nafterwards\n".encode()
    target = io.BytesIO()
    assert copy_output(io.BufferedReader(io.BytesIO(output)), target) == summary
    assert target.getvalue() == output


def test_output_without_a_summary_has_none() -> None:
    assert copy_output(io.BufferedReader(io.BytesIO(b"Killed")), io.BytesIO()) == ""


CASES = """
    import pytest
    from django.test import TestCase

    def test_plain(): pass
    def test_fixture(db): pass
    @pytest.mark.django_db
    def test_mark(): pass
    @pytest.mark.sqlite
    def test_sqlite(): pass
    @pytest.mark.postgres
    def test_postgres(): pass
    class TestDjango(TestCase):
        def test_case(self): pass
"""


@pytest.mark.parametrize(
    ("settings", "words", "expected"),
    [
        ("tests.settings_sqlite", (), {"plain", "fixture", "mark", "case", "sqlite"}),
        ("tests.settings_postgres", ("--database-only",), {"fixture", "mark", "case", "postgres"}),
    ],
)
def test_each_run_takes_the_tests_of_its_database(
    tmp_path: Path, settings: str, words: tuple[str, ...], expected: set[str]
) -> None:
    file = tmp_path / "test_cases.py"
    file.write_text("\n".join(line[4:] for line in CASES.splitlines()))
    command = [
        sys.executable,
        "-m",
        "pytest",
        "--collect-only",
        "-q",
        f"--ds={settings}",
        "-p",
        "tests.conftest",
    ]
    done = subprocess.run(
        [*command, "-c", str(ROOT / "pyproject.toml"), "--rootdir", str(ROOT), *words, str(file)],
        cwd=ROOT,
        env=os.environ | {"DATABASE_URL": "postgresql://nobody@/nowhere"},  # collecting connects to nothing
        capture_output=True,
        text=True,
        check=False,
    )
    found = {line.rpartition("::test_")[2] for line in done.stdout.splitlines() if "::test_" in line}
    assert found == expected, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("lint", "test", "expected"), [(0, 0, "passed"), (2, 0, "failed"), (0, 2, "failed"), (2, 2, "failed")]
)
def test_ci_passes_only_if_both_targets_did_and_always_runs_both(
    tmp_path: Path, lint: int, test: int, expected: str
) -> None:
    write_script(tmp_path / "make", f'echo "ran $1"; case "$1" in lint) exit {lint};; *) exit {test};; esac')
    environment = os.environ | {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(
        [ROOT / ".ci" / "run"], env=environment, capture_output=True, text=True, check=False
    )
    assert ("passed" if done.returncode == 0 else "failed") == expected
    assert [line for line in done.stdout.splitlines() if line.startswith("ran")] == ["ran lint", "ran test"]


@pytest.mark.parametrize(
    ("script", "words"),
    [
        (
            '[ "$1" = -V ] && echo "Python 3.10.13" || exit 1',
            "is Python 3.10.13; phronomy_django needs Python 3.11",
        ),
        ('[ "$1" = -c ]', "apt install python3-venv"),
        (None, "Install Python 3.11 or newer"),
    ],
)
def test_make_says_what_is_wrong_with_the_python_of_the_machine(
    tmp_path: Path, script: str | None, words: str
) -> None:
    python, venv = tmp_path / "python3", tmp_path / "venv"
    if script is not None:
        write_script(python, script)
    done = subprocess.run(
        ["make", f"{venv}/pyvenv.cfg", f"PYTHON={python}", f"VENV={venv}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert words in done.stderr
    assert not venv.exists()


def write_script(path: Path, body: str) -> None:
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)


@pytest.mark.django_db(transaction=True)
def test_a_process_that_a_test_starts_sees_the_same_database(
    subprocess_environment: Mapping[str, str],
) -> None:
    Order.objects.create(number="seen")
    code = (
        "import django; django.setup()\n"
        "from tests.testapp.models import Order\n"
        "from django.db import connection\n"
        "print(connection.vendor, Order.objects.get().number)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env=subprocess_environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == [connection.vendor, "seen"]


@pytest.mark.sqlite
@pytest.mark.django_db(transaction=True)
def test_sqlite_is_a_durable_file_that_threads_share() -> None:
    assert Path(str(connection.settings_dict["NAME"])).is_file()
    with connection.cursor() as cursor:
        modes = [cursor.execute(f"PRAGMA {name}").fetchone()[0] for name in ("journal_mode", "synchronous")]
    assert modes == ["wal", 2]
    assert connection.settings_dict["OPTIONS"]["transaction_mode"] == "IMMEDIATE"


@pytest.mark.postgres
@pytest.mark.django_db
def test_postgresql_is_a_server_that_waits_for_its_disk() -> None:
    with connection.cursor() as cursor:
        modes = [cursor.execute(f"SHOW {name}").fetchone()[0] for name in ("fsync", "synchronous_commit")]
    assert modes == ["on", "on"]
