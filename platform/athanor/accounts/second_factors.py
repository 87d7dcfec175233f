"""Second factors: an authenticator app (TOTP, RFC 6238) and recovery codes. Passkeys: passkeys.py.

django-allauth's models store them (allauth.mfa). Its web flows are not used: allauth records used codes in a cache,
which is separate in each of our processes, so here the last used time step is in the database, under the row's lock.

A user with an authenticator app or a passkey signs in in two steps. Between them the browser's session contains the
pending sign-in; a known device does not skip the second step.
"""

import base64
import time
from dataclasses import dataclass
from datetime import datetime
from io import BytesIO
from typing import Any

import qrcode
from allauth.core.internal.cryptokit import compare_user_code
from allauth.mfa.adapter import DefaultMFAAdapter, get_adapter
from allauth.mfa.models import Authenticator
from allauth.mfa.recovery_codes.internal.auth import RecoveryCodes
from allauth.mfa.totp.internal.auth import TOTP, format_hotp_value, generate_totp_secret, hotp_value
from django.conf import settings
from django.contrib.auth import login
from django.db import transaction
from django.http import HttpRequest
from qrcode.image.svg import SvgPathImage

from athanor.accounts import audit, devices, passwords, sessions, throttling
from athanor.accounts.models import PlatformRole, User
from athanor.core import encryption
from athanor.core.errors import Conflict, Forbidden, NotFound, SecondFactorRequired, Unauthenticated
from athanor.core.metrics import SIGN_IN_FAILURES

APP, PASSKEY, RECOVERY_CODE = "authenticator_app", "passkey", "recovery_code"
KIND_OF = {
    Authenticator.Type.TOTP.value: APP,
    Authenticator.Type.WEBAUTHN.value: PASSKEY,
    Authenticator.Type.RECOVERY_CODES.value: RECOVERY_CODE,
}
KINDS = tuple(KIND_OF.values())
FACTORS = (Authenticator.Type.TOTP, Authenticator.Type.WEBAUTHN)  # recovery codes only stand in for one of these
PENDING_SECONDS = 5 * 60  # between the password and the second factor
SETUP_SECONDS = 10 * 60
STEP_SECONDS = 30
TOLERATED_STEPS = (-1, 0, 1)  # for clocks that differ, and for the time that typing takes
KEY_OWNER = "second_factors"
_PENDING = "athanor.second_factor.pending"
_SETUP = "athanor.second_factor.setup"
_ENCRYPTED_FIELDS = {Authenticator.Type.TOTP.value: "secret", Authenticator.Type.RECOVERY_CODES.value: "seed"}


class FactorAdapter(DefaultMFAAdapter):  # type: ignore[misc] # allauth has no types
    """Hooks for allauth: secrets are encrypted by the master key, and names are those of this platform."""

    def encrypt(self, text: str) -> str:
        """Encrypt a secret with the master key."""
        return base64.b64encode(encryption.wrap_by_master(text, KEY_OWNER)).decode()

    def decrypt(self, encrypted_text: str) -> str:
        """Decrypt a secret."""
        return encryption.unwrap_by_master(base64.b64decode(encrypted_text), KEY_OWNER)

    def get_totp_label(self, user: Any) -> str:
        """Return the name that authenticator apps show."""
        return str(user.username)


@dataclass(frozen=True)
class Setup:
    """The secret of a new authenticator app, shown once."""

    secret: str
    uri: str
    qr_svg: str


@dataclass(frozen=True)
class Overview:
    """The second factors of a user. `recovery_codes_left` is None without codes."""

    authenticator_app_since: datetime | None
    recovery_codes_left: int | None


def kinds_of(user: User) -> list[str]:
    """Return the kinds of second factor with which a user can sign in; empty when none is needed."""
    found = set(Authenticator.objects.filter(user_id=user.pk).values_list("type", flat=True))
    if not found & {factor.value for factor in FACTORS}:
        return []
    return [kind for type_, kind in KIND_OF.items() if type_ in found]


def overview(user: User) -> Overview:
    """Return the second factors of a user."""
    app = _row(user, Authenticator.Type.TOTP)
    codes = _row(user, Authenticator.Type.RECOVERY_CODES)
    return Overview(
        authenticator_app_since=app.created_at if app else None,
        recovery_codes_left=len(RecoveryCodes(codes).get_unused_codes()) if codes else None,
    )


def must_set_up(user: User) -> bool:
    """Return whether ATHANOR_REQUIRE_SECOND_FACTOR demands a second factor that this user lacks.

    Users without a password sign in at a provider, which has its own second factors.
    """
    demand = settings.ATHANOR.require_second_factor
    is_admin = user.is_staff or user.is_superuser or user.platform_role != PlatformRole.NONE
    if demand == "off" or (demand == "admins" and not is_admin):
        return False
    return user.has_usable_password() and not kinds_of(user)


# Signing in


def begin_sign_in(request: HttpRequest, user: User) -> SecondFactorRequired:
    """Store in the browser's session that the first step is done, and return the response for the second."""
    request.session.cycle_key()
    request.session[_PENDING] = {"user": user.pk, "password": user.password_version, "at": int(time.time())}
    return SecondFactorRequired(kinds_of(user))


