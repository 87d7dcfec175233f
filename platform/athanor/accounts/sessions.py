"""The sessions of a user (allauth's usersessions stores the rows), and ending them."""

from allauth.usersessions.models import UserSession
from django.http import HttpRequest

from athanor.accounts import audit
from athanor.accounts.models import User
from athanor.core.errors import NotFound


def begin(request: HttpRequest, user: User) -> None:
    """Record a sign-in, and delete the user's expired sessions."""
    UserSession.objects.purge_and_list(user)
    note(request)


def note(request: HttpRequest) -> None:
    """Record the session of a request, whose key has changed."""
    UserSession.objects.create_from_request(request)


def sessions_of(user: User) -> list[UserSession]:
    """Return the sessions that still work, the newest first."""
    found: list[UserSession] = UserSession.objects.purge_and_list(user)
    return sorted(found, key=lambda session: session.created_at, reverse=True)


def end(user: User, session_id: int) -> None:
    """End a session. Raise NotFound for one that has ended, or another user's."""
    session = next((each for each in sessions_of(user) if each.pk == session_id), None)
    if session is None:
        raise NotFound("session", str(session_id))
    session.end()
    audit.record_alone("session.revoke", actor=user, target=("user", user.id), before=_facts(session))


def end_others(user: User, current_key: str) -> int:
    """End all but the one with this key, and return how many."""
    others = [session for session in sessions_of(user) if session.session_key != current_key]
    for session in others:
        session.end()
        audit.record_alone("session.revoke", actor=user, target=("user", user.id), before=_facts(session))
    return len(others)


def end_all(user: User, actor: User | str) -> None:
    """End every session of a user, on behalf of `actor`, in the caller's transaction."""
    for session in sessions_of(user):
        session.end()
        audit.record("session.revoke", actor=actor, target=("user", user.id), before=_facts(session))


def _facts(session: UserSession) -> dict[str, str]:
    return {"address": str(session.ip), "browser": session.user_agent[:150]}
