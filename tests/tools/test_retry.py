"""When a tool that failed is run again."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phronomy_django.domain.errors import ConfigurationError, ExecutionCancelledError, PhronomyError
from phronomy_django.tools import ToolArgumentError, ToolError, ToolRetry


def test_waits_grow_by_the_factor_and_end_with_the_attempts() -> None:
    retry = ToolRetry(max_attempts=4, base=0.5, factor=2, max_delay=10)

    assert [retry.delay(attempt) for attempt in (1, 2, 3, 4, 5)] == [0.5, 1.0, 2.0, None, None]


def test_the_defaults_are_three_attempts_from_a_fifth_of_a_second() -> None:
    assert [ToolRetry().delay(attempt) for attempt in (1, 2, 3)] == [0.2, 0.4, None]


@given(st.integers(1, 10**6), st.floats(0, 1e300), st.floats(1, 1e300), st.floats(0, 1e9))
def test_no_wait_is_longer_than_the_maximum(attempt: int, base: float, factor: float, most: float) -> None:
    retry = ToolRetry(max_attempts=10**6 + 1, base=base, factor=factor, max_delay=most)
    wait = retry.delay(attempt)

    assert wait is not None
    assert 0 <= wait <= most


def test_there_is_no_attempt_zero() -> None:
    with pytest.raises(ValueError, match="the first attempt is 1"):
        ToolRetry().delay(0)


@pytest.mark.parametrize(
    ("retry_on", "error", "again"),
    [
        ((Exception,), OSError(), True),
        ((Exception,), ToolError("no"), False),
        ((Exception,), ToolArgumentError("no"), False),
        ((Exception,), ExecutionCancelledError(), False),
        ((Exception,), KeyboardInterrupt(), False),
        ((OSError,), ConnectionResetError(), True),
        ((OSError,), KeyError(), False),
        ((ToolError,), ToolError("busy"), True),
        ((PhronomyError,), ToolError("busy"), False),
        ((PhronomyError,), ExecutionCancelledError(), True),
        ((OSError, ToolError), ToolError("busy"), True),
    ],
)
def test_only_errors_that_are_meant_are_answered_by_another_attempt(
    retry_on: tuple[type[Exception], ...], error: BaseException, again: bool
) -> None:
    retry = ToolRetry(max_attempts=2, retry_on=retry_on)

    assert (retry.delay_after(error, 1) is not None) is again
    assert retry.delay_after(error, 2) is None


@pytest.mark.parametrize(
    "options",
    [
        {"max_attempts": 0},
        {"max_attempts": 1.5},
        {"max_attempts": True},
        {"base": -1},
        {"base": float("nan")},
        {"base": "1"},
        {"factor": 0.5},
        {"max_delay": float("inf")},
        {"max_delay": True},
        {"retry_on": ()},
        {"retry_on": [OSError]},
        {"retry_on": (BaseException,)},
        {"retry_on": ("OSError",)},
    ],
    ids=str,
)
def test_a_policy_that_cannot_work_is_refused_by_name(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=rf"ToolRetry\.{next(iter(options))}"):
        ToolRetry(**options)
