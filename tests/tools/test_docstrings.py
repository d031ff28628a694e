"""The three layouts of a docstring."""

from __future__ import annotations

import pytest

from phronomy_django.tools import tool
from phronomy_django.tools.docstrings import parse_docstring

GOOGLE = """Refund part of an order.

    More on it: it goes out at once.

    Args:
        order_id: The order
            that is meant.

            Not the customer.
        amount (Decimal, optional): How much: in euros.
        reason (dict[str, int]):
            Said to the customer.
        *rest: Others.

    Returns:
        order_id: not a parameter.

    Raises:
        ValueError: if not.
    """

NUMPY = """Refund part of an order.

    More on it: it goes out at once.

    Parameters
    ----------
    order_id : int
        The order
        that is meant.

        Not the customer.
    amount : Decimal, optional
        How much: in euros.
    reason
        Said to the customer.
    *rest
        Others.

    Returns
    -------
    order_id : int
        not a parameter.
    """

REST = """Refund part of an order.

    More on it: it goes out at once.

    :param order_id: The order
        that is meant.

        Not the customer.
    :param Decimal amount: How much: in euros.
    :type amount: Decimal
    :param reason:
        Said to the customer.
    :param rest: Others.
    :returns: nothing of order_id.
    :raises ValueError: if not.
    """


@pytest.mark.parametrize("text", [GOOGLE, NUMPY, REST], ids=["google", "numpy", "rest"])
def test_each_layout_gives_the_same_description_and_parameters(text: str) -> None:
    description, parameters = parse_docstring(text)

    assert description == "Refund part of an order.\n\nMore on it: it goes out at once."
    assert parameters == {
        "order_id": "The order that is meant. Not the customer.",
        "amount": "How much: in euros.",
        "reason": "Said to the customer.",
        "rest": "Others.",
    }


def test_numpy_names_may_share_one_text() -> None:
    text = "Plot.\n\nParameters\n----------\nx, y : float\n    A coordinate.\nz : float\n"

    assert parse_docstring(text).parameters == {"x": "A coordinate.", "y": "A coordinate."}


@pytest.mark.parametrize("text", [None, "", "   \n  "])
def test_no_docstring_is_no_description(text: str | None) -> None:
    assert parse_docstring(text) == ("", {})


def test_prose_that_only_resembles_a_section_stays_in_the_description() -> None:
    text = "Count.\n\nNote:\nthe rest follows.\nParameters are few.\n12:30: late.\n:tada: is no field.\n"

    assert parse_docstring(text).description == text.strip()


def test_text_after_a_parameter_section_is_in_no_parameter() -> None:
    text = "Count.\n\nArgs:\n    a: One.\nAnd more prose.\n    b: not one.\n"

    assert parse_docstring(text).parameters == {"a": "One."}


def test_a_numpy_section_ends_at_a_line_that_names_nothing() -> None:
    text = "Count.\n\nParameters\n----------\na : int\n    One.\nAnd more prose, it is!\n    b\n"

    assert parse_docstring(text).parameters == {"a": "One."}


def test_a_docstring_reaches_the_schema() -> None:
    def refund(order_id: int, amount: float) -> None: ...

    refund.__doc__ = NUMPY
    definition = tool(refund)

    assert definition.description.startswith("Refund part of an order.\n\nMore")
    assert definition.spec.parameters["properties"]["amount"]["description"] == "How much: in euros."
