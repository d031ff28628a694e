"""Every provider that pydantic-ai knows, and every server that speaks OpenAI's chat completions.

Importing this module needs the extra ``llm`` and costs a second or so; name the model by its text
(``"openai:gpt-5"``) and the registry imports it when the model is first used.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import threading
from collections.abc import AsyncGenerator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Literal, cast

from pydantic_ai.direct import model_request, model_request_stream
from pydantic_ai.exceptions import UserError
from pydantic_ai.messages import (
    ModelMessage,
    ModelResponse,
    PartDeltaEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
)
from pydantic_ai.models import Model, ModelRequestParameters, infer_model
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.profiles.openai import OpenAIModelProfile
from pydantic_ai.providers import Provider, infer_provider, infer_provider_class
from pydantic_ai.settings import ModelSettings

from phronomy_django.domain.canonical import storable_text
from phronomy_django.domain.errors import ConfigurationError
from phronomy_django.domain.messages import LLMRequest, LLMResponse
from phronomy_django.llm.adapter import LLMAdapter, OnDelta
from phronomy_django.llm.errors import LLMError, LLMErrorKind
from phronomy_django.llm.pydantic_ai_failures import failure_of
from phronomy_django.llm.pydantic_ai_messages import (
    OutputMode,
    provider_messages,
    request_parameters,
    response_of,
)

__all__ = ["PydanticAILLM"]


@dataclass(frozen=True, slots=True)
class _Connection:
    """A model with the HTTP client of one event loop; ``keeper`` closes the client when it is closed."""

    model: Model[Any]
    provider: Provider[Any]
    secrets: tuple[str, ...]
    keeper: AsyncGenerator[None]


class PydanticAILLM(LLMAdapter):
    """A model by its pydantic-ai name, ``"provider:name"``; ``request.model`` is not looked at.

    ``base_url`` reaches another server of the same protocol. With the provider ``openai`` that means chat
    completions, which local servers (vLLM, llama.cpp, Ollama, LM Studio) speak, also when the address comes
    from ``OPENAI_BASE_URL``; without an address ``openai:`` is OpenAI's Responses API, as in
    pydantic-ai (``openai-chat:`` and ``openai-responses:`` say it outright). ``api_key`` wins over the
    provider's environment variable and never shows in a message or a repr. ``settings`` are defaults that
    ``request.settings`` override.

    A structured answer (``request.output_schema``) is asked for by the protocol's own JSON schema mode where
    the model's profile has it (``native``), otherwise by the schema in the instructions (``prompted``);
    ``output_mode`` decides where the profile is wrong about a server. Either way the answer is JSON text that
    the caller validates.

    One attempt a call: the SDK's own retries are off. ``request.timeout``, or else ``timeout``,
    bounds the whole call. ``cost`` is in US dollars by the published prices that pydantic-ai carries, None
    where they are not known or where the address is not the provider's own.

    Each event loop has its own HTTP client. It is closed by ``aclose`` on that loop, or when the loop shuts
    its asynchronous generators down, which ``asyncio.run`` and ``asyncio.Runner`` do at their end; a loop run
    by hand has to ``await loop.shutdown_asyncgens()`` before it is closed.
    """

    def __init__(
        self,
        name: str,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        settings: Mapping[str, Any] | None = None,
        output_mode: Literal["auto", "native", "prompted"] = "auto",
        pool: str = "llm",
        replay_safe: bool = True,
        timeout: float = 600.0,
    ) -> None:
        provider, colon, model = name.partition(":")
        if not (provider and colon and model):
            raise ConfigurationError(f"Model {name!r}: write it as 'provider:name', such as 'openai:gpt-5'.")
        if output_mode not in ("auto", "native", "prompted"):
            raise ConfigurationError(
                f"Model {name}: output_mode {output_mode!r} is not auto, native or prompted."
            )
        self.name = name
        self.pool = pool
        self.replay_safe = replay_safe
        self._timeout = timeout
        self._provider_name = provider
        self._model_name = model
        self._base_url = base_url
        self._options = {
            key: value for key, value in (("base_url", base_url), ("api_key", api_key)) if value is not None
        }
        self._settings = dict(settings or {})
        self._output_mode = output_mode
        self._check_provider()
        self._lock = threading.Lock()
        self._connections: dict[asyncio.AbstractEventLoop, _Connection] = {}

    def __repr__(self) -> str:
        return f"PydanticAILLM({self.name!r})"

    async def complete(self, request: LLMRequest) -> LLMResponse:
        return await self._call(request, None)

    async def stream(self, request: LLMRequest, on_delta: OnDelta) -> LLMResponse:
        return await self._call(request, on_delta)

    async def aclose(self) -> None:
        with self._lock:
            connection = self._connections.pop(asyncio.get_running_loop(), None)
        if connection is not None:
            await connection.keeper.aclose()

    async def _call(self, request: LLMRequest, on_delta: OnDelta | None) -> LLMResponse:
        messages = provider_messages(request, self.name)
        connection = await self._connected()
        parameters = request_parameters(request, self._mode_for(connection.model))
        settings = cast("ModelSettings", {**self._settings, **request.settings, "max_retries": 0})
        deltas = None if on_delta is None else _Deltas(on_delta)
        allowed = self._timeout if request.timeout is None else request.timeout
        failure: LLMError
        try:
            async with asyncio.timeout(allowed) as limit:
                answer = await _answer(connection.model, messages, settings, parameters, deltas)
        except Exception as error:
            if deltas is not None and deltas.raised is error:
                raise
            if limit.expired() and isinstance(error, TimeoutError):
                told = f"{allowed:g} s were allowed"
                failure = LLMError(told, kind=LLMErrorKind.TIMEOUT, model=self.name)
            else:
                failure = failure_of(error, model=self.name, secrets=connection.secrets)
        else:
            return response_of(answer, model=self.name, cost=self._cost_of(answer))
        raise failure

    def _mode_for(self, model: Model[Any]) -> OutputMode:
        match self._output_mode:
            case "native" | "prompted":
                return self._output_mode
            case _:
                return "native" if model.profile.get("supports_json_schema_output") else "prompted"

    def _is_elsewhere(self) -> bool:
        """Whether the model is reached at another address than its provider's own."""
        return self._base_url is not None or (
            self._provider_name.startswith("openai") and "OPENAI_BASE_URL" in os.environ
        )

    def _cost_of(self, answer: ModelResponse) -> Decimal | None:
        if self._is_elsewhere() or not answer.model_name:
            return None
        with suppress(LookupError, ValueError):
            return answer.cost().total_price
        return None

    def _check_provider(self) -> None:
        try:
            accepted = inspect.signature(infer_provider_class(self._provider_name)).parameters
        except ValueError:
            raise ConfigurationError(
                f"Model {self.name!r}: pydantic-ai knows no provider {self._provider_name!r}."
            ) from None
        except ImportError as error:
            raise ConfigurationError(f"Model {self.name!r}: {error}") from error
        for option in self._options:
            if option not in accepted:
                raise ConfigurationError(
                    f"Model {self.name!r}: the provider {self._provider_name!r} takes no {option}."
                )

    async def _connected(self) -> _Connection:
        loop = asyncio.get_running_loop()
        with self._lock:
            for known in [known for known in self._connections if known.is_closed()]:
                del self._connections[known]
            connection = self._connections.get(loop)
        if connection is not None:
            return connection
        connection = self._connect(loop)
        await anext(connection.keeper)
        return connection

    def _connect(self, loop: asyncio.AbstractEventLoop) -> _Connection:
        failure: LLMError
        try:
            provider = self._new_provider()
            model = self._new_model(provider)
        except UserError as error:
            failure = LLMError(error.message, kind=LLMErrorKind.AUTHENTICATION, model=self.name)
        except Exception as error:  # noqa: BLE001 - an SDK that cannot start is a failed call, not a crash
            failure = failure_of(error, model=self.name, secrets=(self._options.get("api_key", ""),))
        else:
            secrets = {self._options.get("api_key"), getattr(provider.client, "api_key", None)}
            connection = _Connection(
                model,
                provider,
                tuple(secret for secret in secrets if isinstance(secret, str) and secret),
                self._kept(loop, provider),
            )
            with self._lock:
                self._connections[loop] = connection
            return connection
        raise failure

    async def _kept(self, loop: asyncio.AbstractEventLoop, provider: Provider[Any]) -> AsyncGenerator[None]:
        try:
            async with provider:
                yield
        finally:
            with self._lock:
                current = self._connections.get(loop)
                if current is not None and current.provider is provider:
                    del self._connections[loop]

    def _new_provider(self) -> Provider[Any]:
        if not self._options:
            return infer_provider(self._provider_name)
        options: dict[str, Any] = dict(self._options)
        return infer_provider_class(self._provider_name)(**options)

    def _new_model(self, provider: Provider[Any]) -> Model[Any]:
        chat = self._provider_name == "openai" and self._is_elsewhere()
        if chat or self._provider_name == "openai-chat":
            return OpenAIChatModel(
                self._model_name,
                provider=provider,
                profile=OpenAIModelProfile(openai_chat_streaming_requires_finish_reason=True),
            )
        return infer_model(self.name, provider_factory=lambda _: provider)


