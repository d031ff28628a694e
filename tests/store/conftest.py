from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import connections

from phronomy_django.engine import ThreadScheduler
from phronomy_django.store import CommitAnswer, DurableWriter, Work
from tests.store.transitions import Agent, new_runtime


class Answers:
    """Submits works and waits for their answers, in the order of submission."""

    def __init__(self, writer: DurableWriter, scheduler: Any) -> None:
        self.writer = writer
        self._scheduler = scheduler

    def submit(self, *works: Work) -> list[CommitAnswer | None]:
        answers: list[CommitAnswer | None] = [None] * len(works)
        for place, work in enumerate(works):
            self.writer.submit(work, self._keep(answers, place))
        return answers

    @staticmethod
    def _keep(answers: list[CommitAnswer | None], place: int) -> Callable[[CommitAnswer], None]:
        def keep(answer: CommitAnswer) -> None:
            assert answers[place] is None, "answered twice"
            answers[place] = answer

        return keep

    def wait(self, answers: list[CommitAnswer | None], timeout: float = 30.0) -> list[CommitAnswer]:
        assert self._scheduler.wait(lambda: None not in answers, timeout), f"no answer: {answers}"
        return [answer for answer in answers if answer is not None]

    def commit(self, *works: Work) -> list[CommitAnswer]:
        return self.wait(self.submit(*works))


@pytest.fixture
def runtime_id(transactional_db: None) -> str:
    return new_runtime()


@pytest.fixture
def agent(runtime_id: str) -> Agent:
    return Agent.create(runtime_id)


@pytest.fixture
def make_writer(transactional_db: None) -> Iterator[Callable[..., Answers]]:
    """Makes durable writers on threads; they are closed, and have ended, before the database is emptied."""
    scheduler = ThreadScheduler()
    writers: list[DurableWriter] = []

    def make(*, start: bool = True, **options: Any) -> Answers:
        writer = DurableWriter(scheduler=scheduler, **options)
        writers.append(writer)
        if start:
            writer.start()
        return Answers(writer, scheduler)

    yield make
    for writer in writers:
        writer.close()
        writer.start()
    ended = [writer.join(30.0) for writer in writers]
    connections.close_all()
    assert all(ended)


@pytest.fixture
def writer(make_writer: Callable[..., Answers]) -> Answers:
    return make_writer()
