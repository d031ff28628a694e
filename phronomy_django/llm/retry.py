"""When to try a provider call (or a replay-safe tool) again: a pure function of what is known."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass

from phronomy_django.domain.errors import ConfigurationError

__all__ = ["RetryPolicy"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """At most ``max_attempts`` attempts, exponentially further apart; all times in seconds.

    After attempt n the wait is ``base * factor ** (n - 1)``, at most ``max_delay``, shortened by up to the
    share ``jitter`` of itself so that executions that failed together do not come back together. Where the
    provider asked for a wait, that is the least; one that asks for more than ``max_retry_after`` is not
    tried again, because it would only refuse again.
    """

    max_attempts: int = 3
    base: float = 0.5
    factor: float = 2.0
    max_delay: float = 30.0
    jitter: float = 0.5
    max_retry_after: float = 300.0

    def __post_init__(self) -> None:
        numbers = (self.base, self.factor, self.max_delay, self.jitter, self.max_retry_after)
        if not (
            self.max_attempts >= 1
            and all(math.isfinite(number) and number >= 0 for number in numbers)
            and self.factor >= 1
            and self.jitter <= 1
        ):
            raise ConfigurationError(
                f"{self}: max_attempts and factor are at least 1, jitter is between 0 and 1, "
                "and no time is negative or infinite."
            )

    def delay(self, attempt: int, retry_after: float | None = None, seed: str = "") -> float | None:
        """How long to wait after ``attempt`` (the first is 1) failed, or None if that was the last one.

        The same arguments give the same answer; ``seed`` (an ``llm_call_id``) spreads the jitter.
        """
        if attempt < 1:
            raise ValueError(f"attempt {attempt}: the first attempt is 1")
        if attempt >= self.max_attempts:
            return None
        if retry_after is not None and retry_after > self.max_retry_after:
            return None
        try:
            wait = min(self.base * self.factor ** (attempt - 1), self.max_delay)
        except OverflowError:
            wait = self.max_delay
        share = self.jitter * _fraction(f"{seed}:{attempt}")
        if retry_after is not None and retry_after > wait * (1 - share):
            return min(retry_after * (1 + share * 0.1), max(retry_after, self.max_retry_after))
        return wait * (1 - share)


def _fraction(seed: str) -> float:
    digest = hashlib.sha256(seed.encode("utf-8", "backslashreplace")).digest()
    return int.from_bytes(digest[:7], "big") / 2**56
