"""Users, teams, members, tokens and the audit trail in Django's admin."""

from typing import Any

from django.contrib import admin, messages
from django.contrib.auth.admin import UserAdmin
from django.db.models import Count, Model, Q, QuerySet
from django.http import HttpRequest

from athanor.accounts import members, passwords, second_factors, services, throttling
from athanor.accounts.admin_tools import SeenInline, SeenOnly, act_on_each, link, pretty
from athanor.accounts.models import ApiToken, AuditEvent, Invitation, Membership, Team, User
from athanor.accounts.roles import Role
from athanor.core.errors import AthanorError, Forbidden


class MembershipInline(SeenInline):
    """The members of a team, read-only."""

    model = Membership
    fields = ("user", "role")
    readonly_fields = ("user", "role")
    verbose_name_plural = "members (changed under Memberships)"

    def get_queryset(self, request: HttpRequest) -> QuerySet[Membership]:
        """Return the memberships with their user and team."""
        rows: QuerySet[Membership] = super().get_queryset(request).select_related("user", "team")
        return rows


@admin.register(User)
class AccountAdmin(UserAdmin):  # type: ignore[type-arg] # generic in the stubs only
    """Users and service accounts."""

    list_display = ("username", "email", "platform_role", "service_team", "teams", "is_active", "last_login")
    list_filter = ("platform_role", "is_active", "is_staff", ("service_team", admin.RelatedOnlyFieldListFilter))
    list_select_related = ("service_team",)
    search_fields = ("username", "email", "=id", "memberships__team__name")
    date_hierarchy = "date_joined"
    fieldsets = (
        (None, {"fields": ("username", "password")}),
        ("Person", {"fields": ("first_name", "last_name", "email")}),
        ("Rights", {"fields": ("is_active", "platform_role", "is_staff", "is_superuser", "service_team")}),
        ("Dates", {"fields": ("last_login", "date_joined")}),
    )
    filter_horizontal = ()
    autocomplete_fields = ("service_team",)
    actions = ("revoke_tokens", "end_sign_in_delays", "make_password_reset_link", "remove_second_factors")

    @admin.action(description="Make a link to set a new password", permissions=("change",))
    def make_password_reset_link(self, request: Any, queryset: QuerySet[User]) -> None:
        """Show a link for each selected user to set a new password."""
        for user in queryset:
            if user.is_superuser and not request.user.is_superuser:
                self.message_user(request, f"{user}: only a superuser resets a superuser's password", messages.ERROR)
                continue
            try:
                address = passwords.reset_link(user, request.user)
            except AthanorError as error:
                self.message_user(request, f"{user}: {error.message}; {error.remedy}", messages.ERROR)
            else:
                self.message_user(request, f"{user}, for 24 hours, once: {address}", messages.SUCCESS)

    @admin.action(description="End sign-in delays", permissions=("change",))
    def end_sign_in_delays(self, request: Any, queryset: QuerySet[User]) -> None:
        """End all sign-in delays of the selected users."""
        act_on_each(request, self, queryset, lambda user: throttling.unlock(user, request.user), "Delays ended")

    @admin.action(description="Remove second factors, end sessions", permissions=("change",))
    def remove_second_factors(self, request: Any, queryset: QuerySet[User]) -> None:
        """Remove the second factors of the selected users and end their sessions."""

        def remove(user: User) -> None:
            if user.is_superuser and not request.user.is_superuser:
                raise Forbidden("superuser", "only a superuser does this for a superuser", remedy="ask one")
            second_factors.remove_all(user, request.user)

        act_on_each(request, self, queryset, remove, "Second factors removed of")

    def get_queryset(self, request: HttpRequest) -> QuerySet[User]:
        """Return the users with their teams."""
        rows: QuerySet[User] = super().get_queryset(request)
        return rows.prefetch_related("memberships__team")

    def get_readonly_fields(self, request: Any, obj: Any = None) -> Any:
        """Let only superusers create superusers, who see every team's work."""
        dates = ("last_login", "date_joined")
        return dates if request.user.is_superuser else (*dates, "is_staff", "is_superuser")

    def has_change_permission(self, request: Any, obj: Any = None) -> bool:
        """Let only superusers change superusers, whose password would give their rights."""
        if obj is not None and obj.is_superuser and not request.user.is_superuser:
            return False  # nor takes one's place, by a new password
        return super().has_change_permission(request, obj)

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Return False: the record of their actions refers to them. Deactivate users instead."""
        return False  # the record of what they did stays theirs; switch them off

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        """Hide the password's digest. Users with the permission to change it get the form."""
        sets = super().get_fieldsets(request, obj)
        if obj is None or self.has_change_permission(request, obj):
            return sets
        return [
            (title, {**options, "fields": tuple(name for name in options["fields"] if name != "password")})
            for title, options in sets
        ]

    @admin.action(description="Revoke all API tokens", permissions=["change"])
    def revoke_tokens(self, request: Any, rows: QuerySet[User]) -> None:
        """Revoke all tokens of the selected users."""
        act_on_each(request, self, rows, lambda row: services.revoke_tokens_of(row, request.user), "Tokens revoked of")

    @admin.display(description="teams")
    def teams(self, user: User) -> str:
        """Return the user's teams with their role in each."""
        return ", ".join(f"{row.team.name} ({row.role})" for row in user.memberships.all()) or "-"


