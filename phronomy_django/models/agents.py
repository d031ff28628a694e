"""Agent roots, their content and their journal."""

from __future__ import annotations

from django.conf import settings
from django.db import models
from django.db.models.functions import Now
from django.utils.translation import gettext_lazy as _

from phronomy_django.domain.statuses import LifecycleStatus
from phronomy_django.models.fields import ContentIdField, IdField, words_check
from phronomy_django.models.runtime import RuntimeInstance

__all__ = ["AgentRoot", "Content", "JournalRecord"]


class Content(models.Model):
    """Immutable bytes named by their digest. A row is inserted once, never updated."""

    content_id = ContentIdField(_("content id"), primary_key=True)
    body = models.BinaryField(_("body"))
    size = models.BigIntegerField(_("size in bytes"))
    media_type = models.CharField(_("media type"), max_length=100)
    canonicalization_version = models.SmallIntegerField(_("canonicalization version"))
    created_at = models.DateTimeField(_("created at"), db_default=Now(), db_index=True)

    class Meta:
        app_label = "phronomy"
        verbose_name = _("content")
        verbose_name_plural = _("contents")

    def __str__(self) -> str:
        return str(self.content_id)


class AgentRoot(models.Model):
    """The durable identity of one logical agent, moved only by the runtime that owns it (DESIGN §8)."""

    id = models.BigAutoField(primary_key=True)
    agent_id = models.CharField(_("agent id"), max_length=200, unique=True)
    definition_id = models.CharField(_("definition id"), max_length=200, db_index=True)
    definition_version = models.PositiveIntegerField(_("definition version"))
    agent_revision = models.BigIntegerField(_("agent revision"), default=0)
    context_revision = models.BigIntegerField(_("context revision"), default=0)
    journal_position = models.BigIntegerField(_("journal position"), default=0)
    transcript_generation = models.PositiveIntegerField(_("transcript generation"), default=0)
    lifecycle_status = models.CharField(_("lifecycle status"), max_length=16, default=LifecycleStatus.IDLE)
    owner = models.ForeignKey(
        RuntimeInstance, models.SET_NULL, null=True, blank=True, related_name="roots", verbose_name=_("owner")
    )
    fencing_token = models.BigIntegerField(_("fencing token"), default=0)
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL,
        models.SET_NULL,
        null=True,
        blank=True,
        related_name="+",
        verbose_name=_("created by"),
    )
    metadata = models.JSONField(_("metadata"), default=dict, blank=True)
    created_at = models.DateTimeField(_("created at"), db_default=Now(), db_index=True)

    class Meta:
        app_label = "phronomy"
        verbose_name = _("agent")
        verbose_name_plural = _("agents")
        constraints = [  # noqa: RUF012
            words_check("lifecycle_status", LifecycleStatus, "phronomy_root_lifecycle"),
            models.CheckConstraint(condition=~models.Q(agent_id=""), name="phronomy_root_agent_id_not_empty"),
        ]

    def __str__(self) -> str:
        return str(self.agent_id)


class JournalRecord(models.Model):
    """One line of what happened to one agent; appended, never changed, numbered without a gap."""

    id = models.BigAutoField(primary_key=True)
    agent = models.ForeignKey(
        AgentRoot, models.CASCADE, related_name="journal", db_index=False, verbose_name=_("agent")
    )
    sequence = models.BigIntegerField(_("sequence"))
    record_id = IdField(_("record id"))
    execution = models.ForeignKey(
        "phronomy.AgentExecution",
        models.CASCADE,
        null=True,
        blank=True,
        related_name="journal",
        verbose_name=_("execution"),
    )
    kind = models.CharField(_("kind"), max_length=40)
    channel = models.CharField(_("channel"), max_length=20)
    role = models.CharField(_("role"), max_length=16, blank=True)
    content = models.ForeignKey(
        Content, models.PROTECT, null=True, blank=True, related_name="+", verbose_name=_("content")
    )
    context_generation = models.PositiveIntegerField(_("context generation"), default=0)
    context_candidate = models.BooleanField(_("context candidate"), default=False)
    transition_id = IdField(_("transition id"), null=True, blank=True)
    data = models.JSONField(_("facts"), default=dict, blank=True)
    created_at = models.DateTimeField(_("created at"))

    class Meta:
        app_label = "phronomy"
        verbose_name = _("journal record")
        verbose_name_plural = _("journal records")
        ordering = ("agent", "sequence")
        constraints = [  # noqa: RUF012
            models.UniqueConstraint(fields=["agent", "sequence"], name="phronomy_journal_sequence"),
            models.UniqueConstraint(fields=["agent", "record_id"], name="phronomy_journal_record_id"),
            models.UniqueConstraint(fields=["transition_id"], name="phronomy_journal_transition"),
        ]
        indexes = [  # noqa: RUF012
            models.Index(
                fields=["agent", "channel", "context_generation", "sequence"],
                condition=models.Q(context_candidate=True),
                name="phronomy_journal_context",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.sequence} {self.kind}"
