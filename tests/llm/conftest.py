"""The loopback server as a fixture of this room; other rooms import it from ``openai_server``."""

from __future__ import annotations

from tests.llm.openai_server import openai_server

__all__ = ["openai_server"]
