"""One class for each change that a person asks for: permission, validation, audit. Admin, API and commands call the same."""

from phronomy_django.actions.decide_approval import DecideApproval

__all__ = ["DecideApproval"]
