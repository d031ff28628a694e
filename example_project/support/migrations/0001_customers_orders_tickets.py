# ruff: noqa: RUF012

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True

    dependencies = []

    operations = [
        migrations.CreateModel(
            name="Customer",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("email", models.EmailField(max_length=254, unique=True, verbose_name="e-mail address")),
                ("name", models.CharField(max_length=200, verbose_name="name")),
            ],
            options={
                "verbose_name": "customer",
                "verbose_name_plural": "customers",
            },
        ),
        migrations.CreateModel(
            name="Order",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("order_number", models.CharField(max_length=20, unique=True, verbose_name="order number")),
                (
                    "status",
                    models.CharField(
                        choices=[
                            ("preparing", "being prepared"),
                            ("shipped", "shipped"),
                            ("delivered", "delivered"),
                            ("returned", "returned"),
                            ("cancelled", "cancelled"),
                        ],
                        default="preparing",
                        max_length=20,
                        verbose_name="status",
                    ),
                ),
                ("items", models.CharField(max_length=500, verbose_name="items")),
                ("total", models.DecimalField(decimal_places=2, max_digits=10, verbose_name="total")),
                ("currency", models.CharField(default="EUR", max_length=3, verbose_name="currency")),
                ("ordered_on", models.DateField(verbose_name="ordered on")),
                ("expected_on", models.DateField(blank=True, null=True, verbose_name="expected on")),
                ("carrier", models.CharField(blank=True, max_length=100, verbose_name="carrier")),
                (
                    "tracking_number",
                    models.CharField(blank=True, max_length=100, verbose_name="tracking number"),
                ),
                (
                    "customer",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="orders",
                        to="support.customer",
                        verbose_name="customer",
                    ),
                ),
            ],
            options={
                "verbose_name": "order",
                "verbose_name_plural": "orders",
                "ordering": ("-ordered_on", "-order_number"),
            },
        ),
        migrations.CreateModel(
            name="Ticket",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("message_id", models.CharField(max_length=255, unique=True, verbose_name="Message-ID")),
                ("sender", models.CharField(blank=True, max_length=320, verbose_name="sender")),
                ("subject", models.CharField(blank=True, max_length=998, verbose_name="subject")),
                (
                    "status",
                    models.CharField(
                        choices=[("received", "received"), ("answered", "answered"), ("failed", "failed")],
                        default="received",
                        max_length=20,
                        verbose_name="status",
                    ),
                ),
                ("answer", models.TextField(blank=True, verbose_name="answer")),
                (
                    "execution_id",
                    models.CharField(blank=True, db_index=True, max_length=64, verbose_name="execution"),
                ),
                ("received_at", models.DateTimeField(auto_now_add=True, verbose_name="received at")),
                ("answered_at", models.DateTimeField(blank=True, null=True, verbose_name="answered at")),
            ],
            options={
                "verbose_name": "ticket",
                "verbose_name_plural": "tickets",
                "ordering": ("received_at", "pk"),
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(("status", "answered"), _negated=True),
                            models.Q(("answer", ""), _negated=True),
                            _connector="OR",
                        ),
                        name="support_ticket_answered_has_answer",
                    )
                ],
            },
        ),
    ]
