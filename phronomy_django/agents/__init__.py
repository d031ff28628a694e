"""Agents: definition, registration, use (DESIGN §9)."""

from phronomy_django.agents.agent import Agent
from phronomy_django.agents.approvals import ToolProposal
from phronomy_django.agents.bodies import Preparation
from phronomy_django.agents.definition import UsageLimits
from phronomy_django.agents.hooks import ExecutionInfo
from phronomy_django.agents.registry import register
from phronomy_django.agents.results import ExecutionResult, ExecutionTask, Reservation, StreamEvent
from phronomy_django.domain.messages import File, Image, Text
from phronomy_django.tools import ToolContext, ToolError, ToolRetry, tool

__all__ = [
    "Agent",
    "ExecutionInfo",
    "ExecutionResult",
    "ExecutionTask",
    "File",
    "Image",
    "Preparation",
    "Reservation",
    "StreamEvent",
    "Text",
    "ToolContext",
    "ToolError",
    "ToolProposal",
    "ToolRetry",
    "UsageLimits",
    "register",
    "tool",
]
