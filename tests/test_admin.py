"""The admin: records are shown and not changed, people decide, rights are asked for, nothing that a model wrote runs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Permission
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from phronomy_django.agents import Agent, tool
from phronomy_django.domain.messages import LLMRequest, ToolMessage
from phronomy_django.llm import call
from phronomy_django.models import AgentExecution, ApprovalRequest
from tests.agents.conftest import Define, define
from tests.waiting import wait_until

__all__ = ["define"]

NASTY = "<script>alert(1)</script>\u202egnp.exe"
PAGES = (
    "agentroot",
    "agentexecution",
    "approvalrequest",
    "offloadoperation",
    "runtimeinstance",
    "recoveryresolution",
)


@tool(requires_approval=True, facts=lambda note: {"seen": note})
def pay(note: str) -> str:
    """Pay."""
    return "paid: " + note


def script(request: LLMRequest) -> Any:
    last = request.messages[-1]
    return last.content if isinstance(last, ToolMessage) else call("pay", note=NASTY)


@pytest.fixture
def agent_class(define: Define) -> type[Agent]:
    return define(script, tools=[pay])


@pytest.fixture
def signed_in(transactional_db: None) -> Iterator[Any]:
    """``signed_in("right", …)``: a client of a staff user with these rights; ``superuser`` for one with all."""

    def make(*rights: str, staff: bool = True, superuser: bool = False) -> Client:
        model = get_user_model()
        user = model.objects.create(
            username=f"user-{model.objects.count()}", is_staff=staff, is_superuser=superuser
        )
        user.user_permissions.set(Permission.objects.filter(codename__in=rights))
        client = Client()
        client.force_login(user)
        return client

    yield make


def url(page: str, word: str = "changelist", *args: Any) -> str:
    return reverse(f"admin:phronomy_{page}_{word}", args=args)


def decide(client: Client, item: ApprovalRequest, action: str, **more: str) -> Any:
    data = {"action": action, "_selected_action": item.pk, **more}
    return client.post(url("approvalrequest"), data, follow=True)


def confirmed(item: ApprovalRequest) -> dict[str, str]:
    return {"decide": "1", "shown": item.pk, "digest": item.arguments_digest, "reason": "because"}


@pytest.mark.parametrize("page", PAGES)
def test_a_page_is_for_those_who_may_see_it(signed_in: Any, page: str) -> None:
    assert Client().get(url(page)).status_code == 302
    assert signed_in(staff=False).get(url(page)).status_code == 302
    assert signed_in().get(url(page)).status_code == 403
    assert signed_in(f"view_{page}").get(url(page)).status_code == 200
    assert signed_in("decide_approval").get(url(page)).status_code == 403
    assert signed_in(superuser=True).get(url(page)).status_code == 200


@pytest.mark.parametrize("page", PAGES)
def test_nobody_adds_changes_or_deletes_a_durable_record(
    signed_in: Any, agent_class: type[Agent], page: str
) -> None:
    agent_class.create("a").invoke("go", timeout=30)
    client = signed_in(superuser=True)
    assert client.get(url(page, "add")).status_code == 403
    if page == "agentexecution":
        pk = AgentExecution.objects.get().pk
        assert client.post(url(page, "change", pk), {"status": "completed"}).status_code == 403
        assert client.post(url(page, "delete", pk), {"post": "yes"}).status_code == 403
        assert AgentExecution.objects.get().status == "suspended"


def test_a_request_is_approved_with_a_reason_bound_to_what_was_shown(
    signed_in: Any, agent_class: type[Agent]
) -> None:
    result = agent_class.create("a").invoke("go", timeout=30)
    item = ApprovalRequest.objects.get()
    client = signed_in("view_approvalrequest", "decide_approval")
    asked = decide(client, item, "approve_selected").content.decode()
    assert item.arguments_digest in asked
    assert ApprovalRequest.objects.get().state == "pending"
    told = decide(client, item, "approve_selected", **confirmed(item)).content.decode()
    assert "1 decision is stored" in told
    stored = ApprovalRequest.objects.get()
    assert (stored.state, stored.reason) == ("approved", "because")
    assert stored.decided_by is not None
    wait_until(lambda: AgentExecution.objects.get().status == "completed", "the end")
    assert result.execution_id == stored.execution_id


def test_a_lost_race_is_a_message(signed_in: Any, agent_class: type[Agent]) -> None:
    agent_class.create("a").invoke("go", timeout=30)
    item = ApprovalRequest.objects.get()
    ApprovalRequest.objects.update(arguments_digest="sha256:other")
    client = signed_in(superuser=True)
    answer = decide(client, item, "reject_selected", **confirmed(item))
    assert answer.status_code == 200
    assert "shows other arguments" in answer.content.decode()
    assert ApprovalRequest.objects.get().state == "pending"


def test_the_right_to_see_is_not_the_right_to_decide(signed_in: Any, agent_class: type[Agent]) -> None:
    agent_class.create("a").invoke("go", timeout=30)
    item = ApprovalRequest.objects.get()
    client = signed_in("view_approvalrequest")
    assert "approve_selected" not in client.get(url("approvalrequest")).content.decode()
    decide(client, item, "approve_selected", **confirmed(item))
    assert ApprovalRequest.objects.get().state == "pending"


def test_what_a_model_wrote_is_shown_and_never_runs(signed_in: Any, agent_class: type[Agent]) -> None:
    agent_class.create("a").invoke("go", timeout=30)
    item, client = ApprovalRequest.objects.get(), signed_in(superuser=True)
    pages = [
        client.get(url("approvalrequest")),
        client.get(url("approvalrequest", "change", item.pk)),
        client.get(url("agentexecution", "change", item.execution_id)),
        decide(client, item, "approve_selected"),
    ]
    for page in pages:
        text = page.content.decode()
        assert page.status_code == 200
        assert "&lt;script&gt;" in text
        assert "<script>alert(1)" not in text
        assert "unicode-bidi: plaintext" in text


@pytest.mark.parametrize("page", PAGES)
def test_a_list_takes_as_many_queries_for_many_rows_as_for_one(
    signed_in: Any, agent_class: type[Agent], page: str
) -> None:
    client = signed_in(superuser=True)
    counts = []
    for count in (1, 12):
        for number in range(count):
            agent_class.create(f"{page}-{count}-{number}").invoke("go", timeout=30)
        client.get(url(page))
        with CaptureQueriesContext(connection) as queries:
            assert client.get(url(page)).status_code == 200
        counts.append(len(queries))
    assert counts[0] == counts[1]
