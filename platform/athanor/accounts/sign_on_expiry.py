"""Expiry of the sessions and tokens of users with single sign-on (SSO).

The identity provider confirms a user at each sign-in and, if it issues refresh tokens, at each check
(sign_on_checks.py). Sessions and tokens expire ATHANOR_SIGN_ON_MAX_AGE_DAYS after the last confirmation, and when the
provider refuses a check; the next sign-in makes them valid again. Users with only a password of this platform and
service accounts are not affected.
"""

from datetime import datetime, timedelta

from django.conf import settings
from django.utils import timezone

from athanor.accounts.models import User
from athanor.core.errors import Unauthenticated


def expires_at(signed_on_at: datetime | None) -> datetime | None:
    """Return when sessions and tokens expire unless the user signs in again, None if they do not."""
    days: int = settings.ATHANOR.sign_on_max_age_days
    return signed_on_at + timedelta(days=days) if signed_on_at and days else None


def is_expired(user: User, now: datetime | None = None) -> bool:
    """Return whether `user` must sign in at the identity provider again."""
    if user.sign_on_refused_at is not None:
        return True
    expiry = expires_at(user.signed_on_at)
    return expiry is not None and (now or timezone.now()) >= expiry


def check_not_expired(user: User, now: datetime) -> None:
    """Raise Unauthenticated for a user who must sign in at the identity provider again."""
    if not is_expired(user, now):
        return
    reason = (
        f"the identity provider refused to confirm {user.username} on {user.sign_on_refused_at:%Y-%m-%d %H:%M} UTC"
        if user.sign_on_refused_at
        else f"the identity provider last confirmed {user.username} on {user.signed_on_at:%Y-%m-%d}; tokens of "
        f"single-sign-on users work for {settings.ATHANOR.sign_on_max_age_days} days after that"
    )
    raise Unauthenticated(
        "sign_on_expired",
        reason,
        remedy=f"sign in at {settings.ATHANOR.public_url}/sign-in with single sign-on; the same token then works again",
    )
