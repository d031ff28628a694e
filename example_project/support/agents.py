"""The support desk's agent: reads an e-mail, looks orders up, answers."""

from __future__ import annotations

from django.conf import settings
from django.utils import timezone

from example_project.support import orders
from example_project.support.models import Ticket
from example_project.support.scripted import clerk
from phronomy_django.agents import Agent, ExecutionInfo, ExecutionResult, register, tool
from phronomy_django.domain.statuses import ExecutionStatus
from phronomy_django.llm import ScriptedLLM

__all__ = ["SupportDesk", "find_orders", "lookup_order"]


@tool(replay_safe=True)
def lookup_order(order_number: str) -> orders.OrderAnswer:
    """Look one order up by its number."""
    return orders.lookup_order(order_number)


@tool(replay_safe=True)
def find_orders(email: str) -> orders.OrderSearch:
    """Find the newest orders of the customer with this e-mail address."""
    return orders.find_orders(email)


@register
class SupportDesk(Agent):
    """Answers one customer's e-mail. The ticket is closed in the transaction that stores the answer."""

    definition_id = "example.support-desk"
    model = getattr(settings, "SUPPORT_MODEL", "") or ScriptedLLM(clerk, name="clerk")
    instructions = """
        You answer the e-mails that customers send to a small shop. Look the order up before you say anything
        about it, and tell about an order only to the address that placed it. Be short and friendly.
    """
    tools = (lookup_order, find_orders)
    max_iterations = 6

    def on_terminal(self, execution: ExecutionInfo, result: ExecutionResult) -> None:
        answered = result.status is ExecutionStatus.COMPLETED
        Ticket.objects.filter(message_id=execution.durable_context["message_id"]).update(
            status=Ticket.Status.ANSWERED if answered else Ticket.Status.FAILED,
            answer=result.output if answered else "",
            execution_id=execution.execution_id,
            answered_at=timezone.now() if answered else None,
        )
