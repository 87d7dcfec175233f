"""Password authentication of people, for the dashboard and for Django's admin. Service accounts are refused."""

from typing import Any

from django.contrib.auth.backends import ModelBackend
from django.http import HttpRequest

from athanor.accounts import devices, throttling
from athanor.accounts.models import PlatformRole, User
from athanor.core.logging import bound_id
from athanor.core.metrics import SIGN_IN_FAILURES

# Apps of Django's admin that a platform role gives access to: people, teams, tokens, audit trail, clusters. No app with
# jobs or data of a team is among them.
PLATFORM_APPS = frozenset({"accounts", "clusters"})


class ThrottledBackend(ModelBackend):
    """Django's model backend with throttled passwords, and permissions by platform role."""

    def has_perm(self, user_obj: Any, perm: str, obj: Any = None) -> bool:
        """Return whether the user has the permission, by Django's rules or by their platform role."""
        app, _, name = perm.partition(".")
        return super().has_perm(user_obj, perm, obj) or (app in PLATFORM_APPS and _by_role(user_obj, name))

    def has_module_perms(self, user_obj: Any, app_label: str) -> bool:
        """Return whether the user may open an app in the admin, or their platform role may."""
        return super().has_module_perms(user_obj, app_label) or (
            app_label in PLATFORM_APPS and _by_role(user_obj, "view_")
        )

    def authenticate(
        self, request: HttpRequest | None, username: str | None = None, password: str | None = None, **kwargs: Any
    ) -> User | None:
        """Return the user with this name and password, None if they are wrong or belong to a service account.

        With a request, attempts are throttled: raise TooManyRequests above the limit. Without one (a command, a test)
        nothing is counted.
        """
        address = bound_id("address")
        if username is None or password is None:
            return None
        device = ""
        if request is not None:
            device = devices.device_of(request, username)
            throttling.begin(username, address, device)
        found = super().authenticate(request, username=username, password=password, **kwargs)
        user = found if isinstance(found, User) and found.service_team_id is None else None
        if request is not None:
            if user is not None:
                throttling.succeeded(username, address, device)
            else:
                SIGN_IN_FAILURES.labels("password").inc()
        return user


def _by_role(user: Any, permission: str) -> bool:
    role = user.platform_role if user.is_active else PlatformRole.NONE
    return role == PlatformRole.PLATFORM_ADMIN or (role == PlatformRole.AUDITOR and permission.startswith("view_"))
