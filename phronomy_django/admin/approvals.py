"""The queue of what waits for a person, oldest first; approve and reject with a reason, one or many."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import admin, messages
from django.contrib.admin import helpers
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext

from phronomy_django.actions.decide_approval import PERMISSION, DecideApproval
from phronomy_django.admin.readonly import ReadOnlyAdmin, pretty
from phronomy_django.domain.errors import PhronomyError
from phronomy_django.domain.statuses import ApprovalState
from phronomy_django.models import ApprovalRequest

__all__ = ["ApprovalRequestAdmin"]

MOST_AT_ONCE = 100


class _Pending(admin.SimpleListFilter):
    """The queue is what one sees first; what was decided is a click away."""

    title = _("state")
    parameter_name = "state"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        return [
            ("all", _("all")),
            *((str(state), str(state)) for state in ApprovalState if state != "pending"),
        ]

    def choices(self, changelist: Any) -> Any:
        yield {
            "selected": self.value() is None,
            "query_string": changelist.get_query_string(remove=[self.parameter_name]),
            "display": _("pending"),
        }
        for value, title in self.lookup_choices:
            yield {
                "selected": self.value() == value,
                "query_string": changelist.get_query_string({self.parameter_name: value}),
                "display": title,
            }

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        if self.value() == "all":
            return queryset
        return queryset.filter(state=self.value() or ApprovalState.PENDING)


class _Reason(forms.Form):
    reason = forms.CharField(
        label=_("Reason"), required=False, max_length=10_000, widget=forms.Textarea(attrs={"rows": 3})
    )


@admin.register(ApprovalRequest)
class ApprovalRequestAdmin(ReadOnlyAdmin):
    list_display = (
        "requested_at",
        "agent",
        "tool",
        "arguments",
        "facts_shown",
        "expires_at",
        "state",
        "decided_by",
    )
    list_filter = (_Pending,)
    list_select_related = ("execution__agent", "tool_invocation", "decided_by")
    search_fields = ("approval_request_id__exact", "execution__agent__agent_id__exact", "execution_id__exact")
    ordering = ("requested_at",)
    actions = ("approve_selected", "reject_selected")
    fields = (
        "agent",
        "tool",
        "arguments",
        "facts_shown",
        "state",
        "requested_at",
        "expires_at",
        "decided_by",
        "decided_at",
        "reason",
        "execution",
    )

    @admin.display(description=_("agent"))
    def agent(self, obj: ApprovalRequest) -> str:
        return obj.execution.agent.agent_id

    @admin.display(description=_("tool"))
    def tool(self, obj: ApprovalRequest) -> str:
        return obj.tool_invocation.tool_name

    @admin.display(description=_("arguments"))
    def arguments(self, obj: ApprovalRequest) -> str:
        return pretty(obj.shown_arguments)

    @admin.display(description=_("facts"))
    def facts_shown(self, obj: ApprovalRequest) -> str:
        return pretty(obj.facts)

    # --- decisions --------------------------------------------------------------------------------------

    def has_decide_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm(PERMISSION)

    @admin.action(description=_("Approve the selected tool calls"), permissions=["decide"])
    def approve_selected(self, request: HttpRequest, queryset: QuerySet[Any]) -> HttpResponse | None:
        return self._decide(request, queryset, approved=True)

    @admin.action(description=_("Reject the selected tool calls"), permissions=["decide"])
    def reject_selected(self, request: HttpRequest, queryset: QuerySet[Any]) -> HttpResponse | None:
        return self._decide(request, queryset, approved=False)

    def _decide(
        self, request: HttpRequest, queryset: QuerySet[Any], *, approved: bool
    ) -> HttpResponse | None:
        """First a page that shows what is decided and asks for a reason; then each by itself, bound to what was shown."""
        chosen = list(queryset.select_related("execution__agent", "tool_invocation")[:MOST_AT_ONCE])
        form = _Reason(request.POST if "decide" in request.POST else None)
        if not (form.is_bound and form.is_valid()):
            return self._ask(request, chosen, form, approved)
        digests = dict(zip(request.POST.getlist("shown"), request.POST.getlist("digest"), strict=False))
        done = 0
        for item in chosen:
            action = DecideApproval(
                approval_request_id=item.pk,
                approved=approved,
                reason=form.cleaned_data["reason"],
                arguments_digest=digests.get(item.pk),
                by=request.user,
            )
            try:
                action.perform()
                done += 1
            except PhronomyError as error:
                self.message_user(request, str(error), messages.ERROR)
        if done:
            text = ngettext("%(n)d decision is stored.", "%(n)d decisions are stored.", done) % {"n": done}
            self.message_user(request, text, messages.SUCCESS)
        return None

    def _ask(self, request: HttpRequest, chosen: list[Any], form: _Reason, approved: bool) -> HttpResponse:
        context = {
            **self.admin_site.each_context(request),
            "title": _("Approve tool calls") if approved else _("Reject tool calls"),
            "opts": self.model._meta,
            "chosen": [(item, pretty(item.shown_arguments), pretty(item.facts)) for item in chosen],
            "form": form,
            "action": "approve_selected" if approved else "reject_selected",
            "action_name": helpers.ACTION_CHECKBOX_NAME,
            "verb": _("Approve") if approved else _("Reject"),
        }
        return TemplateResponse(request, "admin/phronomy/decide_approvals.html", context)
