"""``manage.py phronomy_recover``: what waits for a person, and the answers to it."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from django.contrib.auth import get_user_model
from django.core.management.base import BaseCommand, CommandError, CommandParser

from phronomy_django.agents.client import recover_all
from phronomy_django.agents.decisions import store_decision, store_resolution
from phronomy_django.conf import phronomy_settings
from phronomy_django.domain.errors import PhronomyError, ResolutionRequiredError
from phronomy_django.domain.statuses import ResolutionOutcome
from phronomy_django.models import AgentExecution, ApprovalRequest
from phronomy_django.store import list_waiting

_NEXT = "Stored. The runtime that has the agent goes on within seconds; where none runs: manage.py phronomy_recover run."


class Command(BaseCommand):
    help = (
        "Without a word: list what waits for a person. approve, reject: decide on a tool call. resolve: say what became "
        "of a step whose outcome nobody can know. run: take up everything that was left unfinished, and wait for it."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        words = parser.add_subparsers(dest="word", metavar="word")
        shown = words.add_parser("list", help="what waits for a person (the default)")
        for target in (parser, shown):
            target.add_argument(
                "--json", action="store_true", default=False, help="a JSON list on standard output"
            )
        for word in ("approve", "reject"):
            one = words.add_parser(word, help=f"{word} a tool call")
            one.add_argument("request", help="the approval request's id")
            one.add_argument(
                "--reason", default="", help="stored, and told to the model where it is a rejection"
            )
            one.add_argument("--by", metavar="USERNAME", help="who decides")
        resolve = words.add_parser("resolve", help="say what became of a step")
        resolve.add_argument("execution", help="the execution's id")
        resolve.add_argument("subject", help="the step's id, as the list shows it")
        resolve.add_argument("--outcome", required=True, choices=[str(word) for word in ResolutionOutcome])
        resolve.add_argument("--result", help="JSON: what the step gave (with succeeded)")
        resolve.add_argument("--error", default="", help="what went wrong (with failed)")
        resolve.add_argument(
            "--revision", type=int, help="the execution's revision that you looked at (the list shows it)"
        )
        resolve.add_argument("--by", metavar="USERNAME", help="who says so")
        run = words.add_parser("run", help="take up what was left unfinished, and wait for it")
        run.add_argument("--timeout", type=float, default=600.0, help="seconds to wait")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            match options["word"]:
                case "approve" | "reject":
                    self._decide(options)
                case "resolve":
                    self._resolve(options)
                case "run":
                    self._run(options["timeout"])
                case _:
                    self._list(options["json"])
        except PhronomyError as error:
            raise CommandError(str(error)) from error

    def _list(self, as_json: bool) -> None:
        items = list_waiting(phronomy_settings().database)
        if as_json:
            rows = [{**asdict(item), "since": item.since.isoformat()} for item in items]
            self.stdout.write(json.dumps(rows, indent=1))
            return
        if not items:
            self.stdout.write("Nothing waits for a person.")
        for item in items:
            self.stdout.write(
                f"{item.kind:<10} {item.since:%Y-%m-%d %H:%M:%S}  agent {item.agent_id}  {item.what}"
            )
            if item.kind == "approval":
                self.stdout.write(
                    f"           manage.py phronomy_recover approve {item.subject_id}   (or reject)"
                )
            elif item.subject_id == item.execution_id:
                self.stdout.write("           repair the cause, then: manage.py phronomy_recover run")
            else:
                self.stdout.write(
                    f"           manage.py phronomy_recover resolve {item.execution_id} {item.subject_id} "
                    f"--revision {item.execution_revision} --outcome succeeded|failed|not_performed"
                )

    def _decide(self, options: dict[str, Any]) -> None:
        found = _find(ApprovalRequest, options["request"], "approval request")
        store_decision(
            None,
            found.execution.agent.agent_id,
            found.execution_id,
            approval_request_id=found.pk,
            approved=options["word"] == "approve",
            edited_arguments=None,
            arguments_digest=None,
            reason=options["reason"],
            by=_user(options["by"]),
        )
        self.stdout.write(_NEXT)

    def _resolve(self, options: dict[str, Any]) -> None:
        found = _find(AgentExecution, options["execution"], "execution")
        result = None
        if options["result"] is not None:
            try:
                result = json.loads(options["result"])
            except ValueError as error:
                raise CommandError(
                    f"--result is no JSON: {error}. A text needs its quotes: '\"done\"'."
                ) from error
        revision = options["revision"]
        store_resolution(
            found.agent.agent_id,
            found.pk,
            expected_execution_revision=found.execution_revision if revision is None else revision,
            subject=options["subject"],
            outcome=options["outcome"],
            result=result,
            error=options["error"],
            by=_user(options["by"]),
        )
        self.stdout.write(_NEXT)

    def _run(self, timeout: float) -> None:
        ended, held = 0, 0
        for task in recover_all():
            try:
                result = task.wait_result(timeout)
                ended += 1
                self.stdout.write(f"{task.agent_id}: execution {task.execution_id} is {result.status}")
            except ResolutionRequiredError as error:
                held += 1
                self.stdout.write(self.style.WARNING(str(error)))
            except PhronomyError as error:
                held += 1
                self.stdout.write(self.style.ERROR(f"{task.agent_id}: {error}"))
        self.stdout.write(f"{ended} taken up, {held} left.")


def _find(model: Any, pk: str, what: str) -> Any:
    from phronomy_django.agents.inputs import check_id

    using = phronomy_settings().database
    found = model.objects.using(using).filter(pk=check_id(pk, what)).first()
    if found is None:
        raise CommandError(f"There is no {what} {pk!r}.")
    return found


def _user(name: str | None) -> Any:
    if name is None:
        return None
    model = get_user_model()
    try:
        return model._default_manager.get_by_natural_key(name)
    except model.DoesNotExist:
        raise CommandError(f"There is no user {name!r}.") from None
