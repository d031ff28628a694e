"""What the rows say of the agents of one scenario, checked against what really happened."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from phronomy_django.models import (
    AgentExecution,
    AgentRoot,
    JournalRecord,
    LLMCall,
    OffloadOperation,
    ToolInvocation,
)
from tests.testapp.models import LedgerEntry

__all__ = ["Account"]

TERMINAL = {"completed", "cancelled", "failed"}


class Account:
    """Every check is an equality of sets or multisets: nothing lost, nothing twice, nothing without its record."""

    def __init__(self, name: str, effects: Sequence[str]) -> None:
        self.name = name
        self.roots = list(AgentRoot.objects.filter(agent_id__startswith=f"{name}-").order_by("agent_id"))
        self.executions = list(AgentExecution.objects.filter(agent__in=self.roots))
        self.ids = {execution.execution_id for execution in self.executions}
        self.tools = list(ToolInvocation.objects.filter(execution__in=self.ids))
        self.operations = {
            operation.subject_id: operation
            for operation in OffloadOperation.objects.filter(execution__in=self.ids)
        }
        self.effects = Counter(effects)
        self.ledger = Counter(LedgerEntry.objects.values_list("reference", flat=True))
        self.hooked = {root.pk for root in self.roots if "HookedAgent" in root.agent_id}

    def describe(self, agent_ids: Sequence[str]) -> str:
        """The rows of these agents, for whoever reads a failure."""
        lines = []
        for execution in self.executions:
            if execution.agent.agent_id in agent_ids:
                kinds = list(
                    JournalRecord.objects.filter(execution=execution)
                    .order_by("sequence")
                    .values_list("kind", flat=True)
                )
                operations = OffloadOperation.objects.filter(execution=execution)
                lines.append(
                    f"{execution.agent.agent_id} {execution.execution_id} {execution.status} {execution.phase} "
                    f"{execution.recovery_disposition!r}: {kinds}; "
                    f"{[(o.kind, o.state, o.attempt, o.runtime_id) for o in operations]}"
                )
        return "\n".join(["stuck:", *lines])

    def check(self) -> None:
        self.check_journal()
        self.check_hooks()
        self.check_transactional_tools()
        self.check_outside_effects()
        self.check_open_and_ended()

    def check_journal(self) -> None:
        for root in self.roots:
            records = JournalRecord.objects.filter(agent=root).order_by("sequence")
            sequences = list(records.values_list("sequence", flat=True))
            first = sequences[0] if sequences else root.journal_position + 1
            assert sequences == list(range(first, root.journal_position + 1)), root.agent_id
            assert root.lifecycle_status == "purged" or first == 1

    def check_hooks(self) -> None:
        """An admission or an end is recorded exactly if its hook's row is there, once."""
        for execution in self.executions:
            if execution.agent_id in self.hooked:
                assert self.ledger[f"admitted {execution.execution_id}"] == 1
                ended = int(execution.status == "completed")
                assert self.ledger[f"completed {execution.execution_id}"] == ended
        mentioned = {line.split()[1] for line in self.ledger if " " in line}
        recorded = set(AgentExecution.objects.values_list("execution_id", flat=True))
        assert mentioned <= recorded, "a hook's row without its execution"

    def check_transactional_tools(self) -> None:
        for invocation in self.tools:
            if invocation.tool_name == "book":
                operation = self.operations[invocation.tool_invocation_id]
                happened = self.ledger[invocation.tool_invocation_id]
                assert (
                    happened == int(operation.state == "succeeded") == int(invocation.status == "succeeded")
                )

    def check_outside_effects(self) -> None:
        """Never twice; never without a committed start; a recorded success has happened."""
        for invocation in self.tools:
            if invocation.tool_name == "send":
                happened = self.effects[invocation.tool_invocation_id]
                operation = self.operations.get(invocation.tool_invocation_id)
                assert happened <= 1
                if operation is None:  # a person has not approved it
                    assert not happened
                    assert invocation.status in ("planned", "rejected", "cancelled")
                    continue
                assert not happened or operation.state in ("started", "succeeded")
                assert happened or operation.state != "succeeded"
        known = {str(key) for key in ToolInvocation.objects.values_list("tool_invocation_id", flat=True)}
        assert set(self.effects) <= known, "an effect that no row tells of"

    def check_open_and_ended(self) -> None:
        busy = {root.pk for root in self.roots if root.lifecycle_status == "busy"}
        open_ = [execution for execution in self.executions if execution.status not in TERMINAL]
        assert busy == {execution.agent_id for execution in open_}
        assert len(open_) == len(busy)
        for execution in self.executions:
            if execution.status in TERMINAL:
                calls = LLMCall.objects.filter(execution=execution).values_list("status", flat=True)
                assert set(calls) <= {"succeeded", "failed", "cancelled"}
                assert (execution.result_content_id is not None) == (execution.status == "completed")
        answered = Counter(
            JournalRecord.objects.filter(execution__in=self.ids, kind="tool_result").values_list(
                "execution", flat=True
            )
        )
        for execution in self.executions:
            asked = sum(invocation.execution_id == execution.execution_id for invocation in self.tools)
            told = answered[execution.execution_id]
            assert told == asked or (told < asked and execution.status not in TERMINAL)

    def keeps(self, told: Sequence[str]) -> None:
        """What a process told its caller is in the rows, whatever became of the process."""
        status = {execution.execution_id: execution.status for execution in self.executions}
        purged = {root.agent_id for root in self.roots if root.lifecycle_status == "purged"}
        stops = {execution.execution_id: execution.stop_kind for execution in self.executions}
        for line in told:
            match line.split():
                case [_, agent_id, *_] if agent_id in purged:
                    pass  # its history is gone, as was asked for
                case ["ended", _, execution_id, ended]:
                    assert status[execution_id] == ended, line
                case ["suspended", _, execution_id]:
                    assert execution_id in status, line
                case ["stopped", _, execution_id]:
                    assert stops[execution_id] == "cancel", line
                case _:
                    raise AssertionError(line)
