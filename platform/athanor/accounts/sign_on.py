"""Single sign-on by OpenID Connect (django-allauth): who somebody is, and what their groups make them here.

The provider is asked at each sign-in, which is repeated within ATHANOR_SIGN_ON_MAX_AGE_DAYS (accounts/sign_on_age.py).
Memberships that groups gave are taken away when the groups are gone; those that an administrator gave stay. Where the
mapping names platform roles, the provider alone decides on them.
"""

import logging
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import urlencode

from allauth.account.adapter import DefaultAccountAdapter
from allauth.core.exceptions import ImmediateHttpResponse
from allauth.socialaccount.adapter import DefaultSocialAccountAdapter
from django.conf import settings
from django.db import transaction
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils import timezone

from athanor.accounts import audit, second_factors
from athanor.accounts.models import ApiToken, Membership, Team, User
from athanor.accounts.roles import PLATFORM, PlatformRole, Role
from athanor.accounts.services import revoke_all

log = logging.getLogger(__name__)

SOURCE = "sign_on"  # of memberships that groups gave
RANK = [*Role]  # a person of several groups gets the most of what they give


def apply_groups(user: User, groups: Iterable[str], mapping: Mapping[str, tuple[str, str]]) -> None:
    """Give `user` what their groups mean, and take what groups gave before and do no more."""
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
        for name, team in sorted(teams.items()):
            _give(row, team, wanted[name], held.get(team.id))
        kept = {team.id for team in teams.values()}
        for membership in held.values():
            if membership.source == SOURCE and membership.team_id not in kept:
                _take(row, membership)
        if any(team == PLATFORM for team, _ in mapping.values()):
            roles = [PlatformRole(role) for team, role in meant if team == PLATFORM]
            _set_platform_role(row, max(roles, key=[*PlatformRole].index, default=PlatformRole.NONE))
    user.platform_role = row.platform_role


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


class SignOnAdapter(DefaultSocialAccountAdapter):  # type: ignore[misc] # allauth has no types
    """allauth's hooks. What goes wrong is told on the sign-in page."""

    def is_open_for_signup(self, request: HttpRequest, sociallogin: Any) -> bool:
        return True  # the provider decides who has an account

    def pre_social_login(self, request: HttpRequest, sociallogin: Any) -> None:
        if sociallogin.is_existing:
            _note_sign_on(sociallogin.user)
            apply_groups(sociallogin.user, _groups(sociallogin), settings.ATHANOR_GROUP_ROLES)

    def save_user(self, request: HttpRequest, sociallogin: Any, form: Any = None) -> User:
        with transaction.atomic():
            user: User = super().save_user(request, sociallogin, form)
            facts = {"username": user.username, "source": SOURCE}
            audit.record("user.create", actor=user, target=("user", user.id), after=facts)
            _note_sign_on(user)
            apply_groups(user, _groups(sociallogin), settings.ATHANOR_GROUP_ROLES)
        return user

    def on_authentication_error(
        self, request: HttpRequest, provider: Any, error: Any = None, exception: Any = None, extra_context: Any = None
    ) -> None:
        log.warning("sign-on failed: %s %s", error, exception)
        raise ImmediateHttpResponse(refused(request))


class AccountAdapter(DefaultAccountAdapter):  # type: ignore[misc] # allauth has no types
    def get_client_ip(self, request: HttpRequest) -> str:
        """Return the address that the server saw: X-Forwarded-For counts only where uvicorn believes it."""
        return str(request.META.get("REMOTE_ADDR") or "0.0.0.0")  # noqa: S104 - unknown, as in a command

    def pre_login(self, request: HttpRequest, user: User, **hooks: Any) -> HttpResponse | None:
        """Ask a user who has a second factor here for it, on the dashboard's sign-in page."""
        if second_factors.kinds_of(user):
            second_factors.begin_sign_in(request, user)
            return HttpResponseRedirect(f"/sign-in?{urlencode({'next': hooks.get('redirect_url') or '/jobs'})}")
        response: HttpResponse | None = super().pre_login(request, user, **hooks)
        return response

    def get_login_stages(self) -> list[str]:
        """Without allauth's own pages for second factors: `pre_login` leads to the dashboard's."""
        return [stage for stage in super().get_login_stages() if not stage.startswith("allauth.mfa.")]

    def respond_user_inactive(self, request: HttpRequest, user: User) -> HttpResponse:
        return refused(request, "inactive")


def refused(request: HttpRequest, problem: str = "sign_on_failed") -> HttpResponseRedirect:
    return HttpResponseRedirect(f"/sign-in?{urlencode({'problem': problem})}")


def _note_sign_on(user: User) -> None:
    user.signed_on_at = timezone.now()
    User.objects.filter(pk=user.pk).update(signed_on_at=user.signed_on_at)


def _groups(sociallogin: Any) -> list[str]:
    """Of the ID token and of the provider's user info, under the claim that the settings name."""
    told = sociallogin.account.extra_data
    found: list[str] = []
    for part in (told.get("id_token"), told.get("userinfo"), told):
        claim = (part or {}).get(settings.ATHANOR.oidc_groups_claim)
        found += [claim] if isinstance(claim, str) else claim if isinstance(claim, list) else []
    return [str(group) for group in found]
