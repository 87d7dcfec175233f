"""Passkeys (WebAuthn) as a second factor. Only public keys are stored.

The relying party's id and origin are those of ATHANOR_PUBLIC_URL, never of a request's Host header. A challenge is in
the browser's session, works once and for CHALLENGE_SECONDS.
"""

import ipaddress
import struct
import time
from typing import Any
from urllib.parse import urlsplit

from allauth.mfa.models import Authenticator
from allauth.mfa.webauthn.internal.auth import WebAuthn
from django.conf import settings
from django.db import transaction
from django.http import HttpRequest
from fido2.server import Fido2Server
from fido2.webauthn import (
    AttestedCredentialData,
    AuthenticationResponse,
    PublicKeyCredentialRpEntity,
    PublicKeyCredentialUserEntity,
    ResidentKeyRequirement,
    UserVerificationRequirement,
)

from athanor.accounts import audit, devices, passwords, second_factors, throttling
from athanor.accounts.models import User
from athanor.core.errors import Conflict, Forbidden, Invalid, NotFound, Unauthenticated

CHALLENGE_SECONDS = 5 * 60
MAX_PASSKEYS = 20
_REGISTRATION, _ASSERTION = "athanor.passkey.registration", "athanor.passkey.assertion"
# What fido2 raises for a credential that is none: it parses JSON, base64, CBOR and keys that strangers wrote.
_MALFORMED = (
    ValueError,
    TypeError,
    KeyError,
    IndexError,
    AttributeError,
    AssertionError,
    NotImplementedError,
    struct.error,
)
_STORED = ("id", "rawId", "type", "response", "clientExtensionResults")


def are_available() -> bool:
    """Return whether browsers support passkeys for this host: https names and localhost, never IP addresses."""
    url = urlsplit(settings.ATHANOR.public_url)
    host = url.hostname or ""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return url.scheme == "https" or host == "localhost"
    return False


def passkeys_of(user: User) -> list[Authenticator]:
    """Return a user's passkeys, the oldest first."""
    return list(_rows(user).order_by("created_at", "pk"))


def begin_registration(request: HttpRequest, user: User, password: str) -> dict[str, Any]:
    """Return the options for `navigator.credentials.create`, as JSON.

    Raises what `passwords.confirm` raises, Forbidden where browsers have no passkeys, Conflict for too many.
    """
    passwords.confirm(request, user, password)
    if not are_available():
        raise Forbidden(
            "passkeys_unavailable",
            f"browsers have no passkeys for the address {settings.ATHANOR.public_url}",
            remedy="use an authenticator app; an operator sets ATHANOR_PUBLIC_URL to an https address with a host name",
        )
    existing = _credentials(user)
    if len(existing) >= MAX_PASSKEYS:
        raise Conflict("too_many_passkeys", f"there are {MAX_PASSKEYS} passkeys", remedy="remove one that is not used")
    options, state = _server().register_begin(
        user=PublicKeyCredentialUserEntity(id=user.pk.encode(), name=user.username, display_name=user.username),
        credentials=existing,
        resident_key_requirement=ResidentKeyRequirement.PREFERRED,
        user_verification=UserVerificationRequirement.PREFERRED,
    )
    request.session[_REGISTRATION] = {"user": user.pk, "state": state, "at": int(time.time())}
    return dict(options)


def complete_registration(
    request: HttpRequest, user: User, name: str, credential: dict[str, Any]
) -> tuple[Authenticator, list[str]]:
    """Add a passkey. Returns it, and new recovery codes if the user had none.

    Raises Invalid for a credential that does not answer the challenge of this session.
    """
    state = _take_state(request, _REGISTRATION, user)
    try:
        data = _server().register_complete(state, credential)
        attested = data.credential_data
    except _MALFORMED as error:
        raise Invalid(
            "invalid_passkey",
            f"the passkey was not accepted: {error}",
            remedy="begin again with POST /api/v1/second-factors/passkeys:begin, on the platform's own address",
        ) from error
    with transaction.atomic():
        second_factors.lock(user)
        if attested is None or attested.credential_id in {each.credential_id for each in _credentials(user)}:
            raise Conflict("passkey_exists", "this passkey is registered already", remedy="use another device")
        stored = {part: credential[part] for part in _STORED if part in credential}
        row = WebAuthn.add(user, name, stored).instance
        row.data["sign_count"] = data.counter
        row.save(update_fields=["data"])
        codes = second_factors.added(user, second_factors.PASSKEY, name)
    second_factors.end_other_sessions(request, user)
    return row, codes


