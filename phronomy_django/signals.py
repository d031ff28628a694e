"""Signals: observation in this process only, sent after commit; they steer nothing (STYLE rule 6).

Code that must react to a finished run exactly once uses ``Agent.on_terminal`` instead.
"""

from __future__ import annotations

from django.dispatch import Signal

__all__ = ["approval_requested", "execution_finished", "recovery_required"]

#: sender: the Agent class; ``execution_id``, ``agent_id``, ``status``. Sent by a pool thread of the runtime.
execution_finished = Signal()

#: sender: the Agent class; ``execution_id``, ``agent_id``, ``approval_request_ids``: a run was suspended for a person.
approval_requested = Signal()

#: sender: the Agent class; ``execution_id``, ``agent_id``, ``reason``: a run is held, only a person can answer.
recovery_required = Signal()
