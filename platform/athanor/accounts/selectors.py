"""Reads, scoped by who asks."""

from dataclasses import dataclass

from django.db.models import QuerySet

from athanor.accounts.models import ApiToken, Membership, Role, Team, User


@dataclass(frozen=True)
class Principal:
    """Who asks, and the teams whose things they may see (`team_ids`) or change (`writable_team_ids`)."""

    user: User
    teams: tuple[Team, ...]
    writable_team_ids: frozenset[str]

    @property
    def team_ids(self) -> frozenset[str]:
        return frozenset(team.id for team in self.teams)


def principal_of(user: User) -> Principal:
    memberships = Membership.objects.filter(user=user).select_related("team").order_by("team__name")
    return _principal(user, [(membership.team, membership.role) for membership in memberships])


def principal_of_token(token: ApiToken, role: str | None) -> Principal:
    """The user of a token within the token's team; `role` None: no longer a member."""
    return _principal(token.user, [(token.team, role)] if role else [])


def _principal(user: User, roles: list[tuple[Team, str]]) -> Principal:
    writable = frozenset(team.id for team, role in roles if role != Role.VIEWER)
    return Principal(user=user, teams=tuple(team for team, _ in roles), writable_team_ids=writable)


def memberships_of(principal: Principal) -> QuerySet[Membership]:
    return Membership.objects.filter(user=principal.user, team_id__in=principal.team_ids).select_related("team")


def tokens_of(principal: Principal) -> QuerySet[ApiToken]:
    return ApiToken.objects.filter(user=principal.user, team_id__in=principal.team_ids).select_related("team")
