"""The same job as a DBOS workflow: one step for the model call; with a tool, one for each of model, tool, model."""

from __future__ import annotations

import asyncio
import os

from dbos import DBOS

from bench.child import serve
from bench.driver import Sample, drive_async, drive_threads

QUESTION = "Where is my order?"
ANSWER = "It left our house yesterday and reaches you tomorrow."
ORDER_ID = 4711


@DBOS.step()
def ask_model(question: str) -> str:
    return ANSWER


@DBOS.step()
def order_state(order_id: int) -> str:
    return f"order {order_id}: on its way"


@DBOS.workflow()
def plain(question: str) -> str:
    return ask_model(question)


@DBOS.workflow()
def with_tool(question: str) -> str:
    return ask_model(ask_model(question) + order_state(ORDER_ID))


@DBOS.step()
async def aask_model(question: str) -> str:
    return ANSWER


@DBOS.step()
async def aorder_state(order_id: int) -> str:
    return f"order {order_id}: on its way"


@DBOS.workflow()
async def aplain(question: str) -> str:
    return await aask_model(question)


@DBOS.workflow()
async def awith_tool(question: str) -> str:
    return await aask_model(await aask_model(question) + await aorder_state(ORDER_ID))


def measure(*, slots: int, tool: bool, seconds: float, runs: int, form: str) -> Sample:
    """``form``: ``threads`` or ``asyncio``; the caller takes the better one."""
    if form == "threads":
        workflow = with_tool if tool else plain
        return drive_threads(lambda _: workflow(QUESTION), slots, seconds, runs)
    coroutine = awith_tool if tool else aplain
    return asyncio.run(drive_async(lambda _: coroutine(QUESTION), slots, seconds, runs))


if __name__ == "__main__":
    DBOS(
        config={
            "name": "bench",
            "system_database_url": os.environ["BENCH_DATABASE"].replace(
                "postgresql://", "postgresql+psycopg://", 1
            ),
            "sys_db_pool_size": 20,
            "max_executor_threads": 300,
            "log_level": "ERROR",
        }
    )
    DBOS.launch()
    serve(measure)
    DBOS.destroy()
