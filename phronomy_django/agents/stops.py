"""Requests to stop an execution, wherever it is: live, promised, loading, ended, or not of this runtime."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import chain
from typing import TYPE_CHECKING, Any

from phronomy_django.agents.messages import StopExecution, StopLookedUp
from phronomy_django.agents.services import Services
from phronomy_django.domain.errors import NotFoundError, RehydrationRequiredError
from phronomy_django.domain.statuses import TERMINAL
from phronomy_django.store import ExecutionSnapshot, load_execution

if TYPE_CHECKING:
    from phronomy_django.agents.coordinator import Coordinator

__all__ = ["Stops"]


class Stops:
    """Loop thread only, but for ``reserved``: ids that were promised to callers and not seen yet.

    A stop for an unfinished execution that is not live has it taken up again (``resume``), and waits for that.
    ``expected(execution_id)`` says whether a start with that id waits for its load. A stop for such an id, or for a
    promised one, waits for that start (HARD_POINTS 11).
    """

    def __init__(
        self,
        services: Services,
        post: Callable[[Any], object],
        live: Mapping[str, Coordinator],
        expected: Callable[[str], bool],
        resume: Callable[[ExecutionSnapshot], None],
    ) -> None:
        self.reserved: set[str] = set()
        self._services = services
        self._post = post
        self._live = live
        self._expected = expected
        self._resume = resume
        self._ahead: dict[str, list[StopExecution]] = {}

    def begun(self, coordinator: Coordinator) -> None:
        """An execution has begun: hand it the stop that waited for it."""
        execution_id = coordinator.start.execution_id
        self.reserved.discard(execution_id)
        for request in self._ahead.pop(execution_id, ()):
            coordinator.stop(request.stop, request.task)

    def refused(self, execution_id: str, error: BaseException) -> None:
        """The start with this id was refused: there will be nothing to stop."""
        for request in self._ahead.pop(execution_id, ()):
            request.task.set_error(error)

    def request(self, request: StopExecution) -> None:
        coordinator = self._live.get(request.execution_id)
        if coordinator is not None:
            coordinator.stop(request.stop, request.task)
            return
        if request.execution_id in self.reserved or self._expected(request.execution_id):
            self._ahead.setdefault(request.execution_id, []).append(request)
            return
        database = self._services.database

        def done(found: Any, error: BaseException | None) -> None:
            self._post(StopLookedUp(request, found, error))

        try:
            self._services.read(lambda: load_execution(request.execution_id, database), done)
        except Exception as error:  # noqa: BLE001 - a full or closed pool refuses the request
            done(None, error)

    def looked_up(self, message: StopLookedUp) -> None:
        request, found = message.request, message.found
        coordinator = self._live.get(request.execution_id)
        if coordinator is not None:
            coordinator.stop(request.stop, request.task)
        elif isinstance(message.error, NotFoundError) and self._expected(request.execution_id):
            self._ahead.setdefault(request.execution_id, []).append(request)
        elif found is None:
            request.task.set_error(message.error or RehydrationRequiredError())
        elif found.status in TERMINAL:
            request.task.set_result(False)
        else:
            self._ahead.setdefault(request.execution_id, []).append(request)
            self._resume(found)

    def is_ahead(self, execution_id: str) -> bool:
        """Whether a stop waits for this execution to be live."""
        return execution_id in self._ahead

    def abandon(self, error: BaseException) -> None:
        """The loop is gone."""
        for request in chain.from_iterable(self._ahead.values()):
            request.task.set_error(error)
        self._ahead.clear()