@admin.register(Team)
class TeamAdmin(admin.ModelAdmin):  # type: ignore[type-arg] # generic in the stubs only
    """Teams."""

    list_display = ("name", "members", "created_at", "quotas", "on_the_dashboard")
    search_fields = ("name", "=id")
    date_hierarchy = "created_at"
    readonly_fields = ("id", "created_at", "quotas", "on_the_dashboard")
    fields = ("name", "id", "created_at", "quotas", "on_the_dashboard")
    inlines = (MembershipInline,)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Team]:
        """Return the teams with their number of members, without service accounts."""
        people = Count("memberships", filter=Q(memberships__user__service_team=None))
        rows: QuerySet[Team] = super().get_queryset(request).annotate(people=people)
        return rows

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        """Make the name of an existing team read-only."""
        return (*self.readonly_fields, "name") if obj else self.readonly_fields

    def get_inlines(self, request: HttpRequest, obj: Any) -> Any:
        """Show members only of existing teams."""
        return self.inlines if obj else ()

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        """Return False: jobs and the audit trail refer to their team."""
        return False  # its jobs and its audit trail outlive it

    def save_model(self, request: Any, obj: Team, form: Any, change: bool) -> None:
        """Create a team by the service, with the user as its first administrator."""
        if not change:
            obj.pk = members.create_team(obj.name, request.user).pk
            obj._state.adding = False

    @admin.display(description="members", ordering="people")
    def members(self, team: Any) -> int:
        """Return the number of members, without service accounts."""
        return int(team.people)

    @admin.display(description="quotas and limits")
    def quotas(self, team: Team) -> str:
        """Return a link to the quota tree."""
        return link("/quotas", "in the quota tree")

    @admin.display(description="dashboard")
    def on_the_dashboard(self, team: Team) -> str:
        """Return a link to the team's jobs."""
        return link(f"/jobs?team={team.name}", "jobs") if team.pk else "-"


@admin.register(Membership)
class MembershipAdmin(admin.ModelAdmin):  # type: ignore[type-arg] # generic in the stubs only
    """Memberships, changed by the same services as the API: a team keeps its last administrator."""

    list_display = ("user", "team", "role")
    list_filter = ("role", ("team", admin.RelatedOnlyFieldListFilter))
    list_select_related = ("user", "team")
    search_fields = ("user__username", "team__name")
    autocomplete_fields = ("user", "team")
    fields = ("user", "team", "role")

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        """Make the user and the team of an existing membership read-only."""
        return ("user", "team") if obj else ()

    def get_actions(self, request: HttpRequest, *_: Any, **__: Any) -> Any:
        """Return no actions: Django's own deletes rows without the service."""
        return {}  # Django's deletes without asking the service

    def save_model(self, request: Any, obj: Membership, form: Any, change: bool) -> None:
        """Add a member or change their role by the service."""
        if change:
            members.set_role(obj.team, obj.user_id, Role(obj.role), request.user)
        else:
            obj.pk = members.add_member(obj.team, obj.user.username, Role(obj.role), request.user).pk

    def delete_model(self, request: Any, obj: Membership) -> None:
        """Remove the member by the service."""
        members.remove_member(obj.team, obj.user_id, request.user)


