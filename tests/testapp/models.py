from __future__ import annotations

from django.db import models


class Order(models.Model):
    """Something that a tool changes."""

    number = models.CharField(max_length=40, unique=True)
    status = models.CharField(max_length=20, default="open")
    total = models.DecimalField(max_digits=12, decimal_places=2, default=0)

    def __str__(self) -> str:
        return self.number


class LedgerEntry(models.Model):
    """One effect of a tool or a hook. Not unique on purpose: an effect that happened twice has to show."""

    reference = models.CharField(max_length=200, db_index=True)
    amount = models.DecimalField(max_digits=12, decimal_places=2, default=0)
    order = models.ForeignKey(Order, on_delete=models.CASCADE, null=True, blank=True, related_name="entries")

    def __str__(self) -> str:
        return f"{self.reference}: {self.amount}"
