"""The support clerk that needs no network: what a model would do with these e-mails, as a pure function.

The same request always gives the same reply, ids of tool calls included, so that a run that was interrupted
and is repeated asks for the same things.
"""

from __future__ import annotations

import hashlib
import json
import re
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

from phronomy_django.domain.canonical import canonical_bytes
from phronomy_django.domain.messages import LLMRequest, Message, ToolCall, ToolMessage, UserMessage

__all__ = ["clerk"]

MAX_ORDERS = 5

_ORDER_NUMBER = re.compile(r"(?<![A-Za-z0-9-])A-[0-9]{4,6}(?![0-9])", re.IGNORECASE)
# The first line only, and the last address on it: the name before it is whatever the sender likes.
_SENDER = re.compile(r"\AFrom: *(?P<name>.*?) *<(?P<email>[^<>\s]+@[^<>\s]+)>$", re.MULTILINE)
_MONEY_BACK = re.compile(r"refund|return|money back|cancel|rückgabe|zurückgeben|返金|取り消し", re.IGNORECASE)

_SIGNATURE = "Kind regards\nThe support desk"
_PASS_ON = "I have passed your message on to a colleague, who will write to you within one working day."


def clerk(request: LLMRequest) -> str | ToolCall | list[ToolCall]:
    """Look up the orders that the last e-mail names, or those of its sender, and then answer it."""
    found = _last_user_message(request.messages)
    if found is None:
        return f"Dear customer,\n\nYour message was empty. What can we do for you?\n\n{_SIGNATURE}"
    position, question = found
    answers = [message for message in request.messages[position + 1 :] if isinstance(message, ToolMessage)]
    return _next_question(request, question, answers) or _letter(question, answers)


def _last_user_message(messages: Sequence[Message]) -> tuple[int, str] | None:
    """Where the last e-mail stands, and what it says."""
    for index in range(len(messages) - 1, -1, -1):
        message = messages[index]
        if isinstance(message, UserMessage):
            return index, message.text
    return None


def _next_question(
    request: LLMRequest, question: str, answers: Sequence[ToolMessage]
) -> ToolCall | list[ToolCall] | None:
    """The tool calls that come next; None when everything that can be asked was asked."""
    offered = {spec.name for spec in request.tools}
    asked = {answer.name for answer in answers}
    if "lookup_order" in asked:
        return None
    numbers = _order_numbers(question)
    if not numbers and "find_orders" in asked:
        numbers = [order["order_number"] for order in _orders_found(answers)[:1]]
    if numbers and "lookup_order" in offered:
        calls = [
            _call(request, place, "lookup_order", order_number=number)
            for place, number in enumerate(numbers[:MAX_ORDERS])
        ]
        return calls if len(calls) > 1 else calls[0]
    sender = _SENDER.search(question)
    if not numbers and sender and "find_orders" in offered - asked:
        return _call(request, 0, "find_orders", email=sender["email"])
    return None


def _order_numbers(text: str) -> list[str]:
    """The order numbers in a text, each once; full-width letters and digits count as the plain ones."""
    text = unicodedata.normalize("NFKC", text)
    return list(dict.fromkeys(number.upper() for number in _ORDER_NUMBER.findall(text)))


def _call(request: LLMRequest, place: int, tool: str, **arguments: str) -> ToolCall:
    asked = canonical_bytes([message.as_json() for message in request.messages])
    digest = hashlib.sha256(asked + f"\n{tool}\n{place}".encode()).hexdigest()
    return ToolCall(f"call_{digest[:24]}", tool, json.dumps(arguments, ensure_ascii=False))


def _letter(question: str, answers: Sequence[ToolMessage]) -> str:
    sender = _SENDER.search(question)
    name = (sender["name"].strip('" ') if sender else "") or "customer"
    email = sender["email"].lower() if sender else ""
    looked_up = [answer for answer in answers if answer.name == "lookup_order"]
    paragraphs = [_paragraph(answer, email) for answer in looked_up] or [_nothing_found(answers)]
    if looked_up and _MONEY_BACK.search(question):
        paragraphs.append(f"What you ask for needs a person's decision. {_PASS_ON}")
    return "\n\n".join([f"Dear {name},", *paragraphs, _SIGNATURE])


def _nothing_found(answers: Sequence[ToolMessage]) -> str:
    if any(answer.is_error for answer in answers):
        return f"I could not look up your orders just now. {_PASS_ON}"
    return (
        "Thank you for your message. I found no order under your address; "
        "please send us the order number (it looks like A-1234), and we will look at once."
    )


def _paragraph(answer: ToolMessage, email: str) -> str:
    """What is said about one order: nothing about its contents to anybody but the one who placed it."""
    facts = _json_object(answer)
    if facts is None or answer.is_error:
        return f"I could not look up your order just now. {_PASS_ON}"
    order = facts.get("order")
    if not facts.get("found") or not isinstance(order, Mapping):
        number = facts.get("order_number", "")
        return (
            f"We have no order {number}. Please look at the confirmation once more: did you mean another one?"
        )
    if order["customer_email"].lower() != email:
        return (
            f"Order {order['order_number']} was placed from another address. "
            "Please write to us from that one, so that we know it is you."
        )
    return _status_sentence(order)


def _status_sentence(order: Mapping[str, Any]) -> str:
    number, items = order["order_number"], order["items"]
    parcel = (
        f" with {order['carrier']}, tracking number {order['tracking_number']}" if order["carrier"] else ""
    )
    expected = f" We expect it on {order['expected_on']}." if order["expected_on"] else ""
    match order["status"]:
        case "preparing":
            return f"Order {number} ({items}) is being prepared and has not left our house yet.{expected}"
        case "shipped":
            return f"Order {number} ({items}) is on its way{parcel}.{expected}"
        case "delivered":
            return f"Order {number} ({items}) was delivered{parcel}."
        case "returned":
            return f"Order {number} ({items}) has come back to us; its total is {_total(order)}."
        case "cancelled":
            return f"Order {number} ({items}) is cancelled; its total of {_total(order)} will not be charged."
        case other:
            return f"Order {number} ({items}) has the status {other!r}. {_PASS_ON}"


def _total(order: Mapping[str, Any]) -> str:
    return f"{order['total']} {order['currency']}"


def _orders_found(answers: Sequence[ToolMessage]) -> Sequence[Mapping[str, Any]]:
    for answer in answers:
        facts = _json_object(answer)
        if answer.name == "find_orders" and not answer.is_error and facts is not None:
            return tuple(facts.get("orders", ()))
    return ()


def _json_object(answer: ToolMessage) -> Mapping[str, Any] | None:
    try:
        value = json.loads(answer.content)
    except ValueError:
        return None
    return value if isinstance(value, Mapping) else None
