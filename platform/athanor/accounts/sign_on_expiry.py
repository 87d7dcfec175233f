"""How long the tokens and sessions of a single-sign-on user work without a confirmation by the provider.

The provider confirms a user at each sign-in and, if it issues refresh tokens, at each check (sign_on_checks.py). Access
ends ATHANOR_SIGN_ON_MAX_AGE_DAYS after the last confirmation, and when a check is refused; the next sign-in restores
it. Users with only a password of this platform and service accounts are not affected.
"""

from datetime import datetime, timedelta

from django.conf import settings
from django.utils import timezone

from athanor.accounts.models import User
from athanor.core.errors import Unauthenticated


def valid_until(signed_on_at: datetime | None) -> datetime | None:
    """Return when tokens and sessions stop working unless the user signs in again; None if never."""
    days: int = settings.ATHANOR.sign_on_max_age_days
    return signed_on_at + timedelta(days=days) if signed_on_at and days else None


def is_over(user: User, now: datetime | None = None) -> bool:
    """Return whether `user` must sign in at the provider again."""
    if user.sign_on_refused_at is not None:
        return True
    until = valid_until(user.signed_on_at)
    return until is not None and (now or timezone.now()) >= until


def check(user: User, now: datetime) -> None:
    """Raise Unauthenticated for a user who must sign in at the provider again."""
    if not is_over(user, now):
        return
    reason = (
        f"the sign-on provider refused to confirm {user.username} on {user.sign_on_refused_at:%Y-%m-%d %H:%M} UTC"
        if user.sign_on_refused_at
        else f"the sign-on provider last confirmed {user.username} on {user.signed_on_at:%Y-%m-%d}; tokens of "
        f"single-sign-on users work for {settings.ATHANOR.sign_on_max_age_days} days after that"
    )
    raise Unauthenticated(
        "sign_on_expired",
        reason,
        remedy=f"sign in at {settings.ATHANOR.public_url}/sign-in with single sign-on; the same token then works again",
    )
