"""What runs in offload pools for an execution: preparation, provider calls, tools.

A body gets values and returns values (rule 10); it never sees live state. Application code runs here and
nowhere else, apart from the hooks of B1 and B6.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from pydantic import ValidationError

from phronomy_django.agents.approvals import needs_of
from phronomy_django.agents.definition import Definition, UsageLimits
from phronomy_django.agents.manifests import compose_instructions, context_message
from phronomy_django.agents.run import ContextMessage, Failure, ProviderOutcome, Run, ToolOutcome
from phronomy_django.domain.canonical import canonical_bytes, storable_text
from phronomy_django.domain.errors import ConfigurationError
from phronomy_django.domain.messages import (
    File,
    Image,
    LLMRequest,
    LLMResponse,
    Message,
    ToolCall,
    ToolSpec,
    UserMessage,
    message_from_json,
)
from phronomy_django.domain.statuses import ToolInvocationStatus
from phronomy_django.engine.failpoints import declare, failpoint
from phronomy_django.llm import LLMAdapter
from phronomy_django.store import in_passing_thread, load_contents
from phronomy_django.tools import (
    BoundArguments,
    ToolArgumentError,
    ToolContext,
    ToolDefinition,
    acall_tool,
    call_tool,
    describe_failure,
    parse_arguments,
    render_result,
)

__all__ = [
    "Preparation",
    "call_provider",
    "exceeded_limit",
    "failure_of",
    "interpret",
    "media_of",
    "plan_call",
    "prepare",
    "provider_body",
    "provider_request",
    "run_async_tool",
    "run_tool",
    "tool_failure",
    "with_attempts",
]


def failure_of(error: BaseException) -> Failure:
    return Failure(type(error).__name__, storable_text(str(error))[:10_000])


# --- preparation ------------------------------------------------------------------------------------------


declare(
    "agent.preparation.before",
    "agent.provider.before",
    "agent.provider.after",
    "agent.tool.before",
    "agent.tool.after",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Preparation:
    """What the application's preparation is told about the run: values only."""

    agent_id: str
    execution_id: str
    durable_context: Mapping[str, Any]
    knowledge: tuple[str, ...] = ()


def prepare(definition: Definition, run: Run, facts: Preparation) -> dict[str, Any]:
    """Run the agent's preparation methods; the values become fields of the run (DESIGN §6).

    The order: ``filter_input``, ``retrieve_knowledge``, ``select_context``, ``before_llm_input``. Their results are
    frozen into the manifest; after a restart they are not asked again once the manifest is committed.
    """
    failpoint("agent.preparation.before")
    agent = definition.agent_class(facts.agent_id)
    own = run.own[0].message
    assert isinstance(own, UserMessage)  # noqa: S101 - the first own message is the input
    filtered = agent.filter_input(own, facts)
    knowledge = (*facts.knowledge, *agent.retrieve_knowledge(filtered, facts))
    history = agent.select_context(tuple(item.message for item in run.history), facts)
    request = LLMRequest(
        model=definition.labels[run.model_index],
        messages=(*history, filtered),
        instructions=compose_instructions(definition.instructions, knowledge),
        tools=tuple(tool.spec for tool in definition.tools.values()),
    )
    request = agent.before_llm_input(request, facts)
    if not isinstance(request, LLMRequest) or not request.messages:
        raise ConfigurationError(
            f"{definition.agent_class.__qualname__}.before_llm_input has to return the LLMRequest with at least one message."
        )
    return {
        "instructions": storable_text(request.instructions),
        "prepared_messages": tuple(_known(run, message) for message in request.messages),
    }


def _known(run: Run, message: Message) -> ContextMessage:
    for item in (*run.history, *run.own):
        if item.message is message:
            return item
    return context_message(message)


# --- provider calls ---------------------------------------------------------------------------------------


def provider_request(
    definition: Definition, run: Run, model_name: str, contents: Mapping[str, bytes]
) -> LLMRequest:
    """The request that the run's manifest describes; ``contents`` are bytes that need not be loaded.

    A manifest that was committed before this process took the run up is used to the letter.
    """
    if run.call is not None and run.call.manifest is not None:
        return _request_of(json.loads(run.call.manifest), definition, model_name, contents)
    return LLMRequest(
        model=model_name,
        messages=tuple(item.message for item in run.messages),
        instructions=compose_instructions(definition.instructions, run.knowledge)
        if run.instructions is None
        else run.instructions,
        tools=tuple(tool.spec for tool in definition.tools.values()),
        output_schema=definition.output_schema,
        settings=definition.model_settings,
        timeout=definition.llm_timeout,
        contents=contents,
    )


def _request_of(
    value: Mapping[str, Any], definition: Definition, model_name: str, contents: Mapping[str, bytes]
) -> LLMRequest:
    return LLMRequest(
        model=model_name,
        messages=tuple(message_from_json(item) for item in value["messages"]),
        instructions=value["instructions"],
        tools=tuple(
            ToolSpec(item["name"], item["description"], item["parameters"]) for item in value["tools"]
        ),
        output_schema=value["output_schema"],
        settings=value["settings"],
        timeout=definition.llm_timeout,
        contents=contents,
    )


def media_of(request: LLMRequest) -> frozenset[str]:
    """The contents that the adapter needs beside the messages."""
    return frozenset(
        part.content_id
        for message in request.messages
        if isinstance(message, UserMessage)
        for part in message.parts
        if isinstance(part, Image | File) and part.content_id
    )