def pending_user(request: HttpRequest) -> User | None:
    """Return the user with a pending sign-in in this browser, None without one.

    A new password, a deactivated account and PENDING_SECONDS end it.
    """
    facts = request.session.get(_PENDING)
    if not facts or not 0 <= time.time() - facts["at"] <= PENDING_SECONDS:
        return None
    user = User.objects.filter(pk=facts["user"], is_active=True).first()
    return user if user is not None and user.password_version == facts["password"] else None


def require_pending_user(request: HttpRequest) -> User:
    """Return the user with a pending sign-in. Raise Unauthenticated without one."""
    user = pending_user(request)
    if user is None:
        raise Unauthenticated(
            "sign_in_expired",
            "no sign-in of this browser waits for a second factor, or it took longer than 5 minutes",
            remedy="sign in with your password again",
        )
    return user


def complete_by_code(request: HttpRequest, code: str) -> User:
    """Sign in with a code of the authenticator app or a recovery code. Each code works once.

    Raise Unauthenticated for a wrong code, TooManyRequests after several.
    """
    user = require_pending_user(request)
    device = devices.device_of(request, user.username)
    throttling.begin_second_factor(user, device)
    with transaction.atomic():
        kind = _use_code(user, code)
        if kind:
            audit.record("second_factor.use", actor=user, target=("user", user.id), after={"kind": kind})
    if not kind:
        raise refuse(user, "code")
    finish(request, user, device)
    return user


def refuse(user: User, what: str) -> Unauthenticated:
    """Record a wrong second factor, and return the error to raise."""
    SIGN_IN_FAILURES.labels("second_factor").inc()
    facts = {"step": "second_factor", "with": what}
    audit.record_alone("session.refuse", actor=user, target=("user", user.id), after=facts)
    return Unauthenticated(
        "wrong_second_factor",
        f"the {what} is not correct, or was used before",
        remedy="wait for the next code of the app, or use another of your second factors",
    )


def finish(request: HttpRequest, user: User, device: str) -> None:
    """Sign in. Django gives the session a new key."""
    throttling.second_factor_succeeded(user, device)
    request.session.pop(_PENDING, None)
    login(request, user)


def _use_code(user: User, code: str) -> str:
    """Use up a code. Return the kind of its factor; empty if the code is wrong."""
    app = _row(user, Authenticator.Type.TOTP, lock=True)
    if app is not None:
        step = _step_of(get_adapter().decrypt(app.data["secret"]), code)
        if step is not None and step > app.data.get("last_step", -1):
            app.data["last_step"] = step
            app.record_usage()
            app.save(update_fields=["data"])
            return APP
    codes = _row(user, Authenticator.Type.RECOVERY_CODES, lock=True)
    if codes is not None and kinds_of(user) and RecoveryCodes(codes).validate_code(code):
        return RECOVERY_CODE
    return ""


def _step_of(secret: str, code: str) -> int | None:
    """Return the newest time step that has this code; None without one."""
    now = int(time.time()) // STEP_SECONDS
    expected = {now + offset: format_hotp_value(hotp_value(secret, now + offset)) for offset in TOLERATED_STEPS}
    matching = [step for step, value in expected.items() if compare_user_code(actual=code, expected=value)]
    return max(matching, default=None)


# Setting up and removing


def begin_app(request: HttpRequest, user: User, password: str) -> Setup:
    """Create the secret of an authenticator app, which is active only after `confirm_app`.

    Raise what `passwords.confirm` raises, and Conflict if there is an app already.
    """
    passwords.confirm(request, user, password)
    if _row(user, Authenticator.Type.TOTP) is not None:
        raise Conflict(
            "authenticator_app_exists", "there is an authenticator app already", remedy="remove it before adding one"
        )
    adapter = get_adapter()
    secret = generate_totp_secret()
    request.session[_SETUP] = {"user": user.pk, "secret": adapter.encrypt(secret), "at": int(time.time())}
    uri = adapter.build_totp_url(user, secret)
    image = BytesIO()
    qrcode.make(uri, image_factory=SvgPathImage).save(image)
    return Setup(secret=secret, uri=uri, qr_svg=image.getvalue().decode())


def confirm_app(request: HttpRequest, user: User, code: str) -> list[str]:
    """Add the app that shows this code. Return new recovery codes, none if the user has some already.

    Raise Conflict if no setup is pending (10 minutes), Unauthenticated for a wrong code.
    """
    facts = request.session.get(_SETUP)
    if not facts or facts["user"] != user.pk or not 0 <= time.time() - facts["at"] <= SETUP_SECONDS:
        raise Conflict(
            "setup_expired", "the setup of the authenticator app was not begun, or expired", remedy="begin it again"
        )
    secret = get_adapter().decrypt(facts["secret"])
    step = _step_of(secret, code)
    if step is None:
        raise Unauthenticated(
            "wrong_second_factor",
            "the code is not correct",
            remedy="check the clock of the phone and enter the newest code",
        )
    with transaction.atomic():
        lock(user)
        if _row(user, Authenticator.Type.TOTP) is not None:
            raise Conflict("authenticator_app_exists", "there is an authenticator app already", remedy="use that one")
        app = TOTP.activate(user, secret).instance
        app.data["last_step"] = step
        app.save(update_fields=["data"])
        codes = added(user, APP)
    del request.session[_SETUP]
    end_other_sessions(request, user)
    return codes


