"""The pytest plugin of phronomy_django: fixtures for a site's own tests of its agents."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

__all__ = ["phronomy_inline"]


@pytest.fixture
def phronomy_inline() -> Iterator[None]:
    """Run agents in the calling thread, on its connection and inside its transaction (DESIGN §9, ``inline``)."""
    from django.conf import settings
    from django.test import override_settings

    from phronomy_django.runtime import reset_runtime

    chosen = {**getattr(settings, "PHRONOMY", {}), "RUNTIME": "inline"}
    with override_settings(PHRONOMY=chosen):
        reset_runtime()
        yield
        reset_runtime()