async def _answer(
    model: Model[Any],
    messages: list[ModelMessage],
    settings: ModelSettings,
    parameters: ModelRequestParameters,
    deltas: _Deltas | None,
) -> ModelResponse:
    if deltas is None:
        return await model_request(
            model, messages, model_settings=settings, model_request_parameters=parameters
        )
    async with model_request_stream(
        model, messages, model_settings=settings, model_request_parameters=parameters
    ) as stream:
        async for event in stream:
            match event:
                case PartStartEvent(part=TextPart(content=text)):
                    deltas.add(text)
                case PartDeltaEvent(delta=TextPartDelta(content_delta=text)):
                    deltas.add(text)
        deltas.end()
        return stream.get()


class _Deltas:
    """Hands text on piece by piece, each storable, such that the pieces joined are the storable whole.

    Half of a surrogate pair at the end of a piece waits for its other half.
    """

    def __init__(self, on_delta: OnDelta) -> None:
        self._on_delta = on_delta
        self._held = ""
        self.raised: Exception | None = None

    def add(self, text: str) -> None:
        text, self._held = self._held + text, ""
        if text and "\ud800" <= text[-1] <= "\udbff":
            text, self._held = text[:-1], text[-1]
        self._hand_on(text)

    def end(self) -> None:
        text, self._held = self._held, ""
        self._hand_on(text)

    def _hand_on(self, text: str) -> None:
        if not text:
            return
        try:
            self._on_delta(storable_text(text))
        except Exception as error:
            self.raised = error
            raise