def added(user: User, kind: str, name: str = "") -> list[str]:
    """Record a new factor, in the caller's transaction, and return the recovery codes that come with the first one."""
    facts = {"kind": kind, **({"name": name} if name else {})}
    audit.record("second_factor.add", actor=user, target=("user", user.id), after=facts)
    if _row(user, Authenticator.Type.RECOVERY_CODES) is not None:
        return []
    return _new_codes(user)


def generate_recovery_codes(request: HttpRequest, user: User, password: str) -> list[str]:
    """Replace the recovery codes. Return the new ones: they are not shown again.

    Raise what `passwords.confirm` raises, and Conflict for a user without a second factor.
    """
    passwords.confirm(request, user, password)
    with transaction.atomic():
        lock(user)
        if not kinds_of(user):
            raise Conflict(
                "no_second_factor",
                "recovery codes stand in for a second factor, and there is none",
                remedy="add an authenticator app or a passkey first",
            )
        Authenticator.objects.filter(user_id=user.pk, type=Authenticator.Type.RECOVERY_CODES).delete()
        return _new_codes(user)


def remove_app(request: HttpRequest, user: User, password: str) -> None:
    """Remove the authenticator app. Raise what `passwords.confirm` raises, and NotFound without an app."""
    passwords.confirm(request, user, password)
    remove(request, user, _row(user, Authenticator.Type.TOTP), "authenticator app")


def remove(request: HttpRequest, user: User, row: Authenticator | None, what: str) -> None:
    """Remove one factor; with the last one, the recovery codes. The user's other sessions end."""
    with transaction.atomic():
        lock(user)
        found = Authenticator.objects.filter(pk=row.pk, user_id=user.pk).first() if row is not None else None
        if found is None:
            raise NotFound(what, "yours")
        facts = {"kind": KIND_OF[found.type], **({"name": found.data["name"]} if "name" in found.data else {})}
        found.delete()
        if not kinds_of(user):
            Authenticator.objects.filter(user_id=user.pk).delete()
        audit.record("second_factor.remove", actor=user, target=("user", user.id), before=facts)
    end_other_sessions(request, user)


def remove_all(user: User, actor: User | str) -> list[str]:
    """Remove all factors of a user who lost theirs, and end their sessions. Return the kinds removed.

    Raise Conflict for a user without one, Forbidden for an actor's own, which need the password.
    """
    if isinstance(actor, User) and actor.pk == user.pk:
        raise Forbidden(
            "own_second_factor",
            "your own second factors are removed with your password",
            remedy="use the page Account of the dashboard; if you lost them, ask another administrator",
        )
    with transaction.atomic():
        lock(user)
        kinds = kinds_of(user)
        if not kinds:
            raise Conflict("no_second_factor", f"{user.username} has no second factor", remedy="choose another user")
        Authenticator.objects.filter(user_id=user.pk).delete()
        facts = {"kinds": ", ".join(kinds)}
        audit.record("second_factor.remove_all", actor=actor, target=("user", user.id), before=facts)
        sessions.end_all(user, actor)
    return kinds


def rewrap() -> int:
    """Encrypt secrets with the current master key. Return how many the previous one had encrypted."""
    done = 0
    adapter = get_adapter()
    for pk, type_ in Authenticator.objects.filter(type__in=_ENCRYPTED_FIELDS).order_by("pk").values_list("pk", "type"):
        with transaction.atomic():
            row = Authenticator.objects.select_for_update(no_key=True).filter(pk=pk).first()
            field = _ENCRYPTED_FIELDS[type_]
            if row is None or encryption.is_wrapped_by(encryption.master_keyset(), base64.b64decode(row.data[field])):
                continue
            row.data[field] = adapter.encrypt(adapter.decrypt(row.data[field]))
            row.save(update_fields=["data"])
            done += 1
    return done


def lock(user: User) -> None:
    """Serialise changes to one user's factors."""
    User.objects.select_for_update(no_key=True).get(pk=user.pk)


def end_other_sessions(request: HttpRequest, user: User) -> None:
    """End the user's other sessions, so that they sign in by the new rules."""
    sessions.end_others(user, request.session.session_key or "")


def _new_codes(user: User) -> list[str]:
    codes = RecoveryCodes.activate(user)
    audit.record("second_factor.recovery_codes", actor=user, target=("user", user.id))
    found: list[str] = codes.generate_codes()
    return found


def _row(user: User, type_: Authenticator.Type, *, lock: bool = False) -> Authenticator | None:
    rows = Authenticator.objects.select_for_update() if lock else Authenticator.objects.all()
    return rows.filter(user_id=user.pk, type=type_).first()
