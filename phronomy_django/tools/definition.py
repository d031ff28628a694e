"""The ``tool`` decorator and the frozen definition that it makes of a function.

Everything that can be wrong with a tool is found here, when its module is imported.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, ParamSpec, TypeVar, overload

from phronomy_django.domain.canonical import canonical_bytes
from phronomy_django.domain.errors import ConfigurationError, SerializationError
from phronomy_django.domain.messages import ToolSpec
from phronomy_django.tools.docstrings import parse_docstring
from phronomy_django.tools.retry import ToolRetry
from phronomy_django.tools.signature import ToolSignature, read_signature

__all__ = ["DEFAULT_MAX_RESULT_BYTES", "ToolDefinition", "check_tools", "tool"]

DEFAULT_MAX_RESULT_BYTES = 256 * 1024

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class ToolDefinition(Generic[P, R]):
    """A function as a tool. Calling it calls the function, so that it can be tested as one.

    ``pool`` None means the agent's pool; ``timeout`` is in seconds for one attempt, None for no limit.
    ``replay_safe``: another attempt does no harm. ``transactional``: the body runs in the transaction that
    records its outcome. ``cooperative``: the body is short and runs on the event loop thread.
    ``redact`` names parameters whose values stay out of logs and the admin. ``max_result_bytes`` bounds what
    the model is shown, as UTF-8. ``on_rejection``: whether a rejected call is told to the model or ends the
    execution. ``facts`` is a callable that gathers what the person who approves is shown.
    """

    function: Callable[P, R]
    name: str
    description: str
    spec: ToolSpec
    signature: ToolSignature
    is_async: bool
    requires_approval: bool = False
    pool: str | None = None
    timeout: float | None = None
    replay_safe: bool = False
    transactional: bool = False
    cooperative: bool = False
    retry: ToolRetry | None = None
    redact: frozenset[str] = field(default_factory=frozenset)
    max_result_bytes: int = DEFAULT_MAX_RESULT_BYTES
    on_rejection: Literal["tell", "end"] = "tell"
    facts: Callable[..., Any] | None = None

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<tool {self.name!r}>"

    def __reduce__(self) -> Any:
        raise TypeError(f"The tool {self.name!r} is code and is never stored or sent; name it instead.")


@overload
def tool(function: Callable[P, R], /) -> ToolDefinition[P, R]: ...


@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    requires_approval: bool = False,
    pool: str | None = None,
    timeout: float | None = None,
    replay_safe: bool = False,
    transactional: bool = False,
    cooperative: bool = False,
    retry: ToolRetry | None = None,
    redact: Iterable[str] = (),
    max_result_bytes: int = DEFAULT_MAX_RESULT_BYTES,
    on_rejection: Literal["tell", "end"] = "tell",
    facts: Callable[..., Any] | None = None,
) -> Callable[[Callable[P, R]], ToolDefinition[P, R]]: ...


def tool(function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """Make a tool of a function: ``@tool`` or ``@tool(requires_approval=True, ...)``.

    The model is shown the function's name, the description in its docstring, and a JSON schema made from its
    parameters' type hints, defaults and docstring. A first parameter annotated ``ToolContext`` (or called
    ``ctx``) is ours and not shown. The options are the attributes of ``ToolDefinition``. Raises
    ``ConfigurationError``, naming the tool and the parameter, for whatever could not work later.
    """
    if function is not None:
        return _define(function, **options)
    return lambda decorated: _define(decorated, **options)


def check_tools(tools: Iterable[Any]) -> tuple[ToolDefinition[..., Any], ...]:
    """``tools`` as a tuple; raises ``ConfigurationError`` for what is no tool and for a name used twice."""
    if isinstance(tools, str | ToolDefinition) or not isinstance(tools, Iterable):
        raise ConfigurationError(f"tools is {tools!r}; it has to be a list of tools.")
    checked: dict[str, ToolDefinition[..., Any]] = {}
    for item in tools:
        if not isinstance(item, ToolDefinition):
            raise ConfigurationError(f"{item!r} is no tool; decorate the function with @tool.")
        if item.name in checked:
            first, second = _origin(checked[item.name]), _origin(item)
            raise ConfigurationError(
                f"Two tools are called {item.name!r} ({first} and {second}); give one another name=."
            )
        checked[item.name] = item
    return tuple(checked.values())


def _define(
    function: Callable[..., Any],
    *,
    name: str | None = None,
    description: str | None = None,
    redact: Iterable[str] = (),
    **options: Any,
) -> ToolDefinition[..., Any]:
    if isinstance(function, ToolDefinition | type | staticmethod | classmethod) or not callable(function):
        raise ConfigurationError(f"@tool takes a function, not {function!r}.")
    name = getattr(function, "__name__", type(function).__name__) if name is None else name
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ConfigurationError(
            f"The tool name {name!r} is not allowed: 1 to 64 letters, digits, underscores or hyphens."
        )
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise ConfigurationError(f"Tool {name!r} is a generator; a tool returns one value.")
    documentation = parse_docstring(getattr(function, "__doc__", None))
    signature = read_signature(function, name, documentation.parameters)
    description = documentation.description if description is None else description
    spec = ToolSpec(name, description, signature.schema)
    try:
        canonical_bytes(spec.as_json())
    except SerializationError as error:
        raise ConfigurationError(f"Tool {name!r}: its schema cannot be carried as JSON: {error}") from error
    definition = ToolDefinition(
        function=function,
        name=name,
        description=description,
        spec=spec,
        signature=signature,
        is_async=inspect.iscoroutinefunction(function),
        redact=_redacted_names(name, redact, signature),
        **options,
    )
    _check_values(definition)
    _check_combinations(definition)
    return definition


def _redacted_names(name: str, redact: Iterable[str], signature: ToolSignature) -> frozenset[str]:
    if isinstance(redact, str) or not isinstance(redact, Iterable):
        raise ConfigurationError(f"Tool {name!r}: redact is {redact!r}; give a tuple of parameter names.")
    names = tuple(redact)
    for redacted in names:
        if redacted not in signature.parameters:
            known = ", ".join(signature.parameters) or "none"
            raise ConfigurationError(
                f"Tool {name!r}, parameter {redacted!r}: it is to be redacted but does not exist; "
                f"the parameters are: {known}."
            )
    return frozenset(names)


def _check_values(definition: ToolDefinition[..., Any]) -> None:
    where = f"Tool {definition.name!r}"
    if not isinstance(definition.description, str):
        raise ConfigurationError(
            f"{where}: description is {definition.description!r}; it has to be a string."
        )
    for option in ("requires_approval", "replay_safe", "transactional", "cooperative"):
        if not isinstance(getattr(definition, option), bool):
            raise ConfigurationError(
                f"{where}: {option} is {getattr(definition, option)!r}; it has to be True or False."
            )
    pool, timeout, limit = definition.pool, definition.timeout, definition.max_result_bytes
    if pool is not None and (not isinstance(pool, str) or not pool):
        raise ConfigurationError(f"{where}: pool is {pool!r}; it has to be the name of a pool, or None.")
    if timeout is not None and (
        isinstance(timeout, bool)
        or not isinstance(timeout, int | float)
        or not math.isfinite(timeout)
        or timeout <= 0
    ):
        raise ConfigurationError(f"{where}: timeout is {timeout!r}; it has to be seconds above 0, or None.")
    if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
        raise ConfigurationError(
            f"{where}: max_result_bytes is {limit!r}; it has to be a whole number from 1."
        )
    if definition.retry is not None and not isinstance(definition.retry, ToolRetry):
        raise ConfigurationError(
            f"{where}: retry is {definition.retry!r}; it has to be a ToolRetry, or None."
        )
    if definition.on_rejection not in ("tell", "end"):
        raise ConfigurationError(
            f'{where}: on_rejection is {definition.on_rejection!r}; it has to be "tell" or "end".'
        )
    if definition.facts is not None and not callable(definition.facts):
        raise ConfigurationError(f"{where}: facts is {definition.facts!r}; it has to be callable, or None.")


def _check_combinations(definition: ToolDefinition[..., Any]) -> None:
    where = f"Tool {definition.name!r}"
    if definition.retry is not None and not definition.replay_safe:
        raise ConfigurationError(
            f"{where}: retry runs it again, so it has to be declared replay_safe=True (if that is true)."
        )
    if definition.transactional and definition.is_async:
        raise ConfigurationError(
            f"{where}: a transactional tool cannot be async def; its body runs inside a transaction."
        )
    if definition.transactional and definition.cooperative:
        raise ConfigurationError(
            f"{where}: a transactional tool cannot be cooperative; the event loop thread makes no query."
        )
    if definition.cooperative and definition.is_async:
        raise ConfigurationError(
            f"{where}: a cooperative tool cannot be async def; it runs on the event loop thread, in one go."
        )


def _origin(definition: ToolDefinition[..., Any]) -> str:
    function = definition.function
    return f"{getattr(function, '__module__', '?')}.{getattr(function, '__qualname__', repr(function))}"
