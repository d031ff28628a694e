"""The same job as a graph with LangGraph's PostgreSQL checkpointer, ``durability="sync"``.

Without a tool two nodes: the request is received, the model is called. With one three: model, tool, model.
Every run is a thread of its own (LangGraph's word), so that it carries no history.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import uuid
from typing import Any, TypedDict

from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.graph import END, START, StateGraph
from psycopg.rows import dict_row
from psycopg_pool import AsyncConnectionPool, ConnectionPool

from bench.child import serve
from bench.driver import Sample, drive_async, drive_threads

QUESTION = "Where is my order?"
ANSWER = "It left our house yesterday and reaches you tomorrow."
ORDER_ID = 4711
CONNECTION: dict[str, Any] = {"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row}
POOL = 8  # the checkpointer holds one lock for all of its statements: more would not be used


class State(TypedDict, total=False):
    question: str
    answer: str
    order: str


def receive(state: State) -> State:
    return {"question": state["question"].strip()}


def ask_model(state: State) -> State:
    return {"answer": ANSWER}


def order_state(state: State) -> State:
    return {"order": f"order {ORDER_ID}: on its way"}


def graph(tool: bool, saver: Any) -> Any:
    nodes = (ask_model, order_state, ask_model) if tool else (receive, ask_model)
    made = StateGraph(State)
    names = [f"node-{number}" for number in range(len(nodes))]
    for name, node in zip(names, nodes, strict=True):
        made.add_node(name, node)
    for before, after in itertools.pairwise((START, *names, END)):
        made.add_edge(before, after)
    return made.compile(checkpointer=saver)


def _config() -> Any:
    return {"configurable": {"thread_id": str(uuid.uuid4())}}


def measure(*, slots: int, tool: bool, seconds: float, runs: int, form: str) -> Sample:
    """``form``: ``threads`` or ``asyncio``; the caller takes the better one."""
    url = os.environ["BENCH_DATABASE"]
    if form == "asyncio":
        return asyncio.run(_measure_async(url, slots, tool, seconds, runs))
    with ConnectionPool(url, min_size=POOL, max_size=POOL, kwargs=CONNECTION, open=True) as pool:
        pool.wait()
        compiled = graph(tool, PostgresSaver(pool))
        return drive_threads(
            lambda _: compiled.invoke({"question": QUESTION}, _config(), durability="sync"),
            slots,
            seconds,
            runs,
        )


async def _measure_async(url: str, slots: int, tool: bool, seconds: float, runs: int) -> Sample:
    async with AsyncConnectionPool(url, min_size=POOL, max_size=POOL, kwargs=CONNECTION, open=False) as pool:
        await pool.wait()
        compiled = graph(tool, AsyncPostgresSaver(pool))
        return await drive_async(
            lambda _: compiled.ainvoke({"question": QUESTION}, _config(), durability="sync"),
            slots,
            seconds,
            runs,
        )


if __name__ == "__main__":
    with PostgresSaver.from_conn_string(os.environ["BENCH_DATABASE"]) as prepared:
        prepared.setup()
    serve(measure)
