"""The permission of a stream, which is checked again while the stream is open."""

from collections.abc import Collection
from dataclasses import dataclass

from django.contrib.auth import HASH_SESSION_KEY
from django.contrib.sessions.backends.base import SessionBase
from django.contrib.sessions.models import Session
from django.db.models import Q
from django.utils import timezone

from athanor.accounts import sign_on_age
from athanor.accounts.models import ApiToken, Membership, User
from athanor.accounts.roles import Permission, Role, Scope, permissions
from athanor.accounts.selectors import Principal


@dataclass(frozen=True)
class Ticket:
    """Somebody's token, or their session, and the teams whose things they were let see."""

    user_id: str
    team_ids: frozenset[str]
    token_id: str = ""
    session_key: str = ""
    session_hash: str = ""


def ticket_of(who: Principal, team_ids: Collection[str], session: SessionBase | None) -> Ticket:
    if who.token_id or session is None:
        return Ticket(who.user.id, frozenset(team_ids), token_id=who.token_id)
    return Ticket(
        who.user.id,
        frozenset(team_ids),
        session_key=session.session_key or "",
        session_hash=session.get(HASH_SESSION_KEY, ""),
    )


def still_good(tickets: Collection[Ticket]) -> set[Ticket]:
    """Those that would be let in again now. A few statements, however many tickets."""
    users = {user.pk: user for user in User.objects.filter(pk__in={t.user_id for t in tickets}, is_active=True)}
    roles = {
        (user_id, team_id): Role(role)
        for user_id, team_id, role in Membership.objects.filter(user_id__in=users, team__deleted_at=None).values_list(
            "user_id", "team_id", "role"
        )
    }
    scopes = _scopes({t.token_id for t in tickets if t.token_id})
    sessions = _sessions({t.session_key for t in tickets if t.session_key})
    good = set()
    for ticket in tickets:
        user = users.get(ticket.user_id)
        if user is None or sign_on_age.is_over(user):
            continue
        if ticket.token_id:
            allowed, narrowed = ticket.token_id in scopes, scopes.get(ticket.token_id)
        else:
            allowed = ticket.session_key in sessions and ticket.session_hash == user.get_session_auth_hash()
            narrowed = None
        if allowed and all(_sees(roles.get((ticket.user_id, team)), narrowed) for team in ticket.team_ids):
            good.add(ticket)
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
