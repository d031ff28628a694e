"""The program that is killed: agents with every kind of effect, driven through every kind of barrier.

``python -m tests.crash.program`` is a server of forks: for each line ``{"scenario": …}`` on its standard input it forks
a child that plays the scenario, waits for it, and answers ``{"signal": …, "exit": …}``. A fork has a Django that is
set up and nothing else: no thread, no connection, no runtime.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any

import django


def main() -> None:
    django.setup()
    from tests.crash import scenarios  # imports the agents  # noqa: F401

    print("ready", flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        child = os.fork()
        if child == 0:
            _play(order)
        _, status = os.waitpid(child, 0)
        died = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
        ended = os.WEXITSTATUS(status) if os.WIFEXITED(status) else -1
        print(json.dumps({"signal": died, "exit": ended}), flush=True)


def _play(order: dict[str, Any]) -> None:
    from phronomy_django.engine import failpoints
    from tests.crash import scenarios

    report = Path(order["report"])
    code = 0
    try:
        if order.get("failpoint"):
            failpoints.arm(order["failpoint"], "kill", hit=order.get("hit", 1))
        with failpoints.watching():
            getattr(scenarios, order["scenario"])(order, scenarios.Report(report))
            if order.get("watch"):
                report.write_text(
                    json.dumps({"reached": failpoints.reached(), "declared": sorted(failpoints.declared())})
                )
    except BaseException:
        traceback.print_exc()
        code = 1
    os._exit(code)


if __name__ == "__main__":
    main()
