"""Queries of users, tokens and teams, limited to what the caller may see."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from django.db.models import Q, QuerySet
from django.utils import timezone

from athanor.accounts.models import ApiToken, Invitation, Membership, Team, User
from athanor.accounts.roles import (
    Permission,
    PlatformRole,
    Role,
    Scope,
    permissions,
    platform_permissions,
)
from athanor.core.errors import NotFound


@dataclass(frozen=True)
class RecognisedToken:
    """A live token, its user and team (their other columns are loaded on access), and the user's role there."""

    id: str
    scopes: list[str]
    user: User
    team: Team
    role: str | None


@dataclass(frozen=True)
class Principal:
    """The authenticated caller, and their permissions in each of their teams and on the platform.

    `scopes` are those of their token; None is a session. `team_ids` are the teams whose objects they see.
    """

    user: User
    teams: tuple[Team, ...]
    granted: Mapping[str, frozenset[Permission]]
    platform: frozenset[Permission] = field(default=frozenset())
    scopes: frozenset[Scope] | None = None
    token_id: str = ""

    @property
    def team_ids(self) -> frozenset[str]:
        """Return the teams whose objects the caller sees."""
        return self.teams_with(Permission.VIEW)

    def teams_with(self, permission: Permission) -> frozenset[str]:
        """Return the teams in which the caller has the permission."""
        return frozenset(team for team, given in self.granted.items() if permission in given)

    def may(self, permission: Permission, team_id: str) -> bool:
        """Return whether the caller has the permission in the team or on the platform."""
        return permission in self.platform or permission in self.granted.get(team_id, frozenset())


def principal_of(user: User) -> Principal:
    """Return the principal of a session, with all teams of the user."""
    memberships = Membership.objects.filter(user=user, team__deleted_at=None).select_related("team")
    return _principal(user, [(each.team, each.role) for each in memberships.order_by("team__name")])


def principal_of_token(token: RecognisedToken) -> Principal:
    """Return the principal of a token, limited to its team and scopes.

    Without a role there the user is no longer a member, and the principal sees nothing.
    """
    return _principal(token.user, [(token.team, token.role)] if token.role else [], token)


def everything_of(team: Team, user: User) -> Principal:
    """Return a principal that sees what the team has, and nothing else, for work of the platform in a user's name."""
    return Principal(user, (team,), {team.id: frozenset({Permission.VIEW})})


def _principal(user: User, roles: list[tuple[Team, str]], token: RecognisedToken | None = None) -> Principal:
    scopes = frozenset(Scope(scope) for scope in token.scopes) if token else None
    granted = {team.id: permissions(Role(role), scopes) for team, role in roles}
    return Principal(
        user=user,
        teams=tuple(team for team, _ in roles if Permission.VIEW in granted[team.id]),
        granted=granted,
        platform=platform_permissions(PlatformRole(user.platform_role), scopes),
        scopes=scopes,
        token_id=token.id if token else "",
    )


def teams_of(principal: Principal) -> QuerySet[Team]:
    """Return the teams that the user belongs to; all for users who manage teams."""
    rows = Team.objects.filter(deleted_at=None).order_by("name")
    if Permission.MANAGE_TEAMS in principal.platform:
        return rows
    return rows.filter(id__in=principal.team_ids)


def team_of(principal: Principal, team_id: str) -> Team:
    """Return a team that the caller sees, or raise NotFound."""
    team = teams_of(principal).filter(pk=team_id).first()
    if team is None:
        raise NotFound("team", team_id)
    return team


def any_team(name: str) -> Team:
    """Return the team with this name or id, also one that the caller does not belong to, or raise NotFound. Names of
    teams are visible to everyone."""
    team = Team.objects.filter(Q(name=name) | Q(pk=name), deleted_at=None).first()
    if team is None:
        raise NotFound("team", name)
    return team


def members_of(team: Team) -> QuerySet[Membership]:
    """Return all with a role in the team, including service accounts and those of other teams."""
    return Membership.objects.filter(team=team).select_related("user").order_by("user__username")


def member_of(team: Team, user_id: str) -> Membership:
    """Return a member of the team, or raise NotFound."""
    row = members_of(team).filter(user_id=user_id).first()
    if row is None:
        raise NotFound("member", user_id)
    return row


def service_accounts_of(team: Team) -> QuerySet[User]:
    """Return the team's active service accounts by name."""
    return User.objects.filter(service_team=team, is_active=True).order_by("username")


def service_account_of(principal: Principal, account_id: str) -> User:
    """Return an active service account of a team that the caller sees, or raise NotFound."""
    rows = User.objects.filter(service_team__in=teams_of(principal), is_active=True)
    account = rows.select_related("service_team").filter(pk=account_id).first()
    if account is None:
        raise NotFound("service account", account_id)
    return account


def invitation_of(principal: Principal, invitation_id: str) -> Invitation:
    """Return an invitation of a team that the caller sees, or raise NotFound."""
    rows = Invitation.objects.filter(team__in=teams_of(principal)).select_related("team", "created_by", "accepted_by")
    invitation = rows.filter(pk=invitation_id).first()
    if invitation is None:
        raise NotFound("invitation", invitation_id)
    return invitation


def invitations_of(team: Team) -> QuerySet[Invitation]:
    """Return all invitations to a team, newest first."""
    rows = Invitation.objects.filter(team=team)
    return rows.select_related("created_by", "accepted_by").order_by("-id")


def open_invitations() -> QuerySet[Invitation]:
    """Return the invitations that can still be accepted."""
    unanswered = Invitation.objects.filter(accepted_at=None, revoked_at=None, declined_at=None, team__deleted_at=None)
    return unanswered.filter(expires_at__gt=timezone.now())


def offers_to(user: User) -> QuerySet[Invitation]:
    """Return the offers of membership that the user can still accept or decline."""
    return open_invitations().filter(invited=user).select_related("team", "created_by").order_by("-id")


def memberships_of(principal: Principal) -> QuerySet[Membership]:
    """Return the caller's memberships in teams that were not deleted, by name of the team."""
    rows = Membership.objects.filter(user=principal.user, team_id__in=principal.team_ids)
    return rows.select_related("team").order_by("team__name")


def tokens_of(principal: Principal) -> QuerySet[ApiToken]:
    """Return the caller's tokens for the teams they see."""
    return ApiToken.objects.filter(user=principal.user, team_id__in=principal.team_ids).select_related("team")


def token_of(principal: Principal, token_id: str) -> ApiToken:
    """Return a token of the caller. Raises NotFound."""
    row = tokens_of(principal).filter(pk=token_id).first()
    if row is None:
        raise NotFound("token", token_id)
    return row


def team_names(team_ids: Collection[str]) -> dict[str, str]:
    """Return the name of each team, by id. Names of teams are visible to everyone."""
    return dict(Team.objects.filter(id__in=team_ids).values_list("id", "name"))
