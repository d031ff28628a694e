"""What a model is to an agent: a request goes in, a response comes out, or an ``LLMError``."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar, TypeAlias

from phronomy_django.domain.messages import LLMRequest, LLMResponse

__all__ = ["LLMAdapter", "OnDelta", "SyncLLMAdapter"]

OnDelta: TypeAlias = Callable[[str], None]


class LLMAdapter(ABC):
    """A way to reach models.

    Promises of every adapter: the outcome is an ``LLMResponse`` that holds text, tool calls or both, or an
    ``LLMError``; it makes one attempt only (retries belong to the execution, which records them); it keeps
    no state that a second call of the same request would depend on; it is safe to use from several event
    loops and threads at once; ``request.timeout`` (seconds) bounds the whole call where it is given.

    ``name`` goes into manifests and logs ("openai:gpt-5"): no secrets. ``pool`` names the offload pool of
    its calls. ``replay_safe`` says that a call whose answer was lost may be made again. A ``blocking``
    adapter is run in a pool of threads, by its ``complete_sync``.
    """

    name: str = ""
    pool: str = "llm"
    replay_safe: bool = True
    blocking: ClassVar[bool] = False

    @abstractmethod
    async def complete(self, request: LLMRequest) -> LLMResponse:
        """One provider call; raises ``LLMError`` if there is no usable answer."""

    async def stream(self, request: LLMRequest, on_delta: OnDelta) -> LLMResponse:
        """As ``complete``; ``on_delta`` gets the text piece by piece, in order, before this returns.

        The pieces joined are the response's text. Tool calls are not streamed. ``on_delta`` is called where
        the adapter runs (the event loop's thread, or the pool's thread of a blocking adapter) and must not
        block; what it raises ends the call and is raised here. After an ``LLMError`` the pieces are void.
        """
        response = await self.complete(request)
        if response.text:
            on_delta(response.text)
        return response

    async def aclose(self) -> None:
        """Give back what the adapter holds on the running event loop; it stays usable. Holds nothing here."""
        return


class SyncLLMAdapter(LLMAdapter):
    """An adapter over blocking code: implement ``complete_sync`` and, if the client can, ``stream_sync``.

    The execution submits these to a pool of threads. ``complete`` and ``stream`` are there for callers that
    have an event loop; they use a thread of that loop's default executor.
    """

    pool: str = "default"
    blocking: ClassVar[bool] = True

    @abstractmethod
    def complete_sync(self, request: LLMRequest) -> LLMResponse:
        """One provider call on the calling thread; raises ``LLMError`` if there is no usable answer."""

    def stream_sync(self, request: LLMRequest, on_delta: OnDelta) -> LLMResponse:
        """As ``LLMAdapter.stream``, on the calling thread."""
        response = self.complete_sync(request)
        if response.text:
            on_delta(response.text)
        return response

    async def complete(self, request: LLMRequest) -> LLMResponse:
        return await asyncio.to_thread(self.complete_sync, request)

    async def stream(self, request: LLMRequest, on_delta: OnDelta) -> LLMResponse:
        return await asyncio.to_thread(self.stream_sync, request, on_delta)
