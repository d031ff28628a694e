"""Benchmarks: what ``make bench`` runs (``python -m bench --help``)."""
