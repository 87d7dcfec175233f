"""Single sign-on by OpenID Connect (django-allauth): the user's identity, and the roles of their groups.

The identity provider is asked at each sign-in, which is repeated within ATHANOR_SIGN_ON_MAX_AGE_DAYS
(accounts/sign_on_expiry.py), and between sign-ins if it issues refresh tokens (accounts/sign_on_checks.py).
"""

import logging
from typing import Any
from urllib.parse import urlencode

from allauth.account.adapter import DefaultAccountAdapter
from allauth.core.exceptions import ImmediateHttpResponse
from allauth.socialaccount.adapter import DefaultSocialAccountAdapter
from django.conf import settings
from django.db import transaction
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils import timezone

from athanor.accounts import audit, second_factors, sign_on_checks
from athanor.accounts.models import User
from athanor.accounts.sign_on_groups import SOURCE, apply_groups, groups_in

log = logging.getLogger(__name__)


class SignOnAdapter(DefaultSocialAccountAdapter):  # type: ignore[misc] # allauth has no types
    """Hooks for allauth. Failures are shown on the sign-in page."""

    def is_open_for_signup(self, request: HttpRequest, sociallogin: Any) -> bool:
        """Return True: the provider decides who has an account."""
        return True  # the provider decides who has an account

    def pre_social_login(self, request: HttpRequest, sociallogin: Any) -> None:
        """Record the confirmation of an existing user, and apply their groups."""
        if sociallogin.is_existing:
            _note_sign_on(sociallogin.user, sociallogin)
            apply_groups(sociallogin.user, _groups(sociallogin), settings.ATHANOR_GROUP_ROLES)

    def save_user(self, request: HttpRequest, sociallogin: Any, form: Any = None) -> User:
        """Create a user at the first sign-in, audited, with the roles of their groups."""
        with transaction.atomic():
            user: User = super().save_user(request, sociallogin, form)
            facts = {"username": user.username, "source": SOURCE}
            audit.record("user.create", actor=user, target=("user", user.id), after=facts)
            _note_sign_on(user, sociallogin)
            apply_groups(user, _groups(sociallogin), settings.ATHANOR_GROUP_ROLES)
        return user

    def on_authentication_error(
        self, request: HttpRequest, provider: Any, error: Any = None, exception: Any = None, extra_context: Any = None
    ) -> None:
        """Log the failure and redirect to the sign-in page."""
        log.warning("sign-on failed: %s %s", error, exception)
        raise ImmediateHttpResponse(refused(request))


class AccountAdapter(DefaultAccountAdapter):  # type: ignore[misc] # allauth has no types
    """Hooks for allauth."""

    def get_client_ip(self, request: HttpRequest) -> str:
        """Return the address that the server saw: X-Forwarded-For counts only from trusted proxies."""
        return str(request.META.get("REMOTE_ADDR") or "0.0.0.0")  # noqa: S104 - unknown, as in a command

    def pre_login(self, request: HttpRequest, user: User, **hooks: Any) -> HttpResponse | None:
        """Ask a user who has a second factor here for it, on the dashboard's sign-in page."""
        if second_factors.kinds_of(user):
            second_factors.begin_sign_in(request, user)
            return HttpResponseRedirect(f"/sign-in?{urlencode({'next': hooks.get('redirect_url') or '/jobs'})}")
        response: HttpResponse | None = super().pre_login(request, user, **hooks)
        return response

    def get_login_stages(self) -> list[str]:
        """Return no stages: `pre_login` leads to the dashboard's pages for second factors."""
        return [stage for stage in super().get_login_stages() if not stage.startswith("allauth.mfa.")]

    def respond_user_inactive(self, request: HttpRequest, user: User) -> HttpResponse:
        """Redirect a deactivated user to the sign-in page."""
        return refused(request, "inactive")


def refused(request: HttpRequest, problem: str = "sign_on_failed") -> HttpResponseRedirect:
    """Redirect to the sign-in page, which shows the problem."""
    return HttpResponseRedirect(f"/sign-in?{urlencode({'problem': problem})}")


def _note_sign_on(user: User, sociallogin: Any) -> None:
    user.signed_on_at, user.sign_on_refused_at = timezone.now(), None
    User.objects.filter(pk=user.pk).update(signed_on_at=user.signed_on_at, sign_on_refused_at=None)
    sign_on_checks.remember(user, sociallogin.token.token_secret if sociallogin.token else "")


def _groups(sociallogin: Any) -> list[str]:
    """Return the groups in the ID token and in the provider's user info."""
    claims = sociallogin.account.extra_data
    parts = (claims.get("id_token"), claims.get("userinfo"), claims)
    return [group for part in parts for group in groups_in(part or {}) or []]
