"""Changes of an idle agent outside executions, as transitions: knowledge, a cleared transcript, a purge."""

from __future__ import annotations

from datetime import datetime

from phronomy_django.agents.draft import Built, Draft
from phronomy_django.agents.live import LiveAgent
from phronomy_django.agents.messages import Change
from phronomy_django.domain.canonical import canonical_bytes
from phronomy_django.domain.statuses import LifecycleStatus

__all__ = ["build_change"]


def build_change(live: LiveAgent, owner_id: str, now: datetime, change: Change) -> Built:
    draft = Draft(live, owner_id, now, change.kind)
    match change.kind:
        case "knowledge":
            content_id = draft.content(canonical_bytes(change.text))
            draft.record(
                "knowledge_added", channel="knowledge", role="system", content_id=content_id, candidate=True
            )
            return draft.build({}, lifecycle_status=LifecycleStatus.IDLE, new_revision=True)
        case "clear":
            draft.record("transcript_cleared")
            return draft.build(
                {}, lifecycle_status=LifecycleStatus.IDLE, new_revision=True, new_generation=True
            )
        case "purge":
            draft.record("agent_purged")
            return draft.build(
                {}, lifecycle_status=LifecycleStatus.PURGED, new_revision=True, delete_agent_records=True
            )
        case other:
            raise ValueError(f"unknown change {other!r}")
