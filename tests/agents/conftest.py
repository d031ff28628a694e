"""Agents for one test: defined, registered, forgotten; the runtime ends with the test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from phronomy_django.agents import Agent, register
from phronomy_django.agents.registry import unregister
from phronomy_django.domain.messages import LLMRequest
from phronomy_django.llm import ScriptedLLM
from phronomy_django.runtime import reset_runtime
from tests.llm.openai_server import openai_server

__all__ = ["Define", "openai_server"]

Define = Callable[..., type[Agent]]


@pytest.fixture
def define(transactional_db: None) -> Iterator[Define]:
    """``define(script, **attributes)``: a registered agent class whose model plays ``script``."""
    made: list[type[Agent]] = []

    def make(script: Any = "ok", base: type[Agent] = Agent, **attributes: Any) -> type[Agent]:
        if isinstance(script, str):
            text = script

            def script(request: LLMRequest) -> str:
                return text

        attributes.setdefault("model", ScriptedLLM(script))
        attributes.setdefault("definition_id", f"tests.agent-{len(made)}")
        cls = register(type("TestAgent" + str(len(made)), (base,), attributes))
        made.append(cls)
        return cls

    yield make
    reset_runtime()
    for cls in made:
        unregister(cls)
