"""The line before the writer: order for each root, one transition of it at a time, nothing overtaken."""

from __future__ import annotations

import random
from dataclasses import replace

from phronomy_django.domain.ids import new_id
from phronomy_django.domain.records import OperationStep, Transition
from phronomy_django.store.line import MAX_BATCH_BYTES, Job, Line
from tests.store.transitions import Agent


def agent(root: int) -> Agent:
    return Agent(root, f"agent-{root}", new_id(), 1)


def job(root: int, **more: object) -> Job:
    return Job(replace(agent(root).note(), **more), lambda answer: None)  # type: ignore[arg-type]


def step(root: int, operation_id: str) -> Job:
    one = agent(root)
    change = one.operation_change(operation_id=operation_id)
    work = OperationStep(root_id=root, owner_id=one.owner_id, fencing_token=1, changes=(change,))
    return Job(work, lambda answer: None)


def line(*jobs: Job) -> Line:
    made = Line()
    made.append(jobs)
    return made


def test_a_second_transition_of_a_root_waits_for_the_first() -> None:
    jobs = [job(1), job(1), job(2)]
    waiting = line(*jobs)
    assert waiting.take(9, 0.0) == [jobs[0], jobs[2]]
    assert waiting.take(9, 0.0) == [jobs[1]]


def test_a_job_that_is_not_due_holds_its_root_and_no_other() -> None:
    jobs = [job(1), job(1), job(2)]
    jobs[0].due = 5.0
    waiting = line(*jobs)
    assert waiting.take(9, 0.0) == [jobs[2]]
    assert waiting.take(9, 0.0) == []
    assert waiting.next_due() == 5.0
    assert waiting.take(9, 5.0) == [jobs[0]]
    assert waiting.next_due() == 0.0


def test_an_operation_is_changed_by_one_work_of_a_batch() -> None:
    operation = new_id()
    jobs = [step(1, operation), step(1, new_id()), step(1, operation)]
    waiting = line(*jobs)
    assert waiting.take(9, 0.0) == jobs[:2]
    assert waiting.take(9, 0.0) == [jobs[2]]


def test_what_failed_once_and_what_brings_application_code_goes_alone() -> None:
    jobs = [job(1), job(2, hook=lambda: None), job(3), job(4)]
    jobs[3].alone = True
    waiting = line(*jobs)
    assert waiting.take(9, 0.0) == [jobs[0], jobs[2]]
    assert waiting.take(9, 0.0) == [jobs[1]]
    assert waiting.take(9, 0.0) == [jobs[3]]


def test_a_held_root_gives_out_nothing_until_it_is_released() -> None:
    jobs = [job(1), job(2)]
    waiting = line(*jobs)
    waiting.hold(1)
    assert waiting.take(9, 0.0) == [jobs[1]]
    assert waiting.next_due() is None
    waiting.release(1)
    assert waiting.take(9, 0.0) == [jobs[0]]


def test_a_batch_ends_early_where_its_content_gets_too_large() -> None:
    one = job(1)
    assert isinstance(one.work, Transition)
    big = one.work.contents[0]._replace(body=b"x" * (MAX_BATCH_BYTES // 2 + 1))
    jobs = [job(root, contents=(big,)) for root in (1, 2)]
    waiting = line(*jobs)
    assert waiting.take(9, 0.0) == [jobs[0]]
    assert waiting.take(9, 0.0) == [jobs[1]]


def test_in_random_lines_no_job_is_lost_and_none_overtakes_one_of_its_root() -> None:
    for seed in range(300):
        choice = random.Random(seed)
        jobs = [
            step(choice.randrange(4), f"op-{choice.randrange(3)}")
            if choice.random() < 0.4
            else job(choice.randrange(4), hook=(lambda: None) if choice.random() < 0.2 else None)
            for _ in range(choice.randrange(1, 20))
        ]
        for one in jobs:
            one.alone, one.due = choice.random() < 0.2, choice.choice([0.0, 0.0, 1.0, 2.0])
        waiting, taken, now = line(*jobs), [], 0.0
        while len(waiting):
            batch = waiting.take(choice.randrange(1, 6), now)
            assert batch or (waiting.next_due() or 0.0) > now, f"seed {seed}: a due job is not given out"
            moved = [one.root for one in batch if isinstance(one.work, Transition)]
            assert len(moved) == len(set(moved))
            if choice.random() < 0.2:
                waiting.put_back(batch)
            else:
                taken += batch
            now += 0.0 if batch else 1.0
        assert len(taken) == len(jobs)
        for root in range(4):
            assert [one for one in taken if one.root == root] == [one for one in jobs if one.root == root]
