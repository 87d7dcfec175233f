"""API tokens: issue, authenticate, rotate, revoke."""

import hashlib
import json
import secrets
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.db import connection, transaction
from django.db.models import QuerySet
from django.utils import timezone

from athanor.accounts import audit, sign_on_expiry
from athanor.accounts.models import ApiToken, Team, User
from athanor.accounts.roles import DEFAULT_SCOPES, PLATFORM_SCOPES, PlatformRole, Scope
from athanor.accounts.selectors import RecognisedToken
from athanor.core.errors import Conflict, Forbidden, NotFound
from athanor.core.rows import loaded

TOKEN_PREFIX = "ath_"  # noqa: S105 - the public start of every token
# Every request by token pays for this one: the ORM would take five times as long to put the same statement together.
RECOGNISE = """
    SELECT token.id, token.scopes, token.last_used_at, team.id, team.name,
        caller.id, caller.username, caller.platform_role, caller.signed_on_at,
        caller.sign_on_refused_at,
        (SELECT role FROM accounts_membership WHERE user_id = caller.id AND team_id = team.id)
    FROM accounts_apitoken token
        JOIN accounts_user caller ON caller.id = token.user_id
        JOIN accounts_team team ON team.id = token.team_id
    WHERE token.digest = %s AND token.revoked_at IS NULL AND caller.is_active
        AND team.deleted_at IS NULL
        AND (token.expires_at IS NULL OR token.expires_at > %s)
"""
MAX_LIVE_TOKENS = 50  # of one user
LAST_USED_RESOLUTION = timedelta(minutes=1)


def issue_token(
    user: User,
    team: Team,
    name: str,
    expires_at: datetime | None = None,
    *,
    scopes: Sequence[Scope] = DEFAULT_SCOPES,
    actor: User | None = None,
    parent_id: str = "",
) -> tuple[ApiToken, str]:
    """Return a new token's row and the token, which is shown only once.

    It expires at `expires_at`, but not after the longest life that the settings allow, nor after its parent.
    `parent_id`: the token that creates it, if any. `actor`: the creator, if it is not `user`. Raise Forbidden for a
    platform scope of a user without a platform role, Conflict for a user with too many tokens.
    """
    with transaction.atomic():
        owner = User.objects.select_for_update(no_key=True).get(pk=user.pk)
        of_platform = next((scope for scope in scopes if scope in PLATFORM_SCOPES), None)
        if of_platform is not None and owner.platform_role == PlatformRole.NONE.value:
            raise Forbidden(
                "platform_role_missing",
                f"{owner.username} has no role on the platform that the scope {of_platform.value!r} could use",
                remedy="leave the scope out, or ask a platform administrator for a role first",
            )
        parent = _locked_live(parent_id) if parent_id else None
        _refuse_too_many(ApiToken.objects.filter(user=owner), owner)
        ends = [latest_end(), expires_at, parent.expires_at if parent else None]
        row, secret = _new(owner, team, name, min(filter(None, ends)), [scope.value for scope in scopes], parent_id)
        audit.record("token.issue", actor=actor or user, target=("token", row.id), team_id=team.id, after=_facts(row))
    return row, secret


def latest_end() -> datetime:
    """Return the latest possible expiry of a token created now."""
    return timezone.now() + timedelta(days=settings.ATHANOR.token_max_days)


def recognise_token(secret: str) -> RecognisedToken | None:
    """Return the token; None if it is unknown, expired or revoked, or its user may not sign in.

    Raise Unauthenticated while its user must sign in at the provider again.
    """
    now = timezone.now()
    with connection.cursor() as cursor:
        cursor.execute(RECOGNISE, [digest_of(secret), now])
        row = cursor.fetchone()
    if row is None:
        return None
    identifier, scopes, last_used_at, team_id, team_name, user_id, username, platform_role, *sign_on, role = row
    user = loaded(
        User,
        id=user_id,
        username=username,
        platform_role=platform_role,
        is_active=True,
        signed_on_at=sign_on[0],
        sign_on_refused_at=sign_on[1],
    )
    sign_on_expiry.check_not_expired(user, now)
    if last_used_at is None or now - last_used_at > LAST_USED_RESOLUTION:
        ApiToken.objects.filter(pk=identifier).update(last_used_at=now)
    team = loaded(Team, id=team_id, name=team_name)
    return RecognisedToken(identifier, json.loads(scopes), user, team, role)