async def call_provider(
    definition: Definition,
    adapter: LLMAdapter,
    request: LLMRequest,
    on_delta: Callable[[str], None] | None,
    facts: Preparation,
) -> ProviderOutcome:
    """One attempt of a provider call; raises ``LLMError`` when the provider failed."""
    failpoint("agent.provider.before")
    if on_delta is None:
        response = await adapter.complete(request)
    else:
        response = await adapter.stream(request, on_delta)
    failpoint("agent.provider.after")
    outcome = interpret(definition, response)
    if not outcome.plans or not (definition.has_approval_policy or definition.has_held_tools):
        return outcome
    # Application code, which may query: off this event loop where there is one.
    needs = await in_passing_thread(needs_of, definition, outcome.plans, facts)
    return replace(outcome, needs=needs)


def interpret(definition: Definition, response: LLMResponse) -> ProviderOutcome:
    """Read a response: clean its text, parse its tool calls, validate a structured answer."""
    calls = tuple(_unique(response.tool_calls))
    text = storable_text(response.text)
    response = LLMResponse(text, calls, response.usage, storable_text(response.model), response.finish_reason)
    if calls:
        return ProviderOutcome(response=response, plans=tuple(plan_call(definition, call) for call in calls))
    if definition.output_adapter is None:
        return ProviderOutcome(response=response, output=canonical_bytes(text))
    try:
        value = definition.output_adapter.validate_json(text)
    except ValidationError as error:
        return ProviderOutcome(response=response, output_problem=_problems(error))
    return ProviderOutcome(response=response, output=canonical_bytes(value.model_dump(mode="json")))


def _unique(calls: tuple[ToolCall, ...]) -> list[ToolCall]:
    """The calls with storable texts and ids of which no two are alike, so that each gets its one result."""
    seen: set[str] = set()
    result = []
    for position, call in enumerate(calls):
        identity = storable_text(call.tool_call_id)[:200] or f"call_{position}"
        while identity in seen:
            identity = f"{identity[:180]}#{position}"
        seen.add(identity)
        result.append(ToolCall(identity, storable_text(call.name)[:200], storable_text(call.arguments)))
    return result


def plan_call(
    definition: Definition, call: ToolCall
) -> tuple[ToolDefinition[..., Any], BoundArguments] | str:
    """The tool and its validated arguments, or the sentence that tells the model what was wrong."""
    tool = definition.tools.get(call.name)
    if tool is None:
        known = ", ".join(definition.tools) or "none"
        return f"There is no tool {call.name!r}. The tools are: {known}."
    try:
        return tool, parse_arguments(tool, call.arguments)
    except ToolArgumentError as error:
        return storable_text(str(error))


def _problems(error: ValidationError) -> str:
    lines = [
        f"{'.'.join(map(str, item['loc'])) or 'the answer'}: {item['msg']}" for item in error.errors()[:20]
    ]
    return storable_text("; ".join(lines))[:4000] + "."


def provider_body(
    definition: Definition,
    adapter: LLMAdapter,
    request: LLMRequest,
    on_delta: Callable[[str], None] | None,
    *,
    facts: Preparation,
    database: str,
    in_thread: bool,
) -> Callable[[int], Callable[[], Any]]:
    """The body of a provider call for its pool: a coroutine function, or a function for a thread."""

    async def attempt() -> ProviderOutcome:
        missing = media_of(request) - request.contents.keys()
        ready = request
        if missing:
            stored = await in_passing_thread(load_contents, missing, database)
            ready = replace(request, contents={**request.contents, **stored})
        return await call_provider(definition, adapter, ready, on_delta, facts)

    def attempt_in_thread() -> ProviderOutcome:
        return asyncio.run(attempt())

    return lambda _: attempt_in_thread if in_thread else attempt


def with_attempts(outcome: ProviderOutcome, attempts: int) -> ProviderOutcome:
    return outcome if attempts == 1 else replace(outcome, attempts=attempts)


def exceeded_limit(limits: UsageLimits, run: Run, outcome: ProviderOutcome) -> str:
    """The name of the first usage limit that the run passes with this outcome, or an empty string."""
    if outcome.response is None:
        return ""
    usage = run.usage + outcome.response.usage
    asked = run.tool_call_count + len(outcome.response.tool_calls)
    pairs: tuple[tuple[str, Any, Any], ...] = (
        ("input_tokens", usage.input_tokens, limits.input_tokens),
        ("output_tokens", usage.output_tokens, limits.output_tokens),
        ("total_tokens", usage.total_tokens, limits.total_tokens),
        ("tool_calls", asked, limits.tool_calls),
        ("cost", usage.cost, limits.cost),
    )
    for name, value, limit in pairs:
        if limit is not None and value is not None and value > limit:
            return name
    return ""


# --- tools ------------------------------------------------------------------------------------------------


def run_tool(tool: ToolDefinition[..., Any], context: ToolContext, bound: BoundArguments) -> ToolOutcome:
    """One attempt of a synchronous tool; what its body raises goes to the caller."""
    failpoint("agent.tool.before")
    value = call_tool(tool, context, bound)
    failpoint("agent.tool.after")
    return _succeeded(tool, value)


async def run_async_tool(
    tool: ToolDefinition[..., Any], context: ToolContext, bound: BoundArguments
) -> ToolOutcome:
    """One attempt of an ``async def`` tool."""
    failpoint("agent.tool.before")
    value = await acall_tool(tool, context, bound)
    failpoint("agent.tool.after")
    return _succeeded(tool, value)


def _succeeded(tool: ToolDefinition[..., Any], value: Any) -> ToolOutcome:
    return ToolOutcome(status=ToolInvocationStatus.SUCCEEDED, text=render_result(tool, value))


def tool_failure(error: BaseException, attempts: int) -> ToolOutcome:
    """What the model is told when the last attempt of a tool failed."""
    return ToolOutcome(status=ToolInvocationStatus.FAILED, text=describe_failure(error), attempts=attempts)
