"""Authorization of event streams, which is checked again while a stream is open."""

from collections.abc import Collection
from dataclasses import dataclass

from django.contrib.auth import HASH_SESSION_KEY
from django.contrib.sessions.backends.base import SessionBase
from django.contrib.sessions.models import Session
from django.db.models import Q
from django.utils import timezone

from athanor.accounts import sign_on_expiry
from athanor.accounts.models import ApiToken, Membership, User
from athanor.accounts.roles import Permission, Role, Scope, permissions
from athanor.accounts.selectors import Principal


@dataclass(frozen=True)
class StreamSession:
    """The credential (an API token or a web session) that opened a stream, and the teams whose events it reads."""

    user_id: str
    team_ids: frozenset[str]
    token_id: str = ""
    session_key: str = ""
    session_hash: str = ""


def stream_session_for(principal: Principal, team_ids: Collection[str], session: SessionBase | None) -> StreamSession:
    """Return the stream session of a request: of its token, otherwise of its web session."""
    if principal.token_id or session is None:
        return StreamSession(principal.user.id, frozenset(team_ids), token_id=principal.token_id)
    return StreamSession(
        principal.user.id,
        frozenset(team_ids),
        session_key=session.session_key or "",
        session_hash=session.get(HASH_SESSION_KEY, ""),
    )


def authorized_sessions(sessions: Collection[StreamSession]) -> set[StreamSession]:
    """Return the sessions that may still read all their teams, in a constant number of queries."""
    users = {user.pk: user for user in User.objects.filter(pk__in={t.user_id for t in sessions}, is_active=True)}
    roles = {
        (user_id, team_id): Role(role)
        for user_id, team_id, role in Membership.objects.filter(user_id__in=users, team__deleted_at=None).values_list(
            "user_id", "team_id", "role"
        )
    }
    scopes = _scopes({t.token_id for t in sessions if t.token_id})
    live_sessions = _sessions({t.session_key for t in sessions if t.session_key})
    good = set()
    for session in sessions:
        user = users.get(session.user_id)
        if user is None or sign_on_expiry.is_expired(user):
            continue
        if session.token_id:
            allowed, narrowed = session.token_id in scopes, scopes.get(session.token_id)
        else:
            allowed = session.session_key in live_sessions and session.session_hash == user.get_session_auth_hash()
            narrowed = None
        if allowed and all(_sees(roles.get((session.user_id, team)), narrowed) for team in session.team_ids):
            good.add(session)
    return good


def _sees(role: Role | None, scopes: frozenset[Scope] | None) -> bool:
    return role is not None and Permission.VIEW in permissions(role, scopes)


def _scopes(token_ids: set[str]) -> dict[str, frozenset[Scope]]:
    live = ApiToken.objects.filter(pk__in=token_ids, revoked_at__isnull=True).filter(
        Q(expires_at__isnull=True) | Q(expires_at__gt=timezone.now())
    )
    return {pk: frozenset(Scope(scope) for scope in scopes) for pk, scopes in live.values_list("pk", "scopes")}


def _sessions(keys: set[str]) -> set[str]:
    live = Session.objects.filter(session_key__in=keys, expire_date__gt=timezone.now())
    return set(live.values_list("session_key", flat=True))