def rotate_token(row: ApiToken, overlap: timedelta, actor: User, *, by_token: str = "") -> tuple[ApiToken, str]:
    """Return a successor with the same name and scopes; the old one works for `overlap` and then never again.

    `by_token` is the token that asks, which may rotate itself and its descendants: the successor then ends when the old
    one would have, and never after the token that asks. A person (no `by_token`) renews a token that they made
    themselves for another life span of the same length. What else the old token has made ends with it.

    A token's own successor has it as its parent, so that revoking a stolen token also ends what a thief made of it; any
    other successor takes the old one's place below its parent.
    """
    with transaction.atomic():
        asker = _locked_live(by_token) if by_token and by_token != row.id else None
        old = _locked_live(row.id)
        if by_token and not _is_below(old, by_token):
            raise Forbidden(
                "not_a_descendant",
                f"a token may rotate itself and what it has made; {old.id} is neither",
                remedy="rotate it with itself, or sign in to the dashboard",
            )
        now, before = timezone.now(), _facts(old)
        ends = [latest_end(), old.expires_at, asker.expires_at if asker else None]
        if not by_token and old.parent_id is None and old.expires_at:
            ends = [latest_end(), now + (old.expires_at - old.created_at)]
        _refuse_too_many(ApiToken.objects.filter(user_id=old.user_id).exclude(pk=old.pk), old.user)
        parent_id = old.id if by_token == old.id else old.parent_id or ""
        new, secret = _new(old.user, old.team, old.name, min(filter(None, ends)), old.scopes, parent_id)
        _end_by(old, min(filter(None, [now + overlap, old.expires_at])), successor_id=new.id)
        old.refresh_from_db(fields=["expires_at"])
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
    """Revoke a token and those it created, with immediate effect: each request looks its token up. Idempotent."""
    with transaction.atomic():
        row = ApiToken.objects.filter(pk=token_id, user=user).first()
        if row is None:
            raise NotFound("token", token_id)
        revoke_all(ApiToken.objects.filter(pk=row.pk), actor or user)


def revoke_tokens_of(user: User, actor: User, *, team: Team | None = None, by_token: str = "") -> int:
    """Revoke a user's tokens, of one team or of all; or, asked by a token, that one and what it has made.

    Returns how many were live.
    """
    rows = ApiToken.objects.filter(user=user)
    if team is not None:
        rows = rows.filter(team=team)
    if by_token:
        rows = rows.filter(pk=by_token)
    with transaction.atomic():
        return revoke_all(rows, actor)


def revoke_all(rows: QuerySet[ApiToken], actor: User) -> int:
    """Revoke the tokens of a queryset and all that they created. Return how many were live.

    The caller opens the transaction.
    """
    count = 0
    level = list(rows.order_by("pk").select_for_update(no_key=True, of=("self",)))
    while level:
        for row in level:
            if row.revoked_at is None:
                count += row.expires_at is None or row.expires_at > timezone.now()
                row.revoked_at = timezone.now()
                row.save(update_fields=["revoked_at"])
                audit.record(
                    "token.revoke", actor=actor, target=("token", row.id), team_id=row.team_id, before=_facts(row)
                )
        level = _locked_children(level)
    return count


def digest_of(secret: str) -> str:
    """Return the digest of a random secret that is stored in its place; it needs no salt."""
    return hashlib.sha256(secret.encode()).hexdigest()


def _new(
    user: User, team: Team, name: str, expires_at: datetime, scopes: list[str], parent_id: str = ""
) -> tuple[ApiToken, str]:
    secret = TOKEN_PREFIX + secrets.token_urlsafe(32)
    row = ApiToken.objects.create(
        user=user,
        team=team,
        name=name,
        prefix=secret[:12],
        digest=digest_of(secret),
        expires_at=expires_at,
        scopes=scopes,
        parent_id=parent_id or None,
    )
    return row, secret


def _locked_live(token_id: str) -> ApiToken:
    """Lock a live token's row, so that a revocation waits for tokens it creates, and revokes them too."""
    rows = ApiToken.objects.select_for_update(no_key=True, of=("self",)).select_related("user", "team")
    row = rows.get(pk=token_id)
    if row.revoked_at or (row.expires_at and row.expires_at <= timezone.now()):
        raise Conflict("token_over", f"{row.id} is revoked or expired", remedy="issue a new token")
    return row


def _locked_children(rows: Iterable[ApiToken]) -> list[ApiToken]:
    children = ApiToken.objects.filter(parent__in=[row.pk for row in rows])
    return list(children.order_by("pk").select_for_update(no_key=True, of=("self",)))


def _is_below(row: ApiToken, ancestor_id: str) -> bool:
    """Return whether a token is, or descends from, another."""
    current: ApiToken | None = row
    while current is not None and current.pk != ancestor_id:
        current = current.parent
    return current is not None


def _end_by(row: ApiToken, end: datetime, successor_id: str) -> None:
    """Shorten the life of a token and of all that it created except its successor."""
    level = [row]
    while level:
        for each in level:
            if each.expires_at is None or each.expires_at > end:
                each.expires_at = end
                each.save(update_fields=["expires_at"])
        level = [child for child in _locked_children(level) if child.pk != successor_id]


def _refuse_too_many(others: QuerySet[ApiToken], owner: User) -> None:
    """Raise Conflict for a user with too many tokens.

    The caller has locked the owner's row, or rotates: then one more for a moment is acceptable.
    """
    live = others.filter(revoked_at=None).exclude(expires_at__lte=timezone.now()).count()
    if live >= MAX_LIVE_TOKENS:
        raise Conflict(
            "too_many_tokens",
            f"{owner.username} has {live} valid tokens; {MAX_LIVE_TOKENS} are the most",
            remedy="revoke tokens that are not used (GET /tokens, DELETE /tokens/{id}, or the page Tokens)",
        )


def _facts(row: ApiToken) -> dict[str, Any]:
    return {
        "name": row.name,
        "user": row.user_id,
        "scopes": list(row.scopes),
        "expires_at": row.expires_at.isoformat() if row.expires_at else None,
        "parent": row.parent_id,
    }
