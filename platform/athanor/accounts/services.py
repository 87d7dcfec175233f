"""Tokens: issue, recognise, revoke."""

import hashlib
import secrets
from datetime import datetime, timedelta

from django.db.models import OuterRef, Q, QuerySet, Subquery
from django.utils import timezone

from athanor.accounts.models import ApiToken, Membership, Role, Team, User
from athanor.core.errors import Forbidden, NotFound

TOKEN_PREFIX = "ath_"  # noqa: S105 - the public start of every token
LAST_USED_RESOLUTION = timedelta(minutes=1)


def issue_token(user: User, team: Team, name: str, expires_at: datetime | None = None) -> tuple[ApiToken, str]:
    """A new token and its row. The token itself is shown this once."""
    secret = TOKEN_PREFIX + secrets.token_urlsafe(32)
    row = ApiToken.objects.create(
        user=user, team=team, name=name, prefix=secret[:12], digest=_digest(secret), expires_at=expires_at
    )
    return row, secret


def recognise_token(secret: str) -> ApiToken | None:
    """The live token with its user, its team and the user's `role` there.

    None for one that is unknown, expired or revoked, or whose user may no longer sign in.
    """
    now = timezone.now()
    token = (
        ApiToken.objects.select_related("user", "team")
        .annotate(role=Subquery(_role_of_token()))
        .filter(digest=_digest(secret), revoked_at__isnull=True, user__is_active=True)
        .filter(Q(expires_at__isnull=True) | Q(expires_at__gt=now))
        .first()
    )
    if token and (token.last_used_at is None or now - token.last_used_at > LAST_USED_RESOLUTION):
        ApiToken.objects.filter(pk=token.pk).update(last_used_at=now)
    return token


def _role_of_token() -> QuerySet[Membership, dict[str, str]]:
    return Membership.objects.filter(user=OuterRef("user"), team=OuterRef("team")).values("role")


def revoke_token(user: User, token_id: str) -> None:
    changed = ApiToken.objects.filter(pk=token_id, user=user, revoked_at__isnull=True).update(revoked_at=timezone.now())
    if not changed and not ApiToken.objects.filter(pk=token_id, user=user).exists():
        raise NotFound("token", token_id)


def require_role(user: User, team: Team, *roles: Role) -> None:
    membership = Membership.objects.filter(user=user, team=team).first()
    if membership is None or membership.role not in roles:
        raise Forbidden(
            "role_missing",
            f"this needs the role {' or '.join(roles)} in team {team.name}",
            remedy="ask an administrator of the team",
        )


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
