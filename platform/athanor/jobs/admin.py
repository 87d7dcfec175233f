from django.contrib import admin
from django.http import HttpRequest

from athanor.jobs.models import Attempt, Job


class ReadOnlyAdmin(admin.ModelAdmin):  # type: ignore[type-arg] # generic in the stubs only
    """The record is changed by services only."""

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: object | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: object | None = None) -> bool:
        return False


@admin.register(Job)
class JobAdmin(ReadOnlyAdmin):
    list_display = ("id", "name", "team", "status", "reason", "desired", "created_at")
    list_filter = ("status", "team")
    search_fields = ("id", "name")


@admin.register(Attempt)
class AttemptAdmin(ReadOnlyAdmin):
    list_display = ("id", "job", "number", "status", "reason", "native_state", "observed_at")
    list_filter = ("status",)
