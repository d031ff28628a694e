"""The house rules that no single module can hold: who imports whom, migrations, and what a file may say."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import tomllib
from importlib.metadata import requires
from pathlib import Path

import pytest
from django.core.management import call_command

ROOT = Path(__file__).resolve().parent.parent

# Put together here, so that this file does not hold what it looks for.
FORBIDDEN = {
    "a directory of somebody's machine": re.compile(
        "|".join("/" + name + "/" for name in ("root", "work", "home"))
    ),
    "a package index": re.compile("index" + "-url|PIP_" + "INDEX|trusted" + "-host", re.IGNORECASE),
    "a private address": re.compile(
        r"\b(?:10\.[0-9]+|192\.168|172\.(?:1[6-9]|2[0-9]|3[01]))\.[0-9]+\.[0-9]+\b"
    ),
}


def tracked_files() -> list[Path]:
    """The files of the repository; skips the test where this is no repository (an unpacked sdist)."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a git repository")
    listing = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True)
    return [path for name in listing.stdout.decode().split("\0") if name and (path := ROOT / name).is_file()]


def test_the_arrows_between_the_rooms_never_point_up() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "from importlinter.cli import lint_imports_command; lint_imports_command()"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"COLUMNS": "200"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 broken" in done.stdout


@pytest.mark.parametrize("room", ["engine", "domain"])
def test_the_rooms_below_the_framework_leave_django_unimported(room: str) -> None:
    code = f"import sys, phronomy_django.{room}; print('django' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "False"


@pytest.mark.django_db
def test_every_change_of_a_model_has_its_migration() -> None:
    output = io.StringIO()
    call_command("makemigrations", check=True, dry_run=True, stdout=output)  # SystemExit if one is missing
    assert "No changes detected" in output.getvalue()


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("app", ["phronomy", "support", "testapp"])
def test_migrations_run_backwards_and_forwards_again(app: str) -> None:
    call_command("migrate", app, "zero", verbosity=0)
    call_command("migrate", app, verbosity=0)
    call_command("migrate", check_unapplied=True, verbosity=0)  # SystemExit if one is not applied


def test_no_file_tells_of_the_machine_it_was_written_on() -> None:
    found = [
        f"{path.relative_to(ROOT)}: {what}"
        for path in tracked_files()
        for what, pattern in FORBIDDEN.items()
        if pattern.search(path.read_text(encoding="utf-8", errors="replace"))
    ]
    assert found == []


def test_every_dependency_is_explained() -> None:
    explained = (ROOT / "docs" / "dependencies.md").read_text(encoding="utf-8").lower()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    wanted = [*(requires("phronomy-django") or ()), *project["build-system"]["requires"]]
    wanted += project["project"]["dependencies"]
    wanted += [line for lines in project["project"]["optional-dependencies"].values() for line in lines]
    names = {re.split(r"[\s\[<>=!~;]", line, maxsplit=1)[0].lower() for line in wanted} - {"phronomy-django"}
    assert names
    assert sorted(name for name in names if f"| `{name}` |" not in explained) == []