@admin.register(ApiToken)
class ApiTokenAdmin(SeenOnly):
    """API tokens, read-only."""

    list_display = (
        "name",
        "user",
        "team",
        "prefix",
        "created_at",
        "last_used_at",
        "expires_at",
        "revoked_at",
        "parent",
    )
    list_filter = (
        ("revoked_at", admin.EmptyFieldListFilter),
        ("team", admin.RelatedOnlyFieldListFilter),
        "expires_at",
    )
    list_select_related = ("user", "team", "parent")
    search_fields = ("=id", "name", "user__username", "=prefix")
    date_hierarchy = "created_at"
    exclude = ("digest",)
    actions = ("revoke",)

    @admin.action(description="Revoke immediately", permissions=["operate"])
    def revoke(self, request: Any, rows: QuerySet[ApiToken]) -> None:
        """Revoke the selected tokens."""
        found = rows.select_related("user")
        act_on_each(request, self, found, lambda row: services.revoke_token(row.user, row.id, request.user), "Revoked")


@admin.register(Invitation)
class InvitationAdmin(SeenOnly):
    """Invitations, read-only."""

    list_display = ("id", "team", "role", "note", "created_by", "created_at", "expires_at", "accepted_by", "revoked_at")
    list_filter = (
        "role",
        ("accepted_at", admin.EmptyFieldListFilter),
        ("team", admin.RelatedOnlyFieldListFilter),
    )
    list_select_related = ("team", "created_by", "accepted_by")
    search_fields = ("=id", "note", "team__name", "created_by__username")
    date_hierarchy = "created_at"
    exclude = ("digest",)
    actions = ("revoke",)

    @admin.action(description="Withdraw", permissions=["operate"])
    def revoke(self, request: Any, rows: QuerySet[Invitation]) -> None:
        """Revoke the selected invitations."""
        act_on_each(request, self, rows, lambda row: members.revoke_invitation(row, request.user), "Withdrawn")


class AboutFilter(admin.SimpleListFilter):
    """Filter by the first part of an action. The choices are fixed, so that the trail is not scanned for them."""

    title = "what it is about"
    parameter_name = "about"
    KINDS = (
        "session",
        "job",
        "team",
        "member",
        "invitation",
        "token",
        "service_account",
        "secret",
        "webhook",
        "admin",
        "second_factor",
    )

    def lookups(self, request: Any, model_admin: Any) -> list[tuple[str, str]]:
        """Return the choices."""
        return [(kind, kind.replace("_", " ")) for kind in self.KINDS]

    def queryset(self, request: Any, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """Return the records whose action begins with the chosen kind."""
        return queryset.filter(action__startswith=f"{self.value()}.") if self.value() in self.KINDS else queryset


@admin.register(AuditEvent)
class AuditEventAdmin(SeenOnly):
    """The audit trail, read-only."""

    list_display = ("seq", "time", "action", "actor", "team", "target", "address")
    list_filter = (AboutFilter,)
    search_fields = ("=actor", "=target_id", "=team_id", "=request_id", "action__startswith")
    search_help_text = "whole names and ids, or how an action begins: job."
    date_hierarchy = "time"
    ordering = ("-seq",)
    fields = (
        "seq", "time", "action", "actor", "actor_id", "token_id", "team_id", "target_type", "target_id", "address",
        "request_id", "what_was", "what_is", "previous", "digest",
    )  # fmt: skip
    readonly_fields = ("what_was", "what_is")

    @admin.display(description="team", empty_value="-")
    def team(self, event: AuditEvent) -> str:
        """Return the end of the team's id, without a query: the team may be deleted."""
        return link(f"/admin/accounts/team/{event.team_id}/change/", f"…{event.team_id[-6:]}") if event.team_id else ""

    @admin.display(description="on")
    def target(self, event: AuditEvent) -> str:
        """Return the id of the target, with a link for jobs."""
        return link(f"/jobs/{event.target_id}", event.target_id) if event.target_type == "job" else str(event.target_id)

    @admin.display(description="before")
    def what_was(self, event: AuditEvent) -> str:
        """Return the values before the change."""
        return pretty(event.before)

    @admin.display(description="after")
    def what_is(self, event: AuditEvent) -> str:
        """Return the values after the change."""
        return pretty(event.after)
