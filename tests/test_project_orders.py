"""The example's orders: loaded once, and told to the tools as values."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict

import pytest
from django.db import IntegrityError, transaction

from example_project.support.mailbox import read_mails
from example_project.support.models import Customer, Order, Ticket
from example_project.support.orders import OrderAnswer, OrderSearch, find_orders, load_orders, lookup_order
from example_project.support.scripted import clerk
from phronomy_django.domain.canonical import canonical_bytes
from phronomy_django.domain.messages import (
    AssistantMessage,
    LLMRequest,
    Message,
    ToolMessage,
    ToolSpec,
    UserMessage,
)

pytestmark = pytest.mark.django_db


def test_loading_twice_adds_nothing_twice_and_changes_nothing() -> None:
    assert load_orders() == 8
    Order.objects.filter(order_number="A-1001").update(status=Order.Status.DELIVERED)
    assert load_orders() == 0
    assert (Order.objects.count(), Customer.objects.count()) == (8, 7)
    assert lookup_order("A-1001").order.status == "delivered"  # type: ignore[union-attr]


def test_an_order_is_found_by_its_number_in_any_case() -> None:
    load_orders()
    answer = lookup_order(" a-1004 ")
    assert answer.found
    assert answer.order is not None
    assert (answer.order.order_number, answer.order.currency, answer.order.expected_on) == (
        "A-1004",
        "JPY",
        "2026-01-20",
    )


def test_an_unknown_order_is_an_answer() -> None:
    assert lookup_order("A-9999").found is False
    assert lookup_order("A-9999").order is None


def test_a_customers_orders_are_found_newest_first() -> None:
    load_orders()
    found = find_orders("Omar.Haddad@mail.example")
    assert [order.order_number for order in found.orders] == ["A-1002", "A-1006"]
    assert find_orders("nobody@mail.example").orders == ()


def test_what_the_tools_return_is_json() -> None:
    load_orders()
    assert canonical_bytes(asdict(lookup_order("A-1001")))
    assert canonical_bytes(asdict(find_orders("omar.haddad@mail.example")))


def test_one_e_mail_makes_one_ticket() -> None:
    Ticket.objects.create(message_id="<1@mail.example>")
    with pytest.raises(IntegrityError), transaction.atomic():
        Ticket.objects.create(message_id="<1@mail.example>")


def test_an_answered_ticket_has_an_answer() -> None:
    with pytest.raises(IntegrityError), transaction.atomic():
        Ticket.objects.create(message_id="<2@mail.example>", status=Ticket.Status.ANSWERED)


def test_the_clerk_answers_every_mail_within_three_turns_from_the_orders() -> None:
    load_orders()
    tools: dict[str, Callable[..., OrderAnswer | OrderSearch]] = {
        "lookup_order": lookup_order,
        "find_orders": find_orders,
    }
    specs = tuple(ToolSpec(name, "", {"type": "object"}) for name in tools)
    letters = []
    for mail in read_mails():
        messages: list[Message] = [UserMessage.of(mail.as_prompt())]
        for _ in range(3):
            reply = clerk(LLMRequest(model="clerk", messages=tuple(messages), tools=specs))
            if isinstance(reply, str):
                letters.append(reply)
                break
            calls = reply if isinstance(reply, list) else [reply]
            messages.append(AssistantMessage(tool_calls=tuple(calls)))
            for call in calls:
                value = tools[call.name](**json.loads(call.arguments))
                messages.append(ToolMessage(call.tool_call_id, call.name, json.dumps(asdict(value))))
    assert len(letters) == len(read_mails())
    assert "tracking number PP443200191" in letters[0]
    assert "A-1002" in letters[1]
    assert "A-1006" in letters[1]
    assert "tracking number PP443201558" in letters[6]  # the mail that names no order
