"""Signals: observation in this process only, sent after commit; they steer nothing (STYLE rule 6).

Code that must react to a finished run exactly once uses ``Agent.on_terminal`` instead.
"""

from __future__ import annotations

from django.dispatch import Signal

__all__ = ["execution_finished"]

#: sender: the Agent class; ``execution_id``, ``agent_id``, ``status``. Sent by a pool thread of the runtime.
execution_finished = Signal()
