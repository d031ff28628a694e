"""From a function's signature to the pydantic model and the JSON schema of its parameters."""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, create_model
from pydantic.errors import PydanticUndefinedAnnotation, PydanticUserError
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaWarningKind
from pydantic_core import PydanticSerializationError, ValidationError

from phronomy_django.domain.canonical import canonical_bytes
from phronomy_django.domain.errors import ConfigurationError, SerializationError
from phronomy_django.tools.context import ToolContext

__all__ = ["ToolSignature", "read_signature"]

_NO_DEFAULT = inspect.Parameter.empty
_UNUSABLE = (PydanticUserError, PydanticUndefinedAnnotation, TypeError, ValueError, RecursionError)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSignature:
    """``parameters`` are the names that the model may send, in order; ``model`` validates them.

    The model's own field names are positions (``p0``, ``p1``, ...) with the parameter's name as alias, so
    that a parameter may be called ``json`` or ``model_config``. ``context`` names the parameter
    that takes the ``ToolContext``, if there is one.
    """

    context: str | None
    parameters: tuple[str, ...]
    model: type[BaseModel]
    schema: Mapping[str, Any]

    def values(self, arguments: BaseModel) -> dict[str, Any]:
        """The parameters of the function by their own names."""
        return {name: getattr(arguments, f"p{index}") for index, name in enumerate(self.parameters)}


class _ParameterSchema(GenerateJsonSchema):
    """Without the titles that pydantic makes from field names: they tell a model nothing."""

    ignored_warning_kinds: ClassVar[set[JsonSchemaWarningKind]] = {  # type: ignore[misc]
        "skipped-choice",
        "non-serializable-default",  # an error here, if it is a parameter's own
    }

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


def read_signature(
    function: Callable[..., Any], tool_name: str, descriptions: Mapping[str, str]
) -> ToolSignature:
    """Check and compile a signature; raises ``ConfigurationError`` naming the tool and the parameter."""
    context: str | None = None
    fields: dict[str, Any] = {}
    names: list[str] = []
    for position, parameter in enumerate(inspect.signature(function).parameters.values()):
        where = f"Tool {tool_name!r}, parameter {parameter.name!r}"
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise ConfigurationError(f"{where}: *args and **kwargs have no schema; name each parameter.")
        if parameter.kind is parameter.POSITIONAL_ONLY:
            raise ConfigurationError(f"{where}: arguments come by name; do not make it positional-only.")
        if _is_context(function, parameter, where):
            if position:
                raise ConfigurationError(f"{where}: the ToolContext has to be the first parameter.")
            context = parameter.name
            continue
        hint = _resolved(function, parameter, where)
        field = _field(hint, parameter, descriptions.get(parameter.name), where)
        _check_field(field, parameter, where)
        fields[f"p{len(names)}"] = field
        names.append(parameter.name)
    model = create_model("Arguments", __config__=_CONFIG, **fields)
    schema = model.model_json_schema(schema_generator=_ParameterSchema)
    schema.pop("title", None)
    return ToolSignature(context=context, parameters=tuple(names), model=model, schema=schema)


_CONFIG = ConfigDict(extra="forbid", allow_inf_nan=False, validate_default=True)


def _is_context(function: Callable[..., Any], parameter: inspect.Parameter, where: str) -> bool:
    hint = parameter.annotation
    if isinstance(hint, str):
        bare = hint.replace(" ", "").removeprefix("Optional[").removesuffix("]").removesuffix("|None")
        if bare.rpartition(".")[2] == "ToolContext":  # it may be imported for type checking only
            return True
        if parameter.name == "ctx":
            hint = _resolved(function, parameter, where)
    if hint is ToolContext or ToolContext in typing.get_args(hint):
        return True
    if parameter.name != "ctx":
        return False
    if hint is _NO_DEFAULT or hint is Any:
        return True
    raise ConfigurationError(
        f"{where}: a parameter called ctx takes the ToolContext; rename it, or annotate it so."
    )


