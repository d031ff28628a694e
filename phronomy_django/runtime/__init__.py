"""The runtime of a process: composition, start, end."""

from phronomy_django.runtime.hosting import Hosting, current_hosting, reset_runtime, start_hosting, wire

__all__ = ["Hosting", "current_hosting", "reset_runtime", "start_hosting", "wire"]
