from __future__ import annotations

from django.contrib import admin

from example_project.support.models import Customer, Order, Ticket


@admin.register(Customer)
class CustomerAdmin(admin.ModelAdmin):
    list_display = ("email", "name")
    search_fields = ("email", "name")


@admin.register(Order)
class OrderAdmin(admin.ModelAdmin):
    list_display = ("order_number", "customer", "status", "total", "currency", "ordered_on")
    list_filter = ("status",)
    list_select_related = ("customer",)
    search_fields = ("order_number", "customer__email", "tracking_number")


@admin.register(Ticket)
class TicketAdmin(admin.ModelAdmin):
    list_display = ("message_id", "sender", "subject", "status", "received_at")
    list_filter = ("status",)
    search_fields = ("message_id", "sender", "subject", "execution_id")
