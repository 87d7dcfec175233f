"""The roles that the groups of a single-sign-on user give.

Memberships given by groups are removed when the groups are removed; those that an administrator gave stay. If the
mapping names platform roles, the provider alone decides on them.
"""

import logging
from collections.abc import Iterable, Mapping
from typing import Any

from django.conf import settings
from django.db import transaction

from athanor.accounts import audit
from athanor.accounts.models import ApiToken, Membership, Team, User
from athanor.accounts.roles import PLATFORM, PlatformRole, Role
from athanor.accounts.services import revoke_all

log = logging.getLogger(__name__)

SOURCE = "sign_on"  # of memberships that groups gave
RANK = [*Role]  # a person of several groups gets the most of what they give


def apply_groups(user: User, groups: Iterable[str], mapping: Mapping[str, tuple[str, str]]) -> None:
    """Give `user` the roles of their groups, and remove roles that groups gave before and no longer give."""
    meant = [mapping[group] for group in groups if group in mapping]
    wanted: dict[str, Role] = {}
    for team, role in meant:
        if team != PLATFORM:
            wanted[team] = max(wanted.get(team, Role(role)), Role(role), key=RANK.index)
    with transaction.atomic():
        row = User.objects.select_for_update(no_key=True).get(pk=user.pk)
        teams = {team.name: team for team in Team.objects.filter(name__in=wanted, deleted_at=None)}
        for name in sorted(wanted.keys() - teams.keys()):
            log.warning("sign-on: a group gives a role in team %r, which does not exist", name)
        # Those of a deleted team come back with it, if it is restored.
        memberships = Membership.objects.filter(user=row, team__deleted_at=None)
        held = {membership.team_id: membership for membership in memberships}
        for name, found in sorted(teams.items()):
            _give(row, found, wanted[name], held.get(found.id))
        kept = {team.id for team in teams.values()}
        for membership in held.values():
            if membership.source == SOURCE and membership.team_id not in kept:
                _take(row, membership)
        if any(team == PLATFORM for team, _ in mapping.values()):
            roles = [PlatformRole(role) for team, role in meant if team == PLATFORM]
            _set_platform_role(row, max(roles, key=[*PlatformRole].index, default=PlatformRole.NONE))
    user.platform_role = row.platform_role


def groups_in(claims: Mapping[str, Any]) -> list[str] | None:
    """Return the groups under the claim that ATHANOR_OIDC_GROUPS_CLAIM names, None without that claim."""
    claim = claims.get(settings.ATHANOR.oidc_groups_claim)
    if isinstance(claim, str):
        return [claim]
    return [str(group) for group in claim] if isinstance(claim, list) else None


def _give(user: User, team: Team, role: Role, held: Membership | None) -> None:
    if held is None:
        row, created = Membership.objects.get_or_create(
            user=user, team=team, defaults={"role": role.value, "source": SOURCE}
        )
        if not created:
            return  # an administrator was quicker
    elif held.source == SOURCE and held.role != role.value:
        Membership.objects.filter(pk=held.pk).update(role=role.value)
    else:
        return
    before = {"role": held.role} if held else None
    action = "member.role" if held else "member.add"
    after = {"role": role.value, "source": SOURCE}
    audit.record(action, actor=user, target=("user", user.id), team_id=team.id, before=before, after=after)


def _take(user: User, held: Membership) -> None:
    Membership.objects.filter(pk=held.pk).delete()
    revoke_all(ApiToken.objects.filter(user=user, team_id=held.team_id), user)
    before = {"role": held.role, "source": SOURCE}
    audit.record("member.remove", actor=user, target=("user", user.id), team_id=held.team_id, before=before)


def _set_platform_role(user: User, role: PlatformRole) -> None:
    before = user.platform_role
    if before == role.value:
        return
    user.platform_role = role.value
    user.save(update_fields=["platform_role"])
    facts = {"platform_role": role.value, "source": SOURCE}
    audit.record(
        "user.platform_role", actor=user, target=("user", user.id), before={"platform_role": before}, after=facts
    )
