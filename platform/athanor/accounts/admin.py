from django.contrib import admin
from django.contrib.auth.admin import UserAdmin

from athanor.accounts.models import ApiToken, Membership, Team, User

admin.site.register(User, UserAdmin)


class MembershipInline(admin.TabularInline):
    model = Membership
    extra = 0


@admin.register(Team)
class TeamAdmin(admin.ModelAdmin):
    list_display = ("name", "id", "max_running_jobs", "max_slots")
    inlines = (MembershipInline,)


@admin.register(ApiToken)
class ApiTokenAdmin(admin.ModelAdmin):
    list_display = ("name", "user", "team", "prefix", "last_used_at", "expires_at", "revoked_at")
    readonly_fields = ("id", "prefix", "digest", "created_at", "last_used_at")
