"""Which planned calls a person has to decide on, and what that person is shown. Runs in pools, on values."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from phronomy_django.agents.run import ApprovalNeed
from phronomy_django.domain.canonical import canonical_bytes
from phronomy_django.domain.errors import PhronomyError
from phronomy_django.tools import BoundArguments, ToolDefinition

if TYPE_CHECKING:
    from phronomy_django.agents.bodies import Preparation
    from phronomy_django.agents.definition import Definition

__all__ = ["ToolProposal", "needs_of"]

Plan = tuple[ToolDefinition[..., Any], BoundArguments] | str


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolProposal:
    """A call that the model asks for, as an approval policy sees it: values only.

    ``arguments`` are validated and as JSON has them; ``facts`` what the tool's ``facts`` callable gathered.
    """

    tool_name: str
    requires_approval: bool
    arguments: Mapping[str, Any]
    facts: Any = None


def needs_of(
    definition: Definition, plans: Sequence[Plan], context: Preparation
) -> tuple[ApprovalNeed | None, ...]:
    """One entry for each plan if any of them needs a person, else nothing."""
    if not definition.has_approval_policy and not any(
        plan[0].requires_approval for plan in plans if not isinstance(plan, str)
    ):
        return ()
    needs = tuple(None if isinstance(plan, str) else _need(definition, *plan, context) for plan in plans)
    return needs if any(needs) else ()


def _need(
    definition: Definition, tool: ToolDefinition[..., Any], bound: BoundArguments, context: Preparation
) -> ApprovalNeed | None:
    facts = _facts(tool, bound)
    proposal = ToolProposal(
        tool_name=tool.name,
        requires_approval=tool.requires_approval,
        arguments=json.loads(bound.canonical),
        facts=facts,
    )
    if definition.has_approval_policy:
        if not definition.agent_class(context.agent_id).needs_approval(proposal, context):
            return None
    elif not tool.requires_approval:
        return None
    return ApprovalNeed(
        shown=_storable_json(dict(bound.redacted)),
        facts=_storable_json(facts),
        seconds=definition.approval_seconds,
    )


def _storable_json(value: Any) -> str:
    return canonical_bytes(value).decode().replace("\\u0000", "\\ufffd")


def _facts(tool: ToolDefinition[..., Any], bound: BoundArguments) -> Any:
    """What the tool's own callable says; a failure of it is shown, and the call is held all the same."""
    if tool.facts is None:
        return {}
    try:
        value = tool.facts(**bound.kwargs)
        canonical_bytes(value)
    except PhronomyError as error:
        return {"error": str(error)}
    except Exception as error:  # noqa: BLE001 - whatever application code raises is shown
        return {"error": f"{type(error).__name__}: {error}"}
    return value
