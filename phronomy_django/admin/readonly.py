"""A model admin that shows and never changes: editing a durable record by hand would break what it proves."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.core.paginator import Paginator
from django.http import HttpRequest
from django.utils.functional import cached_property
from django.utils.html import format_html

if TYPE_CHECKING:
    _Paginator = Paginator[Any]
    _ModelAdmin = admin.ModelAdmin[Any]
else:
    _Paginator = Paginator
    _ModelAdmin = admin.ModelAdmin

__all__ = ["BoundedPaginator", "ReadOnlyAdmin", "pretty"]

#: What a page shows of one value at most; the rest is cut and said to be.
SHOWN_CHARACTERS = 20_000
MOST_ROWS = 10_000


class BoundedPaginator(_Paginator):
    """Counts to ``MOST_ROWS`` and no further: a count over a million rows would read them all."""

    @cached_property
    def count(self) -> int:
        rows: Any = self.object_list
        return int(rows.order_by()[:MOST_ROWS].count())


class ReadOnlyAdmin(_ModelAdmin):
    """Lists by index, in pages, without counting the table; neither adds, changes nor deletes."""

    show_full_result_count = False
    paginator = BoundedPaginator
    list_per_page = 50
    actions: Any = ()

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


def pretty(value: Any) -> str:
    """A value as escaped, indented text that no right-to-left mark can disarrange; long ones are cut."""
    text = value if isinstance(value, str) else json.dumps(value, indent=2, ensure_ascii=False, default=str)
    if len(text) > SHOWN_CHARACTERS:
        text = f"{text[:SHOWN_CHARACTERS]}\n… ({len(text)} characters in all)"
    return format_html('<pre dir="ltr" style="white-space: pre-wrap; unicode-bidi: plaintext">{}</pre>', text)
