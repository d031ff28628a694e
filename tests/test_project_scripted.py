"""The scripted clerk asks for what the e-mail is about, and answers from what the tools said."""

from __future__ import annotations

import json
from typing import Any

import pytest

from example_project.support.mailbox import read_mails
from example_project.support.scripted import clerk
from phronomy_django.domain.messages import (
    AssistantMessage,
    LLMRequest,
    Message,
    ToolCall,
    ToolMessage,
    ToolSpec,
    UserMessage,
)

TOOLS = tuple(ToolSpec(name, "", {"type": "object"}) for name in ("lookup_order", "find_orders"))
CLARA = "From: Clara Moreau <clara@mail.example>\nSubject: Hello\n\n"


def request(*messages: Message, tools: tuple[ToolSpec, ...] = TOOLS) -> LLMRequest:
    return LLMRequest(model="clerk", messages=messages, tools=tools)


def order(**changes: Any) -> dict[str, Any]:
    return {
        "order_number": "A-1001",
        "customer_name": "Clara Moreau",
        "customer_email": "clara@mail.example",
        "status": "shipped",
        "items": "1 desk lamp",
        "total": "89.00",
        "currency": "EUR",
        "ordered_on": "2026-01-12",
        "expected_on": "2026-01-19",
        "carrier": "Parcel Post",
        "tracking_number": "PP1",
    } | changes


def told(facts: Any, *, name: str = "lookup_order", status: str = "succeeded") -> ToolMessage:
    return ToolMessage("call_1", name, json.dumps(facts), status)


def answer(text: str, *messages: Message) -> str:
    reply = clerk(request(UserMessage.of(text), AssistantMessage(), *messages))
    assert isinstance(reply, str)
    return reply


def test_an_order_number_in_the_text_is_looked_up() -> None:
    reply = clerk(request(UserMessage.of(CLARA + "Where is a-1001?")))
    assert isinstance(reply, ToolCall)
    assert (reply.name, json.loads(reply.arguments)) == ("lookup_order", {"order_number": "A-1001"})


def test_several_order_numbers_are_looked_up_side_by_side_each_once() -> None:
    reply = clerk(request(UserMessage.of(CLARA + "A-1001, A-1002 and again A-1001")))
    assert isinstance(reply, list)
    assert [json.loads(call.arguments)["order_number"] for call in reply] == ["A-1001", "A-1002"]
    assert len({call.tool_call_id for call in reply}) == 2


@pytest.mark.parametrize(
    "text",
    [
        "注文番号\N{FULLWIDTH LATIN CAPITAL LETTER A}\N{FULLWIDTH HYPHEN-MINUS}１００４は",
        "注文A-1004は",
        "(A-1004)",
        "A-1004.",
    ],
)
def test_an_order_number_is_found_in_any_script(text: str) -> None:
    reply = clerk(request(UserMessage.of(CLARA + text)))
    assert isinstance(reply, ToolCall)
    assert json.loads(reply.arguments) == {"order_number": "A-1004"}


@pytest.mark.parametrize("text", ["A-12", "A-1234567", "BA-1234", "order 1001"])
def test_what_only_resembles_an_order_number_is_none(text: str) -> None:
    reply = clerk(request(UserMessage.of(CLARA + text)))
    assert isinstance(reply, ToolCall)
    assert (reply.name, json.loads(reply.arguments)) == ("find_orders", {"email": "clara@mail.example"})


def test_the_newest_order_that_was_found_is_looked_up_next() -> None:
    found = told({"orders": [order(order_number="A-2002"), order()]}, name="find_orders")
    reply = clerk(request(UserMessage.of(CLARA + "my parcel?"), AssistantMessage(), found))
    assert isinstance(reply, ToolCall)
    assert (reply.name, json.loads(reply.arguments)) == ("lookup_order", {"order_number": "A-2002"})


def test_without_any_order_the_number_is_asked_for() -> None:
    assert "send us the order number" in answer(CLARA + "hm?", told({"orders": []}, name="find_orders"))


