"""What a feature attaches to the event loop; the engine knows none of them by name."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from phronomy_django.engine.loop import EventLoop

__all__ = ["ExecutionReceiver"]


class ExecutionReceiver(ABC):
    """A feature's registry on one event loop. It is bound to that loop for life.

    All methods but ``idle`` and ``shutdown(None)`` are called on the loop's thread.
    """

    def __init__(self, loop: EventLoop) -> None:
        self.loop = loop

    @abstractmethod
    def deliver(self, message: Any) -> None:
        """Take one message that was posted with ``post_execution``. If it raises, the loop fails."""

    @abstractmethod
    def idle(self) -> bool:
        """Whether nothing of this feature is under way that a shutdown has to wait for.

        Called under the loop's lock, from any thread: short, and no calls back.
        """

    @abstractmethod
    def session_retired(self, session_id: str, reason: str) -> None:
        """A session registered for this receiver ended: finished, halted, error or recovery_required.

        It gets no further event. What stays admitted after recovery_required is this receiver's decision.
        """

    @abstractmethod
    def shutdown(self, error: BaseException | None = None) -> None:
        """The loop is gone: drop the live state and settle who waits.

        ``error`` is None after a clean stop, when the thread has ended, and the original error when dispatch
        failed, still on the loop's thread. One that raises stops no other and makes the cleanup incomplete.
        """
