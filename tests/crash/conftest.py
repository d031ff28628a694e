"""The fork server of one test, and the database's own account of what happened."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.crash.account import Account

__all__ = ["Program"]

ROOT = Path(__file__).resolve().parent.parent.parent


class Program:
    """``tests.crash.program``: each ``play`` is one process that lives and dies."""

    def __init__(self, environment: Mapping[str, str], directory: Path) -> None:
        self.directory = directory
        self.effects = directory / "effects"
        self._reports = 0
        with (directory / "errors").open("w") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.crash.program"],
                env={**environment, "PHRONOMY_TEST_EFFECTS": str(self.effects)},
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        if self._line() != "ready":
            self.close()
            raise RuntimeError(self.errors())

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def play(self, scenario: str, **order: Any) -> tuple[int, int, list[str]]:
        """Signal, exit code, and what the process had told its caller before its end."""
        self._reports += 1
        report = self.directory / f"report-{self._reports}"
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"scenario": scenario, "report": str(report), **order}) + "\n")
        self._process.stdin.flush()
        ended = json.loads(self._line())
        told = report.read_text().splitlines() if report.exists() else []
        return ended["signal"], ended["exit"], told

    def errors(self) -> str:
        return (self.directory / "errors").read_text()

    def account(self, name: str) -> Account:
        return Account(name, self.effects.read_text().split() if self.effects.exists() else [])

    def close(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(30)
        self._process.stdout.close()


@pytest.fixture
def program(subprocess_environment: Mapping[str, str], tmp_path: Path) -> Iterator[Program]:
    started = Program(subprocess_environment, tmp_path)
    yield started
    started.close()
