from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

__all__ = ["Customer", "Order", "Ticket"]


class Customer(models.Model):
    """Somebody who bought something; known by the address that the order was placed with."""

    email = models.EmailField(_("e-mail address"), unique=True)
    name = models.CharField(_("name"), max_length=200)

    class Meta:
        verbose_name = _("customer")
        verbose_name_plural = _("customers")

    def __str__(self) -> str:
        return f"{self.name} <{self.email}>"


class Order(models.Model):
    """What was bought, and how far it has come."""

    class Status(models.TextChoices):
        PREPARING = "preparing", _("being prepared")
        SHIPPED = "shipped", _("shipped")
        DELIVERED = "delivered", _("delivered")
        RETURNED = "returned", _("returned")
        CANCELLED = "cancelled", _("cancelled")

    order_number = models.CharField(_("order number"), max_length=20, unique=True)
    customer = models.ForeignKey(
        Customer, on_delete=models.PROTECT, related_name="orders", verbose_name=_("customer")
    )
    status = models.CharField(_("status"), max_length=20, choices=Status, default=Status.PREPARING)
    items = models.CharField(_("items"), max_length=500)
    total = models.DecimalField(_("total"), max_digits=10, decimal_places=2)
    currency = models.CharField(_("currency"), max_length=3, default="EUR")
    ordered_on = models.DateField(_("ordered on"))
    expected_on = models.DateField(_("expected on"), null=True, blank=True)
    carrier = models.CharField(_("carrier"), max_length=100, blank=True)
    tracking_number = models.CharField(_("tracking number"), max_length=100, blank=True)

    class Meta:
        verbose_name = _("order")
        verbose_name_plural = _("orders")
        ordering = ("-ordered_on", "-order_number")

    def __str__(self) -> str:
        return self.order_number


class Ticket(models.Model):
    """One e-mail and what became of it. The same ``message_id`` never makes a second ticket."""

    class Status(models.TextChoices):
        RECEIVED = "received", _("received")
        ANSWERED = "answered", _("answered")
        FAILED = "failed", _("failed")

    message_id = models.CharField(_("Message-ID"), max_length=255, unique=True)
    sender = models.CharField(_("sender"), max_length=320, blank=True)
    subject = models.CharField(_("subject"), max_length=998, blank=True)
    status = models.CharField(_("status"), max_length=20, choices=Status, default=Status.RECEIVED)
    answer = models.TextField(_("answer"), blank=True)
    execution_id = models.CharField(_("execution"), max_length=64, blank=True, db_index=True)
    received_at = models.DateTimeField(_("received at"), auto_now_add=True)
    answered_at = models.DateTimeField(_("answered at"), null=True, blank=True)

    class Meta:
        verbose_name = _("ticket")
        verbose_name_plural = _("tickets")
        ordering = ("received_at", "pk")
        constraints = (
            models.CheckConstraint(
                condition=~models.Q(status="answered") | ~models.Q(answer=""),
                name="support_ticket_answered_has_answer",
            ),
        )

    def __str__(self) -> str:
        return f"{self.message_id} {self.subject}"
