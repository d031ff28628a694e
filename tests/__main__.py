"""``python -m tests [words for pytest]``: all tests on SQLite, then those with a database on PostgreSQL.

Both runs measure one common branch coverage. The exit code is 0 only if both passed and the coverage is
enough. What is printed last is pytest's own summary of each run.
"""

from __future__ import annotations

import argparse
import io
import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import BinaryIO

from tests.postgres import database_url

ROOT = Path(__file__).resolve().parent.parent
DATA_FILES = {"SQLite": ".coverage.sqlite", "PostgreSQL": ".coverage.postgres"}

_NOTHING_COLLECTED = 5
_SUMMARY = re.compile(rb"^(?:\x1b\[[0-9;]*m)*=+ .*\d+ .* in [\d.]+s.*=+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """How one run of pytest ended: its exit code and the last line that it printed about itself."""

    database: str
    exit_code: int
    summary: str

    @property
    def passed(self) -> bool:
        return self.exit_code == 0


def run_pytest(database: str, settings: str, words: Sequence[str]) -> Run:
    """Run pytest with ``settings`` in a process of its own and show its output as it comes."""
    print(f"\n### {database}", flush=True)
    command = [sys.executable, "-m", "pytest", f"--ds={settings}", "--cov", "--cov-report=", *words]
    if sys.stdout.isatty():
        command.append("--color=yes")
    environment = os.environ | {"COVERAGE_FILE": DATA_FILES[database]}
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE) as process:
        assert isinstance(process.stdout, io.BufferedReader)
        try:
            summary = copy_output(process.stdout, sys.stdout.buffer)
        except BaseException:
            process.terminate()
            raise
    return Run(database=database, exit_code=process.returncode, summary=summary)


def copy_output(source: io.BufferedReader, target: BinaryIO) -> str:
    """Copy bytes as they come, and return the last line that looks like pytest's summary."""
    summary, line = b"", b""
    while chunk := source.read1():
        target.write(chunk)
        target.flush()
        *complete, line = (line + chunk).split(b"\n")
        for candidate in complete:
            if _SUMMARY.match(candidate):
                summary = candidate
    return summary.decode(errors="replace")


def report_coverage(minimum: float) -> bool:
    """Combine what both runs measured and print it; whether it reaches ``minimum`` per cent."""
    data = [name for name in DATA_FILES.values() if (ROOT / name).exists()]
    if not data:
        return True
    coverage = [sys.executable, "-m", "coverage"]
    print("\n### Branch coverage of both runs", flush=True)
    subprocess.run([*coverage, "combine", "--quiet", *data], cwd=ROOT, check=True)
    report = subprocess.run([*coverage, "report", f"--fail-under={minimum:g}"], cwd=ROOT, check=False)
    return report.returncode == 0


def main(words: Sequence[str]) -> int:
    """Run both; returns the exit code."""
    signal.signal(signal.SIGTERM, _stop)  # so that the server is stopped, as at any other end
    parser = argparse.ArgumentParser(prog="python -m tests", description="Run all tests on both databases.")
    parser.add_argument("--coverage-min", type=float, default=0.0, help="per cent; less fails")
    parser.add_argument("--database", choices=("sqlite", "postgres"), help="only this one")
    parser.add_argument("-n", "--workers", default="2", help="processes of pytest-xdist; 0 for none")
    options, rest = parser.parse_known_args(words)
    for name in (".coverage", *DATA_FILES.values()):
        (ROOT / name).unlink(missing_ok=True)

    common = ["-n", options.workers, *rest]
    runs: list[Run] = []
    if options.database != "postgres":
        runs.append(run_pytest("SQLite", "tests.settings_sqlite", common))
    if options.database != "sqlite":
        database_url()  # starts the server here, once for all workers
        only = ["--database-only"] if runs else []
        run = run_pytest("PostgreSQL", "tests.settings_postgres", [*only, *common])
        if only and run.exit_code == _NOTHING_COLLECTED:  # the chosen tests use no database
            run = Run(database=run.database, exit_code=0, summary=run.summary)
        runs.append(run)
    covered = report_coverage(options.coverage_min)

    print("\n### Summary", flush=True)
    for run in runs:
        print(f"{run.database}: exit code {run.exit_code}\n{run.summary or '(no summary)'}", flush=True)
    if not covered:
        print(f"FAILED: the coverage is below {options.coverage_min:g} %.", flush=True)
    return 0 if covered and all(run.passed for run in runs) else 1


def _stop(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
