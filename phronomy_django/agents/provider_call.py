"""One provider call: its body for the pool, when it is tried again, and what its end means."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from phronomy_django.agents import bodies
from phronomy_django.agents.commands import Limits
from phronomy_django.agents.definition import Definition
from phronomy_django.agents.results import Feed
from phronomy_django.agents.run import LLMCallState, ProviderOutcome, Run
from phronomy_django.agents.services import Services
from phronomy_django.llm import LLMError, LLMErrorKind

__all__ = ["ProviderCall", "limits_of"]

#: With these answers a provider says that it did not perform the call.
REFUSED_UNPERFORMED = frozenset({LLMErrorKind.RATE_LIMITED, LLMErrorKind.UNAVAILABLE})
#: Seconds that an adapter has, beyond the agent's ``llm_timeout``, to report the timeout itself.
TIMEOUT_GRACE = 5.0


class ProviderCall:
    """Values for the operation runner; made when the call's dispatch is committed."""

    def __init__(
        self,
        *,
        services: Services,
        definition: Definition,
        run: Run,
        call: LLMCallState,
        feed: Feed,
        stream: bool,
        facts: bodies.Preparation,
        contents: Mapping[str, bytes],
    ) -> None:
        self.definition = definition
        self.call = call
        self.asynchronous = call.work.pool in services.coroutine_pools
        self.timeout = definition.llm_timeout + TIMEOUT_GRACE
        adapter, model_name = definition.adapters[call.model_index]
        on_delta: Callable[[str], None] | None = None
        if stream or feed.wanted:

            def on_delta(text: str) -> None:
                feed.token(call.llm_call_id, text)

        self.body: Callable[[int], Callable[[], Any]] = bodies.provider_body(
            definition,
            adapter,
            bodies.provider_request(definition, run, model_name, contents),
            on_delta,
            facts=facts,
            database=services.database,
            in_thread=not self.asynchronous,
        )

    def retry(self, error: BaseException, attempt: int) -> float | None:
        """Seconds until the next attempt, or None: this failure is the call's outcome."""
        if not isinstance(error, LLMError) or not error.retryable:
            return None
        if not self.definition.replay_safe and error.kind not in REFUSED_UNPERFORMED:
            return None
        return self.definition.llm_retry.delay(attempt, error.retry_after, self.call.llm_call_id)

    def outcome(
        self, value: ProviderOutcome | None, error: BaseException | None, attempts: int
    ) -> ProviderOutcome:
        if value is not None:
            return bodies.with_attempts(value, attempts)
        assert error is not None  # noqa: S101 - no value means an error
        return ProviderOutcome(failure=bodies.failure_of(error), attempts=attempts)

    def limits(self, run: Run, outcome: ProviderOutcome) -> Limits:
        return limits_of(self.definition, run, outcome)


def limits_of(definition: Definition, run: Run, outcome: ProviderOutcome) -> Limits:
    """What the definition says of the run with this outcome."""
    return Limits(
        max_iterations=definition.max_iterations,
        model_count=len(definition.models),
        exceeded=bodies.exceeded_limit(definition.usage_limits, run, outcome),
        separate_end=definition.has_on_terminal,
    )
