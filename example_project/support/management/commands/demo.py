"""``manage.py demo``: the support desk answers the e-mails of the example, durably, in one process."""

from __future__ import annotations

import hashlib
import textwrap
import time
from dataclasses import dataclass
from typing import Any

from django.core.management.base import BaseCommand, CommandParser
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from example_project.support.agents import SupportDesk
from example_project.support.mailbox import Mail, read_mails
from example_project.support.models import Ticket
from example_project.support.orders import load_orders
from phronomy_django.agents import ExecutionResult, ExecutionTask
from phronomy_django.errors import AgentAlreadyExistsError, PhronomyError
from phronomy_django.models import AgentExecution, JournalRecord, ToolInvocation

WAIT_SECONDS = 300.0
ANSWER_CHARACTERS = 240
#: Columns where the output is no terminal.
PLAIN_WIDTH = 130


@dataclass(slots=True, kw_only=True)
class Line:
    """One e-mail on its way through the desk."""

    mail: Mail
    task: ExecutionTask
    started: float
    ended: float = 0.0
    result: ExecutionResult | None = None
    problem: str = ""


class Command(BaseCommand):
    help = "Let the support desk answer the e-mails in example_project/support/mails. A second run changes nothing."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--width", type=int, default=None, help="Columns of the table.")

    def handle(self, *args: Any, **options: Any) -> None:
        console = Console(file=self.stdout._out, width=options["width"])
        if options["width"] is None and not console.is_terminal:
            console.width = PLAIN_WIDTH
        load_orders()
        mails = read_mails()
        before = AgentExecution.objects.count()
        lines = self._answer(console, mails)
        console.print(self._table(lines))
        new = AgentExecution.objects.count() - before
        tickets = Ticket.objects.filter(status=Ticket.Status.ANSWERED).count()
        console.print(
            f"{len(lines)} e-mails, {new} new executions, {tickets} tickets answered. "
            "Run it again: nothing is added twice."
        )
        failed = [line for line in lines if line.problem]
        for line in failed:
            self.stderr.write(f"{line.mail.message_id}: {line.problem}")
        if failed:
            raise SystemExit(1)

    def _answer(self, console: Console, mails: tuple[Mail, ...]) -> list[Line]:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        lines = []
        with Progress(*columns, console=console, transient=True) as progress:
            bar = progress.add_task("Answering e-mails", total=len(mails))
            for mail in mails:
                lines.append(self._start(mail))
            for line in lines:
                try:
                    line.result = line.task.wait_result(WAIT_SECONDS)
                    line.result.output  # noqa: B018 - raises what went wrong
                except PhronomyError as error:
                    line.problem = str(error)
                line.ended = time.monotonic()
                progress.advance(bar)
        return lines

    @staticmethod
    def _start(mail: Mail) -> Line:
        """One agent for each e-mail; the Message-ID is the key under which it is answered once only."""
        Ticket.objects.get_or_create(
            message_id=mail.message_id, defaults={"sender": mail.sender, "subject": mail.subject}
        )
        agent_id = "mail-" + hashlib.sha256(mail.message_id.encode()).hexdigest()[:24]
        try:
            agent = SupportDesk.create(agent_id)
        except AgentAlreadyExistsError:
            agent = SupportDesk.load(agent_id)
        task = agent.invoke_async(
            mail.as_prompt(),
            idempotency_key=mail.message_id[:200],
            durable_context={"message_id": mail.message_id},
        )
        return Line(mail=mail, task=task, started=time.monotonic())

    @staticmethod
    def _table(lines: list[Line]) -> Table:
        table = Table(title="Support desk", show_lines=True)
        table.add_column("E-mail", ratio=3)
        table.add_column("Tools called", ratio=2)
        table.add_column("Status")
        table.add_column("Answer", ratio=5)
        table.add_column("Commits", justify="right")
        table.add_column("Time", justify="right")
        for line in lines:
            execution = AgentExecution.objects.filter(pk=line.task.execution_id).first()
            if execution is None:
                table.add_row(Text(line.mail.subject), "", "refused", Text(line.problem), "", "")
                continue
            tools = ToolInvocation.objects.filter(execution=execution).order_by("created_at", "position")
            commits = JournalRecord.objects.filter(execution=execution, transition_id__isnull=False).count()
            seconds = ""
            if execution.finished_at is not None:
                seconds = f"{(execution.finished_at - execution.created_at).total_seconds():.3f} s"
            ended = line.result is not None and not line.problem
            answer = line.result.output if ended and line.result is not None else line.problem
            table.add_row(
                Text(line.mail.subject or "(no subject)"),
                Text(", ".join(tool.tool_name for tool in tools) or "none"),
                execution.status,
                Text(textwrap.shorten(answer, ANSWER_CHARACTERS, placeholder=" …")),
                str(commits),
                seconds,
            )
        return table
