"""What readers do for the agents room, on pool threads: load and claim an agent, read a stored end."""

from __future__ import annotations

import json

from phronomy_django.agents.definition import Definition
from phronomy_django.agents.messages import LoadedAgent
from phronomy_django.agents.results import ExecutionResult
from phronomy_django.agents.run import ContextMessage, Failure
from phronomy_django.agents.services import Services
from phronomy_django.domain.messages import Usage, message_from_json
from phronomy_django.domain.statuses import ExecutionStatus
from phronomy_django.store import ExecutionSnapshot, claim_root, find_by_idempotency_key, load_context

__all__ = ["load_agent", "stored_result"]


def load_agent(services: Services, agent_id: str, size: int, key: str | None) -> LoadedAgent:
    """Claim the root for this runtime, then read what its next run needs (never the other way round)."""
    using = services.database
    root = claim_root(agent_id, services.runtime_id, services.lease_seconds, using)
    context, knowledge = [], []
    for item in load_context(root.root_id, root.transcript_generation, size, using):
        if item.channel == "knowledge":
            knowledge.append(str(json.loads(item.body)))
        else:
            context.append(ContextMessage(message_from_json(json.loads(item.body)), item.body))
    earlier = None if key is None else find_by_idempotency_key(root.root_id, key, using)
    return LoadedAgent(root, tuple(context), tuple(knowledge), earlier)


def stored_result(found: ExecutionSnapshot, definition: Definition | None) -> ExecutionResult:
    """The result of an execution as its rows tell it; without a definition the output is plain JSON."""
    failure = None
    if found.error is not None:
        value = json.loads(found.error)
        failure = Failure(value["type"], value["message"])
    return ExecutionResult(
        execution_id=found.execution_id,
        status=ExecutionStatus(found.status),
        usage=Usage(found.input_tokens, found.output_tokens, found.cost),
        reason=found.terminal_reason,
        error=failure,
        raw_output=found.result,
        decoder=json.loads if definition is None else definition.decode_output,
    )
