"""How long what a single-sign-on user holds works without the provider: ATHANOR_SIGN_ON_MAX_AGE_DAYS.

The provider is asked at each sign-in, and at no other time. A user whose account there has ended cannot sign in again,
so their tokens and sessions stop working that many days after their last sign-in. Users with a password of this
platform only and service accounts have no `signed_on_at` and are not concerned.
"""

from datetime import datetime, timedelta

from django.conf import settings
from django.utils import timezone

from athanor.core.errors import Unauthenticated


def valid_until(signed_on_at: datetime | None) -> datetime | None:
    """Return when tokens and sessions stop working unless the user signs in again. None: never for this reason."""
    days: int = settings.ATHANOR.sign_on_max_age_days
    return signed_on_at + timedelta(days=days) if signed_on_at and days else None


def is_over(signed_on_at: datetime | None, now: datetime | None = None) -> bool:
    until = valid_until(signed_on_at)
    return until is not None and (now or timezone.now()) >= until


def check(username: str, signed_on_at: datetime | None, now: datetime) -> None:
    """Raise Unauthenticated for a user who must sign in at the provider again."""
    if signed_on_at is None or not is_over(signed_on_at, now):
        return
    raise Unauthenticated(
        "sign_on_expired",
        f"{username} last signed in at the sign-on provider on {signed_on_at:%Y-%m-%d}; tokens of single-sign-on users "
        f"work for {settings.ATHANOR.sign_on_max_age_days} days after that",
        remedy=f"sign in at {settings.ATHANOR.public_url}/sign-in with single sign-on; the same token then works again",
    )
