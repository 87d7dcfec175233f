from django.contrib import admin

from athanor.accounts.admin import SeenOnly
from athanor.webhooks.models import Delivery, Webhook


@admin.register(Webhook)
class WebhookAdmin(SeenOnly):
    list_display = (
        "id",
        "name",
        "team",
        "url",
        "enabled",
        "consecutive_failures",
        "last_success_at",
        "disabled_reason",
    )
    list_filter = ("enabled", "team")
    search_fields = ("id", "name", "url")


@admin.register(Delivery)
class DeliveryAdmin(SeenOnly):
    list_display = ("id", "webhook", "event_type", "state", "tries", "next_try_at", "finished_at")
    list_filter = ("state", "team")
    search_fields = ("=id", "=webhook__id")
    show_full_result_count = False
