"""Which agent definitions this process has: filled by ``@register`` and by autodiscovery of ``agents.py``."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, TypeVar

from django.utils.module_loading import autodiscover_modules

from phronomy_django.agents.definition import Definition, compile_definition
from phronomy_django.domain.errors import ConfigurationError, NotFoundError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from phronomy_django.agents.agent import Agent

__all__ = [
    "autodiscover",
    "definition_of",
    "definitions",
    "duplicates",
    "find_definition",
    "known_definition",
    "register",
    "unregister",
]

A = TypeVar("A", bound="type[Agent]")

_lock = threading.Lock()
_by_id: dict[str, Definition] = {}
_refused: dict[str, str] = {}
_discovering = False


def register(cls: A) -> A:
    """Class decorator: make an agent definition known to this process.

    Raises ``ConfigurationError`` if an attribute does not fit or if another class has the same
    ``definition_id``. The same class may be registered again (a reload); the newer one counts. During the start of
    Django a second class is noted for the system check ``phronomy.E022`` instead, and cannot be used.
    """
    definition = compile_definition(cls)
    with _lock:
        known = _by_id.get(definition.definition_id)
        if known is not None and _name(known.agent_class) != _name(cls):
            problem = (
                f"Two agents have the definition_id {definition.definition_id!r}: {_name(known.agent_class)} and "
                f"{_name(cls)}. Give one of them another id."
            )
            if not _discovering:
                raise ConfigurationError(problem)
            _refused[_name(cls)] = problem
            return cls
        _by_id[definition.definition_id] = definition
    cls._definition = definition
    return cls


def unregister(cls: type[Agent]) -> None:
    """Forget a definition (tests)."""
    with _lock:
        _refused.pop(_name(cls), None)
        known = _by_id.get(cls.definition_id)
        if known is not None and known.agent_class is cls:
            del _by_id[cls.definition_id]


def definition_of(cls: type[Agent]) -> Definition:
    """The compiled definition of a registered class; raises ``ConfigurationError`` for any other."""
    definition: Definition | None = cls.__dict__.get("_definition")
    if definition is None:
        refused = _refused.get(_name(cls))
        raise ConfigurationError(refused or f"{_name(cls)} is not registered; decorate it with @register.")
    return definition


def find_definition(definition_id: str) -> Definition:
    """The definition with this id; raises ``NotFoundError`` that names it."""
    try:
        return _by_id[definition_id]
    except KeyError:
        raise NotFoundError(
            f"This process knows no agent definition {definition_id!r}. Is its app in INSTALLED_APPS, and its class "
            f"in agents.py and decorated with @register?"
        ) from None


def known_definition(definition_id: str, version: int) -> Definition | None:
    """The definition with this id and version, or None; for rows that may be older than the code."""
    found = _by_id.get(definition_id)
    return found if found is not None and found.definition_version == version else None


def definitions() -> Iterator[Definition]:
    with _lock:
        known = sorted(_by_id.items())
    return (definition for _, definition in known)


def duplicates() -> list[str]:
    """A sentence for each class that autodiscovery refused because another one has its ``definition_id``."""
    return sorted(_refused.values())


def autodiscover() -> None:
    """Import ``agents.py`` of every installed app."""
    global _discovering
    _discovering = True
    try:
        autodiscover_modules("agents")
    finally:
        _discovering = False


def _name(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"
