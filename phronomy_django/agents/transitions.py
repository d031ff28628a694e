"""From the name of a barrier to its transition: with the application's hooks where the definition has them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from phronomy_django.agents.barriers import Barriers
from phronomy_django.agents.draft import Built
from phronomy_django.agents.hooks import ExecutionInfo, admission_hook, terminal_hook
from phronomy_django.agents.live import LiveAgent
from phronomy_django.agents.results import ExecutionResult
from phronomy_django.agents.run import Run, Start

__all__ = ["Transitions"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Transitions:
    """The transitions of one execution. Builds values only."""

    live: LiveAgent
    start: Start
    barriers: Barriers

    def build(self, run: Run, barrier: str, now: datetime) -> Built:
        barriers, definition = self.barriers, self.live.definition
        match barrier:
            case "b1" | "b1_b2":
                hook = admission_hook(definition, self._info()) if definition.has_on_admission else None
                return barriers.admission(run, self.start, now, dispatch=barrier == "b1_b2", hook=hook)
            case "b2" | "b3_b2" | "b5_b2":
                return barriers.dispatch(run, now, barrier)
            case "b3_b4":
                return barriers.tools(run, now)
            case "b3":
                return barriers.outcome(run, now)
            case "stop":
                return barriers.stop(run, now)
            case "b3_suspend":
                return barriers.suspend(run, now)
            case "b4":
                return barriers.authorize(run, now)
            case "resume":
                return barriers.resume(run, now)
            case "unresolved":
                return barriers.unresolved(run, now)
            case _:
                hook = None
                if definition.has_on_terminal:
                    hook = terminal_hook(definition, self._info(), self.result(run))
                return barriers.end(run, now, barrier, hook)

    def result(self, run: Run) -> ExecutionResult:
        """How the run ends, as its callers and its hook are told."""
        ending = run.ending
        assert ending is not None  # noqa: S101 - asked for only at the end
        return ExecutionResult(
            execution_id=run.execution_id,
            status=ending.status,
            usage=run.usage,
            reason=ending.reason,
            error=ending.failure,
            raw_output=ending.output,
            decoder=self.live.definition.decode_output,
        )

    def _info(self) -> ExecutionInfo:
        start = self.start
        return ExecutionInfo(
            agent_id=self.live.agent_id,
            execution_id=start.execution_id,
            input=start.message,
            durable_context=start.durable_context,
        )
