"""Tokens: issue, recognise, rotate, revoke."""

import hashlib
import json
import secrets
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, TypeVar

from django.db import connection, transaction
from django.db.models import Model
from django.utils import timezone

from athanor.accounts import audit
from athanor.accounts.models import ApiToken, Team, User
from athanor.accounts.roles import DEFAULT_SCOPES, Scope
from athanor.accounts.selectors import RecognisedToken
from athanor.core.errors import Conflict, NotFound

TOKEN_PREFIX = "ath_"  # noqa: S105 - the public start of every token
# Every request by token pays for this one: the ORM would take five times as long to put the same statement together.
RECOGNISE = """
    SELECT token.id, token.scopes, token.last_used_at, team.id, team.name,
        caller.id, caller.username, caller.platform_role,
        (SELECT role FROM accounts_membership WHERE user_id = caller.id AND team_id = team.id)
    FROM accounts_apitoken token
        JOIN accounts_user caller ON caller.id = token.user_id
        JOIN accounts_team team ON team.id = token.team_id
    WHERE token.digest = %s AND token.revoked_at IS NULL AND caller.is_active
        AND (token.expires_at IS NULL OR token.expires_at > %s)
"""
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


def recognise_token(secret: str) -> RecognisedToken | None:
    """None for a token that is unknown, expired or revoked, or whose user may no longer sign in."""
    now = timezone.now()
    with connection.cursor() as cursor:
        cursor.execute(RECOGNISE, [digest_of(secret), now])
        row = cursor.fetchone()
    if row is None:
        return None
    identifier, scopes, last_used_at, team_id, team_name, user_id, username, platform_role, role = row
    if last_used_at is None or now - last_used_at > LAST_USED_RESOLUTION:
        ApiToken.objects.filter(pk=identifier).update(last_used_at=now)
    user = _loaded(User, id=user_id, username=username, platform_role=platform_role, is_active=True)
    team = _loaded(Team, id=team_id, name=team_name)
    return RecognisedToken(identifier, json.loads(scopes), user, team, role)


Row = TypeVar("Row", bound=Model)


def _loaded(model: type[Row], **columns: Any) -> Row:
    """An instance as the ORM loads it with `only`: `from_db` takes columns in the order of the model's fields."""
    names = [field.attname for field in model._meta.concrete_fields if field.attname in columns]
    return model.from_db(connection.alias, names, [columns[name] for name in names])


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
