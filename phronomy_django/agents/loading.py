"""What readers do for the agents room, on pool threads: load and claim an agent, read a stored end."""

from __future__ import annotations

import json

from phronomy_django.agents.definition import Definition
from phronomy_django.agents.live import LiveAgent, Position, window
from phronomy_django.agents.messages import LoadedAgent, ResumeExecution
from phronomy_django.agents.rehydration import rehydrate
from phronomy_django.agents.results import ExecutionResult
from phronomy_django.agents.run import ContextMessage, Failure
from phronomy_django.agents.services import Services
from phronomy_django.domain.errors import DefinitionMismatchError
from phronomy_django.domain.messages import Usage, message_from_json
from phronomy_django.domain.statuses import ExecutionStatus, LifecycleStatus
from phronomy_django.store import (
    ExecutionSnapshot,
    RootSnapshot,
    claim_root,
    find_by_idempotency_key,
    find_open,
    load_context,
    load_execution,
    load_unfinished,
)

__all__ = ["live_agent", "load_agent", "load_unfinished_agent", "mismatch_of", "stored_result"]

Context = tuple[tuple[ContextMessage, ...], tuple[str, ...]]


def load_agent(services: Services, agent_id: str, size: int, key: str | None) -> LoadedAgent:
    """Claim the root for this runtime, then read what its next run needs (never the other way round)."""
    using = services.database
    root = claim_root(agent_id, services.runtime_id, services.lease_seconds, using)
    context, knowledge = _context(root, size, using, None)
    earlier = None if key is None else find_by_idempotency_key(root.root_id, key, using)
    busy = root.lifecycle_status == LifecycleStatus.BUSY
    return LoadedAgent(root, context, knowledge, earlier, find_open(root.root_id, using) if busy else None)


def load_unfinished_agent(
    services: Services, request: ResumeExecution, running: frozenset[str]
) -> LoadedAgent:
    """Claim the root, then read its unfinished execution and work out where that goes on (HARD_POINTS 2)."""
    using, definition = services.database, request.definition
    root = claim_root(request.agent_id, services.runtime_id, services.lease_seconds, using)
    unfinished = load_unfinished(root.root_id, services.runtime_id, using)
    if unfinished is None or (request.execution_id and unfinished.execution_id != request.execution_id):
        earlier = load_execution(request.execution_id, using) if request.execution_id else None
        return LoadedAgent(root, (), (), earlier)
    mismatch = mismatch_of(root, definition)
    if mismatch is not None or definition is None:
        return LoadedAgent(root, (), (), unfinished=unfinished, mismatch=mismatch)
    context, knowledge = _context(root, definition.context_window, using, unfinished.base_journal_position)
    rehydrated = rehydrate(
        definition,
        unfinished,
        history=window(context, definition.context_window),
        knowledge=knowledge,
        still_runs=running.__contains__,
    )
    return LoadedAgent(root, context, knowledge, unfinished=unfinished, rehydrated=rehydrated)


def _context(root: RootSnapshot, size: int, using: str, until: int | None) -> Context:
    context, knowledge = [], []
    for item in load_context(root.root_id, root.transcript_generation, size, using, until=until):
        if item.channel == "knowledge":
            knowledge.append(str(json.loads(item.body)))
        else:
            context.append(ContextMessage(message_from_json(json.loads(item.body)), item.body))
    return tuple(context), tuple(knowledge)


def mismatch_of(root: RootSnapshot, definition: Definition | None) -> DefinitionMismatchError | None:
    """The error that names both, if this process has another definition or none (rule 10)."""
    made_by = f"{root.definition_id!r} version {root.definition_version}"
    if definition is None:
        return DefinitionMismatchError(
            f"Agent {root.agent_id!r} was made by definition {made_by}; this process has no definition of that id."
        )
    if (root.definition_id, root.definition_version) == (
        definition.definition_id,
        definition.definition_version,
    ):
        return None
    return DefinitionMismatchError(
        f"Agent {root.agent_id!r} was made by definition {made_by}; this process has {definition.definition_id!r} "
        f"version {definition.definition_version}."
    )


def live_agent(
    root: RootSnapshot,
    definition: Definition | None,
    context: tuple[ContextMessage, ...],
    knowledge: tuple[str, ...],
) -> LiveAgent:
    """A root as it was claimed, live. Without a definition it can be held and nothing else."""
    return LiveAgent(
        root.root_id,
        root.agent_id,
        definition,  # type: ignore[arg-type]
        root.fencing_token,
        Position(
            root.agent_revision,
            root.context_revision,
            root.journal_position,
            root.transcript_generation,
            root.lifecycle_status,
        ),
        context if definition is None else window(context, definition.context_window),
        knowledge,
    )


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
