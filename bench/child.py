"""A measured process of its own: requests and answers are lines of JSON on its standard input and output."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

__all__ = ["Child", "serve"]

ROOT = Path(__file__).resolve().parent.parent
_READY = "ready"


class Child:
    """``python -m <module>`` with ``database`` as its database; it answers one request at a time."""

    def __init__(self, module: str, database: str) -> None:
        self.module = module
        self._process = subprocess.Popen(
            [sys.executable, "-m", module],
            cwd=ROOT,
            env=os.environ | {"BENCH_DATABASE": database},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def wait_ready(self) -> None:
        """Return once the child has been prepared and serves: its start disturbs nobody's figures."""
        assert self._process.stdout is not None
        if self._process.stdout.readline().strip() != _READY:
            raise RuntimeError(f"{self.module} ended with exit code {self._process.wait()} before it served.")

    def ask(self, **request: Any) -> Any:
        """The answer to ``request``. Raises ``RuntimeError`` with the child's own traceback."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.module} ended with exit code {self._process.wait()}.")
        answer = json.loads(line)
        if "error" in answer:
            raise RuntimeError(f"{self.module} failed:\n{answer['error']}")
        return answer["result"]

    def close(self) -> None:
        """End the process: it sees the end of its input; one that does not end is killed."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def serve(answer: Callable[..., Any]) -> None:
    """The child's side: call ``answer(**request)`` for each request until the input ends.

    Whatever else prints goes to standard error.
    """
    channel, sys.stdout = sys.stdout, sys.stderr
    print(_READY, file=channel, flush=True)
    for line in sys.stdin:
        try:
            said: dict[str, Any] = {"result": answer(**json.loads(line))}
        except BaseException:
            said = {"error": traceback.format_exc()}
        channel.write(json.dumps(said) + "\n")
        channel.flush()
