from django.contrib import admin
from django.contrib.auth.admin import UserAdmin
from django.db.models import Model
from django.http import HttpRequest

from athanor.accounts.models import ApiToken, AuditEvent, Invitation, Membership, Team, User


@admin.register(User)
class AccountAdmin(UserAdmin):  # type: ignore[type-arg] # generic in the stubs only
    list_display = ("username", "email", "platform_role", "service_team", "is_active", "last_login")
    list_filter = ("platform_role", "is_active", "is_staff", "service_team")
    fieldsets = (*(UserAdmin.fieldsets or ()), ("Athanor", {"fields": ("platform_role", "service_team")}))


class MembershipInline(admin.TabularInline):  # type: ignore[type-arg] # generic in the stubs only
    model = Membership
    extra = 0
    autocomplete_fields = ("user",)


@admin.register(Team)
class TeamAdmin(admin.ModelAdmin):  # type: ignore[type-arg] # generic in the stubs only
    list_display = ("name", "id", "max_running_jobs", "max_slots")
    search_fields = ("name", "id")
    inlines = (MembershipInline,)


class SeenOnly(admin.ModelAdmin):  # type: ignore[type-arg] # generic in the stubs only
    """Made and changed by services only."""

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False


@admin.register(ApiToken)
class ApiTokenAdmin(SeenOnly):
    list_display = ("name", "user", "team", "prefix", "last_used_at", "expires_at", "revoked_at")
    list_filter = ("team",)
    search_fields = ("id", "name", "user__username", "prefix")
    exclude = ("digest",)


@admin.register(Invitation)
class InvitationAdmin(SeenOnly):
    list_display = ("id", "team", "role", "note", "created_by", "expires_at", "accepted_by")
    list_filter = ("team",)
    exclude = ("digest",)


@admin.register(AuditEvent)
class AuditEventAdmin(SeenOnly):
    list_display = ("seq", "time", "action", "actor", "team_id", "target_type", "target_id", "address")
    search_fields = ("=actor", "=target_id", "=team_id", "=request_id")
    date_hierarchy = "time"
    show_full_result_count = False
