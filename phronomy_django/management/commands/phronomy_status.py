"""``manage.py phronomy_status``: how agents and runtimes are; exit code 1 if something is wrong."""

from __future__ import annotations

import json
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from phronomy_django.health import check_health


class Command(BaseCommand):
    help = (
        "Show unfinished executions, what waits for people, and runtimes. Exit code 1 if something is wrong."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--json", action="store_true", help="one JSON object on standard output")

    def handle(self, *args: Any, **options: Any) -> None:
        health = check_health()
        if options["json"]:
            self.stdout.write(json.dumps(health.as_json(), indent=1))
        else:
            counts = ", ".join(f"{count} {status}" for status, count in sorted(health.executions.items()))
            waiting = health.waiting_for_people
            self.stdout.write(f"Executions under way: {counts or 'none'}")
            self.stdout.write(
                f"Waiting for people: {waiting['approvals']} approvals, {waiting['resolutions']} unknown outcomes"
                + (" (manage.py phronomy_recover lists them)" if any(waiting.values()) else "")
            )
            for row in health.runtimes:
                silent = "silent" if row["silent"] else "alive"
                self.stdout.write(
                    f"Runtime {row['host']}/{row['pid']}: {silent}, last heartbeat {row['heartbeat_at']}"
                )
            if not health.runtimes:
                self.stdout.write("Runtimes: none is running")
            for problem in health.problems:
                self.stdout.write(self.style.ERROR(problem))
            if health.healthy:
                self.stdout.write("Everything is well.")
        if not health.healthy:
            raise SystemExit(1)