def _resolved(function: Callable[..., Any], parameter: inspect.Parameter, where: str) -> Any:
    if parameter.annotation is _NO_DEFAULT:
        raise ConfigurationError(f"{where}: it has no type hint; the model's schema is made from type hints.")
    holder = types.SimpleNamespace(__annotations__={"hint": parameter.annotation})
    inner = inspect.unwrap(function)
    namespace = getattr(getattr(inner, "__func__", inner), "__globals__", {})
    try:
        return typing.get_type_hints(holder, globalns=namespace, include_extras=True)["hint"]
    except (NameError, AttributeError) as error:
        raise ConfigurationError(
            f"{where}: the type hint {parameter.annotation!r} cannot be resolved ({error}); "
            "import it at module level, not only for type checking."
        ) from error
    except (TypeError, SyntaxError) as error:
        raise ConfigurationError(
            f"{where}: {parameter.annotation!r} is not a usable type hint: {error}"
        ) from error


def _check_field(field: Any, parameter: inspect.Parameter, where: str) -> None:
    try:
        model = create_model("Argument", __config__=_CONFIG, value=field)
        schema = model.model_json_schema(schema_generator=_ParameterSchema)
    except _UNUSABLE as error:
        reason = str(error).partition("\n")[0]
        raise ConfigurationError(
            f"{where}: the type {parameter.annotation!r} cannot come from JSON: {reason}"
        ) from error
    for part in _subschemas(schema):
        if part.get("uniqueItems") is True:
            raise ConfigurationError(
                f"{where}: a set has no order, so that it would be stored differently each time; use a list."
            )
        if part.get("writeOnly") is True:
            raise ConfigurationError(
                f"{where}: a secret type is stored as asterisks and lost; use str and "
                f"@tool(redact=(...,)) to keep it out of logs."
            )
    if parameter.default is not _NO_DEFAULT:
        _check_default(model, parameter.default, where)


def _check_default(model: type[BaseModel], default: Any, where: str) -> None:
    if isinstance(default, FieldInfo):
        raise ConfigurationError(f"{where}: write Annotated[..., Field(...)] and give the default itself.")
    holder = model.model_construct(value=default)
    try:
        stored = canonical_bytes(
            holder.model_dump(mode="json", round_trip=True, by_alias=True, warnings=False)
        )
    except (PydanticSerializationError, SerializationError) as error:
        reason = str(error).partition("\n")[0]
        raise ConfigurationError(f"{where}: JSON cannot carry the default {default!r}: {reason}") from error
    try:
        back = getattr(model.model_validate_json(stored), "value")  # noqa: B009  a field made at run time
    except ValidationError as error:
        reason = error.errors(include_url=False, include_context=False)[0]["msg"]
        raise ConfigurationError(
            f"{where}: the default {default!r} does not fit its type: {reason}"
        ) from error
    if back != default:
        raise ConfigurationError(
            f"{where}: JSON cannot carry the default {default!r}: it comes back as {back!r}."
        )


def _field(hint: Any, parameter: inspect.Parameter, description: str | None, where: str) -> Any:
    given = [item for item in _metadata(hint) if isinstance(item, FieldInfo)]
    for item in given:
        if item.alias or item.validation_alias or item.serialization_alias or item.exclude:
            raise ConfigurationError(
                f"{where}: Field() may not rename or exclude it; the model uses the parameter's own name."
            )
        if item.description:
            description = None
    options: dict[str, Any] = {"alias": parameter.name}
    if description:
        options["description"] = description
    try:
        annotated = Annotated[hint, Field(**options)]
    except (AttributeError, TypeError) as error:
        raise ConfigurationError(
            f"{where}: {parameter.annotation!r} is not a usable type hint: {error}"
        ) from error
    return annotated if parameter.default is _NO_DEFAULT else (annotated, parameter.default)


def _metadata(hint: Any) -> tuple[Any, ...]:
    return typing.get_args(hint)[1:] if typing.get_origin(hint) is Annotated else ()


def _subschemas(schema: Any) -> Iterator[Mapping[str, Any]]:
    """Every schema inside ``schema``; values given as data (``default``, ``enum``, ...) are none."""
    if isinstance(schema, list):
        for item in schema:
            yield from _subschemas(item)
    elif isinstance(schema, dict):
        yield schema
        for key, item in schema.items():
            if key in ("properties", "$defs", "patternProperties") and isinstance(item, dict):
                for named in item.values():
                    yield from _subschemas(named)
            elif key not in ("default", "enum", "const", "examples"):
                yield from _subschemas(item)
