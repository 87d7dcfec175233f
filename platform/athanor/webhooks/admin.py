"""Webhooks and their deliveries in Django's admin."""

from typing import Any

from django.contrib import admin
from django.db.models import QuerySet

from athanor.accounts.admin_tools import SeenOnly, act_on_each, pretty
from athanor.webhooks import services
from athanor.webhooks.models import Delivery, Webhook


@admin.register(Webhook)
class WebhookAdmin(SeenOnly):
    """Webhooks, read-only. Signing secrets are never displayed."""

    list_display = (
        "name", "team", "url", "enabled", "consecutive_failures", "last_success_at", "last_failure_at",
        "disabled_reason",
    )  # fmt: skip
    list_filter = ("enabled", ("team", admin.RelatedOnlyFieldListFilter))
    list_select_related = ("team",)
    list_display_links = ("name", "url")
    search_fields = ("=id", "name", "url", "team__name")
    date_hierarchy = "created_at"
    actions = ("switch_on", "switch_off")

    @admin.action(description="Switch on, from the next event", permissions=["operate"])
    def switch_on(self, request: Any, rows: QuerySet[Webhook]) -> None:
        """Enable the selected webhooks."""
        act_on_each(
            request, self, rows, lambda row: services.change(row, {"enabled": True}, request.user), "Switched on"
        )

    @admin.action(description="Switch off", permissions=["operate"])
    def switch_off(self, request: Any, rows: QuerySet[Webhook]) -> None:
        """Disable the selected webhooks."""
        act_on_each(
            request, self, rows, lambda row: services.change(row, {"enabled": False}, request.user), "Switched off"
        )


@admin.register(Delivery)
class DeliveryAdmin(SeenOnly):
    """Deliveries, read-only."""

    list_display = ("id", "webhook", "team", "event_type", "state", "tries", "created_at", "next_try_at", "finished_at")
    list_filter = ("state", "event_type", ("team", admin.RelatedOnlyFieldListFilter))
    list_select_related = ("webhook", "team")
    search_fields = ("=id", "=webhook__id", "=event_type")
    date_hierarchy = "created_at"
    exclude = ("log", "lease_token")
    readonly_fields = ("tries_shown",)
    actions = ("redeliver",)

    @admin.action(description="Deliver once more", permissions=["operate"])
    def redeliver(self, request: Any, rows: QuerySet[Delivery]) -> None:
        """Queue the selected deliveries again."""
        found = rows.select_related("webhook")
        act_on_each(request, self, found, lambda row: services.redeliver(row, request.user), "To be delivered again")

    @admin.display(description="how each try went")
    def tries_shown(self, delivery: Delivery) -> str:
        """Return the log of the tries as indented JSON."""
        return pretty(delivery.log)
