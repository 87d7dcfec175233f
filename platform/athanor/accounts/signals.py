"""Record sign-ins and sign-outs of every page, from Django's signals."""

from typing import Any

from django.contrib.auth.signals import user_logged_in, user_logged_out, user_login_failed
from django.http import HttpRequest

from athanor.accounts import audit, devices, sessions


def connect() -> None:
    """Connect the receivers."""
    user_logged_in.connect(_signed_in, dispatch_uid="athanor.audit.in")
    user_logged_out.connect(_signed_out, dispatch_uid="athanor.audit.out")
    user_login_failed.connect(_refused, dispatch_uid="athanor.audit.refused")


def _signed_in(sender: Any, user: Any, request: HttpRequest | None = None, **_: Any) -> None:
    if request is not None:
        devices.remember(request, user)
        if hasattr(request, "user"):  # not in a command, which has no browser
            sessions.begin(request, user)
    audit.record_alone("session.begin", actor=user, target=("user", user.id))


def _signed_out(sender: Any, user: Any, **_: Any) -> None:
    if user is not None:
        audit.record_alone("session.end", actor=user, target=("user", user.id))


def _refused(sender: Any, credentials: dict[str, Any], **_: Any) -> None:
    """`credentials` come without the password; a name that nobody has is recorded as it was given."""
    name = str(credentials.get("username", ""))
    audit.record_alone("session.refuse", actor=name, target=("user", name))
