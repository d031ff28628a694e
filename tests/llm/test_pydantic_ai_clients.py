"""Who opens and closes the adapter's connections, over real HTTP."""

from __future__ import annotations

import asyncio
import gc
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from phronomy_django.llm import LLMError
from tests.llm.asking import answer, ask, local
from tests.llm.openai_server import OpenAIServer, chunks, completion, hang, status


def test_a_cancelled_call_ends_at_once_and_leaves_the_model_usable(openai_server: OpenAIServer) -> None:
    openai_server.then(hang(after=chunks({"content": "Hel"}, finish_reason=None)), completion("again"))
    model = local(openai_server)

    async def cancel_after_the_first_piece() -> None:
        seen = asyncio.Event()
        task = asyncio.create_task(model.stream(ask(), lambda piece: seen.set()))
        await seen.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await model.complete(ask())).text == "again"

    asyncio.run(cancel_after_the_first_piece())


def test_one_loop_uses_one_connection_for_calls_in_a_row(openai_server: OpenAIServer) -> None:
    openai_server.then(*[completion(str(number)) for number in range(5)])
    model = local(openai_server)

    async def in_a_row() -> list[str]:
        return [(await model.complete(ask())).text for _ in range(5)]

    assert asyncio.run(in_a_row()) == ["0", "1", "2", "3", "4"]
    assert openai_server.connections == 1


def test_calls_on_one_loop_overlap(openai_server: OpenAIServer) -> None:
    meeting = threading.Barrier(8)

    def meet(body: Any) -> Any:
        meeting.wait(timeout=20)
        return completion(body["messages"][0]["content"])

    openai_server.then(*[meet] * 8)
    model = local(openai_server)

    async def at_once() -> list[str]:
        responses = await asyncio.gather(*(model.complete(ask(str(number))) for number in range(8)))
        return [response.text for response in responses]

    assert asyncio.run(at_once()) == [str(number) for number in range(8)]


def test_loops_of_several_threads_share_a_model_and_close_what_they_opened(
    openai_server: OpenAIServer,
) -> None:
    openai_server.then(*[lambda body: completion(body["messages"][0]["content"])] * 24)
    model = local(openai_server)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with ThreadPoolExecutor(4) as pool:
            texts = list(pool.map(lambda number: answer(model, ask(str(number))).text, range(24)))
        gc.collect()
    assert texts == [str(number) for number in range(24)]
    assert model._connections == {}


def test_a_closed_model_opens_a_new_connection_when_it_is_used_again(openai_server: OpenAIServer) -> None:
    openai_server.then(completion("one"), completion("two"))
    model = local(openai_server)

    async def close_between() -> None:
        await model.aclose()
        await model.complete(ask())
        await model.aclose()
        assert model._connections == {}
        await model.complete(ask())

    asyncio.run(close_between())
    assert openai_server.connections == 2


def test_a_loop_run_by_hand_closes_the_client_with_its_generators(openai_server: OpenAIServer) -> None:
    openai_server.then(completion("one"), completion("two"))
    model = local(openai_server)
    loop = asyncio.new_event_loop()
    loop.run_until_complete(model.complete(ask()))
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()
    assert model._connections == {}
    assert answer(model, ask()).text == "two"


def test_a_failed_call_is_not_tried_again_here(openai_server: OpenAIServer) -> None:
    openai_server.then(status(500), completion("never asked for"))
    with pytest.raises(LLMError):
        answer(local(openai_server), ask())
    assert len(openai_server.bodies) == 1
