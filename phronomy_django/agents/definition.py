"""What an agent class declares, checked once and compiled into a frozen value.

Owns: the meaning and the limits of the class attributes of ``Agent``. Knows nothing of rows or threads.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from decimal import Decimal
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, TypeAdapter

from phronomy_django.domain.canonical import canonical_bytes, storable_text
from phronomy_django.domain.errors import ConfigurationError, SerializationError
from phronomy_django.llm import LLMAdapter, RetryPolicy, model_label, resolve_model
from phronomy_django.tools import ToolDefinition, check_tools

if TYPE_CHECKING:
    from phronomy_django.agents.agent import Agent

__all__ = ["Definition", "UsageLimits", "compile_definition"]

_PREPARATION_METHODS = ("filter_input", "retrieve_knowledge", "select_context", "before_llm_input")


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageLimits:
    """Bounds of one execution; the first one that is passed ends it as ``blocked`` and is named.

    ``input_tokens``, ``output_tokens``, ``total_tokens``: sums over all provider calls. ``tool_calls``: calls
    that the model asked for. ``cost``: in the unit of ``Usage.cost``. ``wall_time``: seconds since admission.
    """

    input_tokens: int | None = None
    output_tokens: int | None = None
    total_tokens: int | None = None
    tool_calls: int | None = None
    cost: Decimal | None = None
    wall_time: float | None = None

    def __post_init__(self) -> None:
        for limit in fields(self):
            value = getattr(self, limit.name)
            number = isinstance(value, int | float | Decimal) and not isinstance(value, bool)
            if value is not None and not (number and value >= 0):
                raise ConfigurationError(
                    f"UsageLimits.{limit.name} is {value!r}; it has to be a number from 0, or None."
                )


_KINDS: tuple[tuple[str, Any, str], ...] = (
    ("instructions", str, "a string"),
    ("pool", str, "the name of a pool"),
    ("model_settings", Mapping, "a mapping"),
    ("usage_limits", UsageLimits | None, "a UsageLimits or None"),
    ("llm_timeout", int | float, "a number of seconds"),
    ("llm_retry", RetryPolicy, "a RetryPolicy"),
    ("replay_safe", bool, "True or False"),
)


@dataclass(frozen=True)
class Definition:
    """One agent class, compiled: what the session, the barriers and the pool bodies need to know of it."""

    agent_class: type[Agent]
    definition_id: str
    definition_version: int
    instructions: str
    tools: Mapping[str, ToolDefinition[..., Any]]
    models: tuple[str | LLMAdapter, ...]
    max_iterations: int
    context_window: int
    output_adapter: TypeAdapter[Any] | None
    output_schema: Mapping[str, Any] | None
    usage_limits: UsageLimits
    model_settings: Mapping[str, Any]
    llm_timeout: float
    llm_retry: RetryPolicy
    replay_safe: bool
    has_preparation: bool
    has_on_admission: bool
    has_on_terminal: bool
    has_approval_policy: bool
    approval_seconds: float | None

    @cached_property
    def fixed_members(self) -> dict[str, bytes]:
        """The members of a manifest that are the same for every call, canonical already."""
        return {
            "agent": canonical_bytes({"id": self.definition_id, "version": self.definition_version}),
            "instructions": canonical_bytes(self.instructions),
            "tools": canonical_bytes([tool.spec.as_json() for tool in self.tools.values()]),
            "output_schema": canonical_bytes(self.output_schema),
            "settings": canonical_bytes(dict(self.model_settings)),
            "version": b"1",
        }

    @cached_property
    def has_held_tools(self) -> bool:
        """Whether a tool asks for a person's approval by itself."""
        return any(tool.requires_approval for tool in self.tools.values())

    @cached_property
    def labels(self) -> tuple[str, ...]:
        return tuple(model_label(model) for model in self.models)

    @cached_property
    def adapters(self) -> tuple[tuple[LLMAdapter, str], ...]:
        """The adapters and the providers' own model names. Resolving may import: never first on the loop."""
        return tuple(resolve_model(model) for model in self.models)

    def decode_output(self, body: bytes) -> Any:
        """A stored answer as the caller gets it: a string, or an instance of ``output_type``."""
        return json.loads(body) if self.output_adapter is None else self.output_adapter.validate_json(body)

    def llm_pool(self, index: int) -> str:
        return self.agent_class.pool or self.adapters[index][0].pool

    def tool_pool(self, tool: ToolDefinition[..., Any]) -> str:
        return tool.pool or ("llm" if tool.is_async else "default")


