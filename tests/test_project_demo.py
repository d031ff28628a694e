"""The demo does its job, and a second run adds nothing."""

from __future__ import annotations

from io import StringIO

import pytest
from django.core.management import call_command

from example_project.support.mailbox import read_mails
from example_project.support.models import Ticket
from phronomy_django.models import AgentExecution, AgentRoot, JournalRecord, LLMCall, OffloadOperation
from phronomy_django.runtime import reset_runtime

pytestmark = pytest.mark.django_db(transaction=True)

TABLES = (AgentRoot, AgentExecution, JournalRecord, LLMCall, OffloadOperation, Ticket)


@pytest.fixture(autouse=True)
def _end_of_runtime():
    yield
    reset_runtime()


def run_demo() -> str:
    out = StringIO()
    call_command("demo", stdout=out)
    return out.getvalue()


def test_every_email_is_answered_and_its_ticket_holds_the_stored_answer() -> None:
    printed = run_demo()
    mails = read_mails()
    assert f"{len(mails)} e-mails, {len(mails)} new executions, {len(mails)} tickets answered" in printed
    for mail in mails:
        ticket = Ticket.objects.get(message_id=mail.message_id)
        execution = AgentExecution.objects.get(pk=ticket.execution_id)
        assert (ticket.status, execution.status) == ("answered", "completed")
        assert ticket.answer
        assert execution.idempotency_key == mail.message_id[:200]


def test_a_second_run_adds_nothing_twice() -> None:
    run_demo()
    before = {table: table.objects.count() for table in TABLES}
    reset_runtime()  # as in another process: nothing is remembered but the rows
    printed = run_demo()
    assert "0 new executions" in printed
    assert {table: table.objects.count() for table in TABLES} == before
