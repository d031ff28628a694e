"""Models by name: ``"provider:name"`` for what pydantic-ai reaches, and prefixes that a site registers."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable
from typing import TypeAlias, cast

from phronomy_django.domain.errors import ConfigurationError
from phronomy_django.llm.adapter import LLMAdapter

__all__ = ["ModelFactory", "model_label", "register_model", "resolve_model", "unregister_model"]

ModelFactory: TypeAlias = Callable[[str], LLMAdapter]

_ADAPTER_MODULE = "phronomy_django.llm.pydantic_ai"
_lock = threading.RLock()
_factories: dict[str, ModelFactory] = {}
_resolved: dict[str, LLMAdapter] = {}


def register_model(prefix: str, factory: ModelFactory) -> None:
    """Let ``factory`` make the adapters of all models ``"<prefix>:<name>"``; it gets the name.

    ``prefix`` may also be one whole name, such as ``"scripted:support"``; the longer one wins, and both win
    over pydantic-ai's providers. Raises ``ConfigurationError`` if the prefix is taken by another factory.
    """
    if not prefix or prefix.startswith(":") or prefix.endswith(":"):
        raise ConfigurationError(f"The model prefix {prefix!r} is neither 'prefix' nor 'prefix:name'.")
    with _lock:
        if _factories.get(prefix, factory) is not factory:
            raise ConfigurationError(
                f"The model prefix {prefix!r} is registered already; call unregister_model({prefix!r}) first."
            )
        _factories[prefix] = factory
        _forget(prefix)


def unregister_model(prefix: str) -> None:
    """Forget the factory of ``prefix`` and the adapters that it made; unknown prefixes are ignored."""
    with _lock:
        _factories.pop(prefix, None)
        _forget(prefix)


def resolve_model(model: str | LLMAdapter) -> tuple[LLMAdapter, str]:
    """The adapter of a model and the name that its requests carry.

    An adapter is used as it is. A text is resolved once; later calls give the same adapter. The first use of
    a pydantic-ai model imports pydantic-ai, which takes a second or so: not on the event loop thread.

    Raises ``ConfigurationError`` for a text that no one knows, or if the extra ``llm`` is not installed.
    """
    if isinstance(model, LLMAdapter):
        label = model_label(model)
        return model, label.partition(":")[2] or label
    if not isinstance(model, str):
        raise ConfigurationError(
            f"A model is a text such as 'openai:gpt-5' or an LLMAdapter, not a {type(model).__name__}."
        )
    with _lock:
        adapter = _resolved.get(model)
        if adapter is None:
            adapter = _resolved[model] = _made(model)
    return adapter, model.partition(":")[2]


def model_label(model: str | LLMAdapter) -> str:
    """How manifests and logs name the model; resolves nothing."""
    if isinstance(model, LLMAdapter):
        return model.name or type(model).__qualname__
    return model


def _forget(prefix: str) -> None:
    for name in [name for name in _resolved if name == prefix or name.partition(":")[0] == prefix]:
        del _resolved[name]


def _made(model: str) -> LLMAdapter:
    prefix, _, name = model.partition(":")
    if not prefix or not name:
        raise ConfigurationError(f"Model {model!r}: write it as 'provider:name'. {_known()}")
    factory = _factories.get(model) or _factories.get(prefix)
    if factory is None:
        return _from_provider(model)
    adapter = factory(name)
    if not isinstance(adapter, LLMAdapter):
        raise ConfigurationError(
            f"Model {model!r}: its factory made a {type(adapter).__name__}, not an LLMAdapter."
        )
    return adapter


def _from_provider(model: str) -> LLMAdapter:
    try:
        module = importlib.import_module(_ADAPTER_MODULE)
    except ImportError as error:
        raise ConfigurationError(
            f"Model {model!r} needs pydantic-ai, which is not installed ({error}): "
            f"pip install 'phronomy-django[llm]'. {_known()}"
        ) from error
    try:
        return cast("LLMAdapter", module.PydanticAILLM(model))
    except ConfigurationError as error:
        raise ConfigurationError(f"{error} {_known()}") from error


def _known() -> str:
    registered = ", ".join(sorted(_factories)) or "none"
    return (
        f"Known are the registered ones ({registered}) and, with the extra llm, the providers of pydantic-ai "
        "(openai, openai-chat, anthropic, google, mistral, groq, ollama, openrouter and others)."
    )
