"""The agents that are measured. Their models are scripts: what is left is our own cost and the database's."""

from __future__ import annotations

from phronomy_django.agents import Agent, register, tool
from phronomy_django.domain.messages import LLMRequest, ToolMessage
from phronomy_django.llm import Reply, ScriptedLLM, call

QUESTION = "Where is my order?"
ANSWER = "It left our house yesterday and reaches you tomorrow."
ORDER_ID = 4711


def _answer(request: LLMRequest) -> Reply:
    return ANSWER


def _look_up_first(request: LLMRequest) -> Reply:
    if isinstance(request.messages[-1], ToolMessage):
        return ANSWER
    return call("order_state", order_id=ORDER_ID)


@tool
def order_state(order_id: int) -> str:
    """Where an order is.

    Args:
        order_id: The order's number.
    """
    return f"order {order_id}: on its way"


@register
class PlainAgent(Agent):
    """One model call. It is shown no earlier runs, as those it is compared with."""

    definition_id = "bench-plain"
    model = ScriptedLLM(_answer, keep=1)
    instructions = "Help the customer."
    context_window = 0


@register
class ToolAgent(Agent):
    """One model call, one tool, and the model call that the tool's result is for."""

    definition_id = "bench-tool"
    model = ScriptedLLM(_look_up_first, keep=1)
    instructions = "Help the customer."
    tools = (order_state,)
    context_window = 0


@register
class RememberingAgent(Agent):
    """One model call that is shown the last messages of earlier runs."""

    definition_id = "bench-remembering"
    model = ScriptedLLM(_answer, keep=1)
    instructions = "Help the customer."
    context_window = 4
