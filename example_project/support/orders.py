"""The orders as the support desk sees them: loading the example's own, and the questions that tools ask.

What a tool returns is a frozen value that JSON can carry. An order that does not exist is an answer,
not an error.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from django.db import transaction

from example_project.support.models import Customer, Order

__all__ = ["OrderAnswer", "OrderFacts", "OrderSearch", "find_orders", "load_orders", "lookup_order"]

DATA = Path(__file__).resolve().parent / "data" / "orders.json"
SEARCH_LIMIT = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderFacts:
    """One order. Dates are ISO 8601, ``total`` is a decimal number as text, "" is unknown."""

    order_number: str
    customer_name: str
    customer_email: str
    status: str
    items: str
    total: str
    currency: str
    ordered_on: str
    expected_on: str = ""
    carrier: str = ""
    tracking_number: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderAnswer:
    """The answer to a question for one order number."""

    order_number: str
    found: bool
    order: OrderFacts | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderSearch:
    """The answer to a question for a customer's orders: newest first, ten at most."""

    email: str
    orders: tuple[OrderFacts, ...] = ()


def lookup_order(order_number: str) -> OrderAnswer:
    """The order with this number; upper and lower case do not matter."""
    wanted = order_number.strip().upper()
    order = Order.objects.select_related("customer").filter(order_number=wanted).first()
    return OrderAnswer(order_number=wanted, found=order is not None, order=_facts(order) if order else None)


def find_orders(email: str) -> OrderSearch:
    """The orders of the customer with this address; upper and lower case do not matter."""
    wanted = email.strip().lower()
    orders = Order.objects.select_related("customer").filter(customer__email=wanted)[:SEARCH_LIMIT]
    return OrderSearch(email=wanted, orders=tuple(_facts(order) for order in orders))


def load_orders(path: Path = DATA) -> int:
    """Add the customers and orders of ``path`` that are not there yet, all or none; how many orders were new.

    Existing rows stay as they are, so that a second call changes nothing.
    """
    data = json.loads(path.read_text(encoding="utf-8"))
    created = 0
    with transaction.atomic():
        customers = {
            row["email"]: Customer.objects.get_or_create(email=row["email"], defaults={"name": row["name"]})[
                0
            ]
            for row in data["customers"]
        }
        for row in data["orders"]:
            values = row | {"customer": customers[row["customer"]]}
            number = values.pop("order_number")
            created += Order.objects.get_or_create(order_number=number, defaults=values)[1]
    return created


def _facts(order: Order) -> OrderFacts:
    return OrderFacts(
        order_number=order.order_number,
        customer_name=order.customer.name,
        customer_email=order.customer.email,
        status=order.status,
        items=order.items,
        total=str(order.total),
        currency=order.currency,
        ordered_on=order.ordered_on.isoformat(),
        expected_on=order.expected_on.isoformat() if order.expected_on else "",
        carrier=order.carrier,
        tracking_number=order.tracking_number,
    )