def rename(user: User, passkey_id: int, name: str) -> Authenticator:
    """Rename a passkey. Raise NotFound for another user's."""
    with transaction.atomic():
        row = _rows(user).select_for_update().filter(pk=passkey_id).first()
        if row is None:
            raise NotFound("passkey", str(passkey_id))
        before = row.data["name"]
        row.data["name"] = name
        row.save(update_fields=["data"])
        facts = {"kind": second_factors.PASSKEY, "name": name}
        audit.record(
            "second_factor.rename", actor=user, target=("user", user.id), before={**facts, "name": before}, after=facts
        )
    return row


def remove(request: HttpRequest, user: User, passkey_id: int, password: str) -> None:
    """Remove a passkey. Raise what `passwords.confirm` raises, and NotFound for another user's."""
    passwords.confirm(request, user, password)
    row = _rows(user).filter(pk=passkey_id).first()
    if row is None:
        raise NotFound("passkey", str(passkey_id))
    second_factors.remove(request, user, row, "passkey")


def begin_sign_in(request: HttpRequest) -> dict[str, Any]:
    """Return the options for `navigator.credentials.get`, for the user with a pending sign-in in this browser.

    Raises Unauthenticated when none does, Conflict when they have no passkey.
    """
    user = second_factors.require_pending_user(request)
    credentials = _credentials(user)
    if not credentials:
        raise Conflict("no_passkey", "this account has no passkey", remedy="send a code")
    options, state = _server().authenticate_begin(
        credentials=credentials, user_verification=UserVerificationRequirement.PREFERRED
    )
    request.session[_ASSERTION] = {"user": user.pk, "state": state, "at": int(time.time())}
    return dict(options)


def complete_sign_in(request: HttpRequest, assertion: dict[str, Any]) -> User:
    """Sign in by a passkey's assertion. Raises Unauthenticated for one that is wrong, TooManyRequests after several."""
    user = second_factors.require_pending_user(request)
    device = devices.device_of(request, user.username)
    state = _take_state(request, _ASSERTION, user)
    throttling.begin_second_factor(user, device)
    try:
        with transaction.atomic():
            row = _verified(user, state, assertion)
            row.record_usage()
            facts = {"kind": second_factors.PASSKEY, "name": row.data["name"]}
            audit.record("second_factor.use", actor=user, target=("user", user.id), after=facts)
    except _MALFORMED as error:
        raise second_factors.refuse(user, "passkey") from error
    second_factors.finish(request, user, device)
    return user


def _verified(user: User, state: Any, assertion: dict[str, Any]) -> Authenticator:
    """Return the passkey that made the assertion. Raise one of _MALFORMED.

    The signature counter of an authenticator that counts must increase; otherwise the key was copied.
    """
    rows = {_attested(row).credential_id: row for row in _rows(user).select_for_update()}
    used = _server().authenticate_complete(state, [_attested(row) for row in rows.values()], assertion)
    row = rows[used.credential_id]
    count = AuthenticationResponse.from_dict(assertion).response.authenticator_data.counter
    before = row.data.get("sign_count", 0)
    if (count or before) and count <= before:
        raise ValueError("the signature counter did not grow")
    row.data["sign_count"] = count
    row.save(update_fields=["data"])
    return row


def _server() -> Fido2Server:
    url = urlsplit(settings.ATHANOR.public_url)
    default_port = {"https": 443, "http": 80}.get(url.scheme)
    port = "" if url.port in (None, default_port) else f":{url.port}"
    origin = f"{url.scheme}://{url.hostname}{port}"
    return Fido2Server(
        PublicKeyCredentialRpEntity(id=url.hostname, name="Athanor"), verify_origin=lambda given: given == origin
    )


def _take_state(request: HttpRequest, key: str, user: User) -> Any:
    """Return the state of the challenge and remove it from the session."""
    facts = request.session.pop(key, None)
    if not facts or facts["user"] != user.pk or not 0 <= time.time() - facts["at"] <= CHALLENGE_SECONDS:
        raise Unauthenticated(
            "challenge_expired", "there is no challenge for this passkey, or it expired", remedy="begin again"
        )
    return facts["state"]


def _rows(user: User) -> Any:
    return Authenticator.objects.filter(user_id=user.pk, type=Authenticator.Type.WEBAUTHN)


def _attested(row: Authenticator) -> AttestedCredentialData:
    attested: AttestedCredentialData = WebAuthn(row).authenticator_data.credential_data
    return attested


def _credentials(user: User) -> list[AttestedCredentialData]:
    return [_attested(row) for row in _rows(user)]
