"""Known devices: a signed cookie that proves that a user has signed in with this browser before.

It does not replace the password. It only separates the tries of a known browser from those of others
(accounts/throttling).
"""

import hashlib
import secrets
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from django.conf import settings
from django.core import signing
from django.http import HttpRequest, HttpResponseBase

from athanor.accounts.models import User

LIFETIME = timedelta(days=180)
_SALT = "athanor.known-device"
_ISSUED = "athanor.device"  # in request.META: the cookie that the answer is to set


def device_of(request: HttpRequest, username: str) -> str:
    """Return the id of the known device; "" if this user has not signed in here since the last password change."""
    signed = request.COOKIES.get(_cookie_name(username))
    if not signed:
        return ""
    try:
        facts: Any = signing.loads(signed, salt=_SALT, max_age=LIFETIME)
    except signing.BadSignature:
        return ""
    user = User.objects.filter(username__iexact=username.strip(), pk=facts["user"], is_active=True).first()
    return str(facts["device"]) if user is not None and facts["password"] == user.password_version else ""


def remember(request: HttpRequest, user: User) -> None:
    """Set the device cookie in the response to a sign-in, with the browser's existing id or a new one."""
    device = device_of(request, user.username) or secrets.token_urlsafe(16)
    facts = {"user": user.pk, "device": device, "password": user.password_version}
    request.META[_ISSUED] = (_cookie_name(user.username), signing.dumps(facts, salt=_SALT))


class DeviceCookieMiddleware:
    """Set the device cookie of the user who has just signed in, on any page."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        """Set the cookie if a sign-in has issued one."""
        response = self._get_response(request)
        if _ISSUED in request.META:
            name, value = request.META[_ISSUED]
            response.set_cookie(
                name, value, max_age=LIFETIME, httponly=True, samesite="Strict", secure=settings.SESSION_COOKIE_SECURE
            )
        return response


def _cookie_name(username: str) -> str:
    return f"athanor_device_{hashlib.sha256(username.strip().lower().encode()).hexdigest()[:12]}"
