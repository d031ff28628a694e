"""How callers reach the runtime of this process without knowing how it is composed.

The composition root (``phronomy_django.runtime``) sets the provider; the arrows of the layout stay downward.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from phronomy_django.agents.receiver import AgentsReceiver
from phronomy_django.agents.services import Services
from phronomy_django.domain.errors import ConfigurationError

__all__ = ["Host", "host", "live_host", "set_host_provider"]


@dataclass(frozen=True, slots=True)
class Host:
    """The runtime of this process as callers see it. ``inline``: everything runs in the calling thread."""

    services: Services
    receiver: AgentsReceiver
    inline: bool


_provider: Callable[[bool], Host | None] | None = None


def set_host_provider(provider: Callable[[bool], Host | None]) -> None:
    """``provider(start)`` gives the host, made now if ``start``; for the composition root."""
    global _provider
    _provider = provider


def host() -> Host:
    """The host of this process, started if it has to be; raises ``ConfigurationError`` if it cannot be."""
    found = _provider(True) if _provider is not None else None
    if found is None:
        raise ConfigurationError(
            "No runtime can run here. Is 'phronomy_django' in INSTALLED_APPS, and was django.setup() called?"
        )
    return found


def live_host() -> Host | None:
    """The host if it runs already; starts nothing."""
    return None if _provider is None else _provider(False)
