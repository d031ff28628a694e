"""The demo does its job, and a second run adds nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from io import StringIO
from pathlib import Path

import pytest
from django.core.management import call_command

from example_project.support.mailbox import read_mails
from example_project.support.models import Ticket
from phronomy_django.models import AgentExecution, AgentRoot, JournalRecord, LLMCall, OffloadOperation
from phronomy_django.runtime import reset_runtime
from tests.llm.openai_server import OpenAIServer, completion, openai_server

__all__ = ["openai_server"]

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


def test_the_demo_uses_the_model_that_is_named(tmp_path: Path, openai_server: OpenAIServer) -> None:
    mails = read_mails()
    openai_server.then(*[completion("A person will write to you.") for _ in mails])
    environment = os.environ | {
        "DJANGO_SETTINGS_MODULE": "example_project.settings",
        "PHRONOMY_DEMO_DATABASE": str(tmp_path / "demo.sqlite3"),
        "PHRONOMY_DEMO_MODEL": "openai:local",
        "OPENAI_BASE_URL": openai_server.base_url,
        "OPENAI_API_KEY": "unused",
    }
    root = Path(__file__).resolve().parent.parent
    for command in (["migrate", "--verbosity", "0"], ["demo"]):
        done = subprocess.run(
            [sys.executable, "manage.py", *command],
            cwd=root,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(mails)} tickets answered" in done.stdout
    assert len(openai_server.bodies) == len(mails)
    offered = {tool["function"]["name"] for tool in openai_server.bodies[0]["tools"]}
    assert offered == {"lookup_order", "find_orders"}
