from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phronomy_django.domain.errors import ConfigurationError
from phronomy_django.llm import RetryPolicy

EVEN = RetryPolicy(max_attempts=10, jitter=0.0)


def test_waits_double_up_to_the_largest() -> None:
    waits = [EVEN.delay(attempt) for attempt in range(1, 10)]
    assert waits == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0]


def test_the_last_attempt_is_not_followed_by_another() -> None:
    assert RetryPolicy(max_attempts=3).delay(2) is not None
    assert RetryPolicy(max_attempts=3).delay(3) is None
    assert RetryPolicy(max_attempts=1).delay(1) is None


def test_attempts_are_counted_from_one() -> None:
    with pytest.raises(ValueError, match="the first attempt is 1"):
        EVEN.delay(0)


def test_a_wait_that_the_provider_asked_for_is_the_least() -> None:
    assert EVEN.delay(1, retry_after=12.0) == 12.0
    assert EVEN.delay(5, retry_after=1.0) == 8.0


def test_a_provider_that_asks_for_too_long_a_wait_is_not_asked_again() -> None:
    policy = RetryPolicy(max_retry_after=60.0)
    assert policy.delay(1, retry_after=60.0) is not None
    assert policy.delay(1, retry_after=60.1) is None


def test_a_factor_that_overflows_gives_the_largest_wait() -> None:
    assert RetryPolicy(max_attempts=5_000, factor=10.0, jitter=0.0).delay(4_000) == 30.0


@given(
    attempt=st.integers(1, 9),
    seed=st.text(max_size=8),
    retry_after=st.none() | st.floats(0, 300),
)
def test_the_same_arguments_give_the_same_wait_within_its_bounds(
    attempt: int, seed: str, retry_after: float | None
) -> None:
    policy = RetryPolicy(max_attempts=10)
    wait = policy.delay(attempt, retry_after, seed)
    assert wait is not None
    assert wait == policy.delay(attempt, retry_after, seed)
    whole = EVEN.delay(attempt)
    assert whole is not None
    assert wait >= max(whole / 2, retry_after or 0.0)
    assert wait <= max(whole, (retry_after or 0.0) * 1.1)


def test_seeds_spread_the_waits() -> None:
    policy = RetryPolicy()
    assert len({policy.delay(1, None, f"call-{number}") for number in range(50)}) == 50


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_attempts": 0},
        {"base": -1.0},
        {"factor": 0.5},
        {"max_delay": float("inf")},
        {"jitter": 1.5},
        {"max_retry_after": float("nan")},
    ],
)
def test_a_policy_that_makes_no_sense_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(wrong))):
        RetryPolicy(**wrong)  # type: ignore[arg-type]
