"""Reads, scoped by who asks."""

from dataclasses import dataclass

from django.db.models import QuerySet

from athanor.accounts.models import ApiToken, Membership, Team, User


@dataclass(frozen=True)
class Principal:
    """Who asks, and the teams whose things they may see (`team_ids`) or change (`writable_team_ids`)."""

    user: User
    team_ids: frozenset[str]
    writable_team_ids: frozenset[str]


def principal_of(user: User, only_team: str | None = None) -> Principal:
    """`only_team` narrows to the team of an API token."""
    memberships = Membership.objects.filter(user=user)
    if only_team is not None:
        memberships = memberships.filter(team_id=only_team)
    roles = dict(memberships.values_list("team_id", "role"))
    writable = frozenset(team for team, role in roles.items() if role != "viewer")
    return Principal(user=user, team_ids=frozenset(roles), writable_team_ids=writable)


def teams_of(principal: Principal) -> QuerySet[Team]:
    return Team.objects.filter(id__in=principal.team_ids).order_by("name")


def memberships_of(principal: Principal) -> QuerySet[Membership]:
    return Membership.objects.filter(user=principal.user, team_id__in=principal.team_ids).select_related("team")


def tokens_of(principal: Principal) -> QuerySet[ApiToken]:
    return ApiToken.objects.filter(user=principal.user, team_id__in=principal.team_ids).select_related("team")