def compile_definition(cls: type[Agent]) -> Definition:
    """Check the class attributes of ``cls``; raises ``ConfigurationError`` naming the class and the attribute."""
    name = f"{cls.__module__}.{cls.__qualname__}"
    if not isinstance(cls.definition_id, str) or not cls.definition_id:
        raise ConfigurationError(f"{name} has no definition_id; set one that stays the same for ever.")
    if len(cls.definition_id) > 200:
        raise ConfigurationError(f"{name}.definition_id is longer than 200 characters.")
    if storable_text(cls.definition_id) != cls.definition_id:
        raise ConfigurationError(f"{name}.definition_id holds a character that no database stores.")
    for attribute, least in (("definition_version", 1), ("max_iterations", 1), ("context_window", 0)):
        value = getattr(cls, attribute)
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise ConfigurationError(
                f"{name}.{attribute} is {value!r}; it has to be a whole number from {least}."
            )
    for attribute, kind, words in _KINDS:
        value = getattr(cls, attribute)
        if not isinstance(value, kind):
            raise ConfigurationError(f"{name}.{attribute} is a {type(value).__name__}; it has to be {words}.")
    if isinstance(cls.llm_timeout, bool) or not cls.llm_timeout > 0:
        raise ConfigurationError(
            f"{name}.llm_timeout is {cls.llm_timeout!r}; it has to be a number of seconds."
        )
    if cls.approval_seconds is not None and not (
        isinstance(cls.approval_seconds, int | float) and cls.approval_seconds > 0
    ):
        raise ConfigurationError(
            f"{name}.approval_seconds is {cls.approval_seconds!r}; it has to be a number of seconds, or None."
        )
    for method in (*_PREPARATION_METHODS, "needs_approval", "on_admission", "on_terminal"):
        if inspect.iscoroutinefunction(getattr(cls, method)):
            raise ConfigurationError(
                f"{name}.{method} is async; it runs on a thread and has to be a plain method."
            )
    adapter = _output_adapter(cls, name)
    try:
        definition = Definition(
            agent_class=cls,
            definition_id=cls.definition_id,
            definition_version=cls.definition_version,
            instructions=inspect.cleandoc(cls.instructions),
            tools={tool.name: tool for tool in check_tools(cls.tools)},
            models=_models(cls, name),
            max_iterations=cls.max_iterations,
            context_window=cls.context_window,
            output_adapter=adapter,
            output_schema=None if adapter is None else adapter.json_schema(),
            usage_limits=cls.usage_limits or UsageLimits(),
            model_settings=dict(cls.model_settings),
            llm_timeout=cls.llm_timeout,
            llm_retry=cls.llm_retry,
            replay_safe=cls.replay_safe,
            has_preparation=any(_overrides(cls, method) for method in _PREPARATION_METHODS),
            has_on_admission=_overrides(cls, "on_admission"),
            has_on_terminal=_overrides(cls, "on_terminal"),
            has_approval_policy=_overrides(cls, "needs_approval"),
            approval_seconds=cls.approval_seconds,
        )
        _ = definition.fixed_members
    except SerializationError as error:
        raise ConfigurationError(
            f"{name}: model_settings or a schema cannot be carried as JSON: {error}"
        ) from error
    except ConfigurationError as error:
        raise ConfigurationError(f"{name}: {error}") from error
    return definition


def _models(cls: type[Agent], name: str) -> tuple[str | LLMAdapter, ...]:
    model = cls.model
    models: tuple[Any, ...] = tuple(model) if isinstance(model, list | tuple) else (model,)
    if not models or not all(
        isinstance(item, LLMAdapter) or (isinstance(item, str) and item) for item in models
    ):
        raise ConfigurationError(
            f'{name}.model is {model!r}; give "provider:model", an LLMAdapter, or a list of them.'
        )
    return models


def _output_adapter(cls: type[Agent], name: str) -> TypeAdapter[Any] | None:
    kind = cls.output_type
    if kind is None:
        return None
    if not (isinstance(kind, type) and issubclass(kind, BaseModel)):
        raise ConfigurationError(f"{name}.output_type is {kind!r}; it has to be a pydantic model or None.")
    return TypeAdapter(kind)


def _overrides(cls: type[Agent], method: str) -> bool:
    base: Sequence[type] = [parent for parent in cls.__mro__ if parent.__dict__.get("_is_agent_base")]
    return getattr(cls, method) is not getattr(base[-1], method)