def test_a_shipped_order_is_answered_with_its_tracking_number() -> None:
    letter = answer(CLARA + "Where is A-1001?", told({"found": True, "order": order()}))
    assert letter.startswith("Dear Clara Moreau,")
    assert "on its way with Parcel Post, tracking number PP1. We expect it on 2026-01-19." in letter


@pytest.mark.parametrize(
    ("status", "words"),
    [
        ("preparing", "is being prepared"),
        ("delivered", "was delivered"),
        ("returned", "has come back to us; its total is 89.00 EUR"),
        ("cancelled", "is cancelled; its total of 89.00 EUR will not be charged"),
        ("lost at sea", "has the status 'lost at sea'. I have passed your message on"),
    ],
)
def test_every_status_has_its_sentence(status: str, words: str) -> None:
    assert words in answer(CLARA + "A-1001?", told({"found": True, "order": order(status=status)}))


def test_an_order_is_described_only_to_the_address_that_placed_it() -> None:
    facts = told({"found": True, "order": order()})
    for text in (
        "From: Eve <eve@other.example>\n\nA-1001",
        "From: Clara <clara@mail.example> <eve@other.example>\n\nA-1001",
        "From:  <>\nSubject: A-1001\n\nFrom: Clara <clara@mail.example>",
        "From: Clara <\N{FULLWIDTH LATIN SMALL LETTER C}lara@mail.example>\n\nA-1001",
    ):
        letter = answer(text, facts)
        assert "was placed from another address" in letter
        assert "lamp" not in letter


def test_an_unknown_order_is_said_to_be_unknown() -> None:
    assert "We have no order A-9999" in answer(
        CLARA + "A-9999", told({"found": False, "order_number": "A-9999"})
    )


@pytest.mark.parametrize("content", ["the database is asleep", "[]", '{"found": true}'])
def test_a_failed_tool_leads_to_an_honest_answer(content: str) -> None:
    failed = ToolMessage("call_1", "lookup_order", content, "failed")
    assert "I could not look up your order" in answer(CLARA + "A-1001", failed)


def test_a_failed_search_leads_to_an_honest_answer() -> None:
    failed = ToolMessage("call_1", "find_orders", "asleep", "failed")
    assert "I could not look up your orders" in answer(CLARA + "hm?", failed)


def test_money_is_left_to_a_person() -> None:
    letter = answer(CLARA + "I want a refund for A-1001", told({"found": True, "order": order()}))
    assert "needs a person's decision" in letter


def test_the_same_request_gives_the_same_reply_and_another_one_other_ids() -> None:
    first = clerk(request(UserMessage.of(CLARA + "A-1001")))
    assert first == clerk(request(UserMessage.of(CLARA + "A-1001")))
    other = clerk(request(UserMessage.of(CLARA + "A-1001, please")))
    assert isinstance(first, ToolCall)
    assert isinstance(other, ToolCall)
    assert first.tool_call_id != other.tool_call_id


def test_only_the_last_e_mail_of_a_conversation_is_answered() -> None:
    reply = clerk(
        request(
            UserMessage.of(CLARA + "A-1001"),
            AssistantMessage(),
            told({"found": True, "order": order()}),
            AssistantMessage("Dear Clara, ..."),
            UserMessage.of(CLARA + "And A-1002?"),
        )
    )
    assert isinstance(reply, ToolCall)
    assert json.loads(reply.arguments) == {"order_number": "A-1002"}


def test_a_tool_that_is_not_offered_is_not_called() -> None:
    assert isinstance(clerk(request(UserMessage.of(CLARA + "A-1001"), tools=())), str)


def test_a_request_without_an_e_mail_is_answered() -> None:
    assert "Your message was empty" in str(clerk(request()))


def test_every_mail_of_the_example_gets_a_first_step() -> None:
    replies = [clerk(request(UserMessage.of(mail.as_prompt()))) for mail in read_mails()]
    assert all(isinstance(reply, ToolCall | list) for reply in replies)
    assert any(isinstance(reply, list) for reply in replies)
    assert any(isinstance(reply, ToolCall) and reply.name == "find_orders" for reply in replies)
