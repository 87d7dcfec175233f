"""Changing a password, and setting a new one by a link that a platform administrator has created."""

from datetime import timedelta
from typing import Any

from django.conf import settings
from django.contrib.auth import authenticate, update_session_auth_hash
from django.contrib.auth.password_validation import validate_password
from django.core import signing
from django.core.exceptions import ValidationError
from django.db import transaction
from django.http import HttpRequest

from athanor.accounts import audit, devices, sessions, throttling
from athanor.accounts.models import User
from athanor.core.errors import FieldProblem, Forbidden, Invalid, Unauthenticated

RESET_LIFETIME = timedelta(hours=24)
_SALT = "athanor.password-reset"


def change(request: HttpRequest, user: User, current: str, new: str) -> None:
    """Set a new password. This session continues, the user's others end, and other browsers become unknown devices.

    Raise Forbidden for a user without a password (single sign-on), Unauthenticated for a wrong current one (tries are
    delayed like sign-ins), Invalid for a new one that does not meet the rules.
    """
    confirm(request, user, current)
    check_rules(new, user)
    with transaction.atomic():
        _set(user, new)
        audit.record("user.password_change", actor=user, target=("user", user.id))
    update_session_auth_hash(request, user)
    sessions.note(request)
    devices.remember(request, user)


def confirm(request: HttpRequest, user: User, password: str) -> None:
    """Check the current password of a signed-in user.

    Raise Forbidden for a user without a password (single sign-on), Unauthenticated for a wrong one.
    """
    if not user.has_usable_password():
        raise Forbidden(
            "no_password", "you sign in by your organisation, not by a password", remedy="change it at the provider"
        )
    if authenticate(request, username=user.username, password=password) is None:
        raise Unauthenticated("wrong_password", "the current password is not correct", remedy="check it")


def reset_link(user: User, actor: User) -> str:
    """Return the address where the user sets a new password; it works once and for RESET_LIFETIME.

    Raise Forbidden for users who cannot have a password: service accounts, and deactivated users.
    """
    if user.service_team_id is not None or not user.is_active:
        raise Forbidden("cannot_sign_in", f"{user.username} cannot sign in", remedy="choose an active person")
    token = signing.dumps({"user": user.pk, "password": user.password_version}, salt=_SALT)
    audit.record_alone("user.password_reset_link", actor=actor, target=("user", user.id))
    return f"{settings.ATHANOR.public_url}/reset-password#{token}"  # behind the #: it is in no server's log


def reset(token: str, new: str) -> User:
    """Set the password by a link's token. All sessions of the user and sign-in delays for the name end.

    Raise Unauthenticated for a token that is wrong, expired or used, Invalid for a password that does not meet the
    rules.
    """
    refusal = Unauthenticated(
        "invalid_reset_link", "the link is not valid, or was used", remedy="ask a platform administrator for a new one"
    )
    try:
        facts: Any = signing.loads(token, salt=_SALT, max_age=RESET_LIFETIME)
    except signing.BadSignature as error:
        raise refusal from error
    with transaction.atomic():
        user = User.objects.select_for_update(no_key=True).filter(pk=facts["user"], is_active=True).first()
        if user is None or user.password_version != facts["password"]:
            raise refusal
        check_rules(new, user)
        _set(user, new)
        throttling.unlock(user, user)
        audit.record("user.password_reset", actor=user, target=("user", user.id))
    return user


def check_rules(password: str, user: User) -> None:
    """Raise Invalid naming each rule that a password does not meet."""
    try:
        validate_password(password, user)
    except ValidationError as error:
        problems = tuple(FieldProblem("/password", "weak_password", message) for message in error.messages)
        raise Invalid(
            "weak_password", problems[0].detail, remedy="choose another password", problems=problems
        ) from error


def _set(user: User, password: str) -> None:
    user.set_password(password)
    user.save(update_fields=["password"])
