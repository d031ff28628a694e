"""Durable AI agents for Django. Public names are in the sub-packages; importing this package imports nothing."""

__version__ = "0.1.0.dev0"
