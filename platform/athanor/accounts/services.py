"""Tokens: issue, recognise, rotate, revoke."""

import hashlib
import secrets
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from django.db import transaction
from django.db.models import OuterRef, Q, QuerySet, Subquery
from django.utils import timezone

from athanor.accounts import audit
from athanor.accounts.models import ApiToken, Membership, Team, User
from athanor.accounts.roles import DEFAULT_SCOPES, Scope
from athanor.core.errors import Conflict, NotFound

TOKEN_PREFIX = "ath_"  # noqa: S105 - the public start of every token
LAST_USED_RESOLUTION = timedelta(minutes=1)


def issue_token(
    user: User,
    team: Team,
    name: str,
    expires_at: datetime | None = None,
    *,
    scopes: Sequence[Scope] = DEFAULT_SCOPES,
    actor: User | None = None,
) -> tuple[ApiToken, str]:
    """A new token and its row. The token itself is shown this once. `actor`: who asked, when it is not `user`."""
    with transaction.atomic():
        row, secret = _new(user, team, name, expires_at, [scope.value for scope in scopes])
        audit.record("token.issue", actor=actor or user, target=("token", row.id), team_id=team.id, after=_facts(row))
    return row, secret


def recognise_token(secret: str) -> ApiToken | None:
    """The live token with its user, its team and the user's `role` there.

    None for one that is unknown, expired or revoked, or whose user may no longer sign in.
    """
    now = timezone.now()
    token = (
        ApiToken.objects.select_related("user", "team")
        .annotate(role=Subquery(_role_of_token()))
        .filter(digest=digest_of(secret), revoked_at__isnull=True, user__is_active=True)
        .filter(Q(expires_at__isnull=True) | Q(expires_at__gt=now))
        .first()
    )
    if token and (token.last_used_at is None or now - token.last_used_at > LAST_USED_RESOLUTION):
        ApiToken.objects.filter(pk=token.pk).update(last_used_at=now)
    return token


def _role_of_token() -> QuerySet[Membership, dict[str, str]]:
    return Membership.objects.filter(user=OuterRef("user"), team=OuterRef("team")).values("role")


def rotate_token(row: ApiToken, overlap: timedelta, actor: User) -> tuple[ApiToken, str]:
    """A successor with the same name, scopes and life span; the old one still works for `overlap`, then never again."""
    with transaction.atomic():
        old = (
            ApiToken.objects.select_for_update(no_key=True, of=("self",)).select_related("user", "team").get(pk=row.pk)
        )
        now = timezone.now()
        if old.revoked_at or (old.expires_at and old.expires_at <= now):
            raise Conflict("token_over", f"{old.id} is revoked or expired", remedy="issue a new token")
        life = old.expires_at - old.created_at if old.expires_at else None
        new, secret = _new(old.user, old.team, old.name, now + life if life else None, old.scopes)
        before = _facts(old)
        old.expires_at = min(now + overlap, old.expires_at or now + overlap)
        old.save(update_fields=["expires_at"])
        audit.record(
            "token.rotate",
            actor=actor,
            target=("token", old.id),
            team_id=old.team_id,
            before=before,
            after={**_facts(old), "successor": new.id},
        )
    return new, secret


def revoke_token(user: User, token_id: str, actor: User | None = None) -> None:
    """Bites at once: each request looks its token up. Idempotent."""
    with transaction.atomic():
        row = ApiToken.objects.select_for_update(no_key=True).filter(pk=token_id, user=user).first()
        if row is None:
            raise NotFound("token", token_id)
        if row.revoked_at is None:
            revoke_all(ApiToken.objects.filter(pk=row.pk), actor or user)


def revoke_all(rows: Any, actor: User) -> None:
    """Of a queryset of tokens; the caller's transaction."""
    for row in rows.filter(revoked_at__isnull=True).select_for_update(no_key=True):
        row.revoked_at = timezone.now()
        row.save(update_fields=["revoked_at"])
        audit.record("token.revoke", actor=actor, target=("token", row.id), team_id=row.team_id, before=_facts(row))


def digest_of(secret: str) -> str:
    """What is kept of a random secret; it needs no salt."""
    return hashlib.sha256(secret.encode()).hexdigest()


def _new(user: User, team: Team, name: str, expires_at: datetime | None, scopes: list[str]) -> tuple[ApiToken, str]:
    secret = TOKEN_PREFIX + secrets.token_urlsafe(32)
    row = ApiToken.objects.create(
        user=user,
        team=team,
        name=name,
        prefix=secret[:12],
        digest=digest_of(secret),
        expires_at=expires_at,
        scopes=scopes,
    )
    return row, secret


def _facts(row: ApiToken) -> dict[str, Any]:
    return {
        "name": row.name,
        "user": row.user_id,
        "scopes": list(row.scopes),
        "expires_at": row.expires_at.isoformat() if row.expires_at else None,
    }
