"""All tests on every supported pair of Python and Django.

``nox`` runs them all, ``nox -s "tests(3.12-django6)"`` one pair.
"""

from __future__ import annotations

import nox

PYTHONS = ("3.11", "3.12", "3.13")
DJANGOS = {"5.2": "Django>=5.2,<5.3", "6": "Django>=6"}
OLDEST_PYTHON_OF_DJANGO_6 = "3.12"

nox.options.sessions = ["tests"]

PAIRS = [
    nox.param(python, django, id=f"{python}-django{django}")
    for python in PYTHONS
    for django in DJANGOS
    if django == "5.2" or PYTHONS.index(python) >= PYTHONS.index(OLDEST_PYTHON_OF_DJANGO_6)
]


@nox.session
@nox.parametrize("python,django", PAIRS)
def tests(session: nox.Session, django: str) -> None:
    """Run the whole suite on SQLite and PostgreSQL."""
    session.install("--editable", ".[test]", DJANGOS[django])
    session.run("python", "-m", "tests", *session.posargs)


@nox.session(python=PYTHONS[0])
def lint(session: nox.Session) -> None:
    """Run the linters on the oldest supported Python, whose syntax everything has to keep to."""
    session.install("--editable", ".[dev]")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("python", "-m", "mypy")
    session.run("lint-imports")
