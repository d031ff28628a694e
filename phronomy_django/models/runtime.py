"""Runtimes: who may move agents, and whether they still live."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from phronomy_django.domain.statuses import RuntimeState
from phronomy_django.models.fields import IdField, words_check

__all__ = ["RuntimeInstance"]


class RuntimeInstance(models.Model):
    """One process that hosts a Runtime. ``heartbeat_at`` is written by the database's clock only."""

    runtime_id = IdField(_("runtime id"), primary_key=True)
    host = models.CharField(_("host"), max_length=255)
    pid = models.BigIntegerField(_("process id"))
    mode = models.CharField(_("mode"), max_length=16)
    state = models.CharField(_("state"), max_length=16, default=RuntimeState.RUNNING)
    version = models.CharField(_("version"), max_length=64)
    started_at = models.DateTimeField(_("started at"))
    heartbeat_at = models.DateTimeField(_("last heartbeat"), db_index=True)
    stopped_at = models.DateTimeField(_("stopped at"), null=True, blank=True)

    class Meta:
        app_label = "phronomy"
        verbose_name = _("runtime")
        verbose_name_plural = _("runtimes")
        constraints = [words_check("state", RuntimeState, "phronomy_runtime_state")]  # noqa: RUF012

    def __str__(self) -> str:
        return f"{self.host}/{self.pid} {self.runtime_id}"
