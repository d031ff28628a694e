"""The Django app. ``ready`` only wires."""

from __future__ import annotations

from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _

__all__ = ["PhronomyConfig"]


class PhronomyConfig(AppConfig):
    name = "phronomy_django"
    label = "phronomy"
    verbose_name = _("Durable agents")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from phronomy_django import checks, runtime
        from phronomy_django.agents.registry import autodiscover

        checks.register_checks()
        runtime.wire()
        autodiscover()
