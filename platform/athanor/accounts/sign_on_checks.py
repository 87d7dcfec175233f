"""Ask the identity provider between sign-ins whether a user still exists there, and what their groups are.

A refresh token (OpenID Connect Core 1.0, section 12) is exchanged every ATHANOR_SIGN_ON_CHECK_MINUTES. When the
provider answers `invalid_grant`, access ends until the next sign-in. Any other failure changes nothing: the check is
repeated, and ATHANOR_SIGN_ON_MAX_AGE_DAYS limits the time without a confirmation.

Only refresh tokens of the scope `offline_access` are stored (section 11): others end with the user's session at the
provider, which says nothing about the account. Providers may answer with a new refresh token at each use, so a worker
that is killed between the answer and its commit loses the grant, and that user has to sign in again.
"""

import logging
from collections.abc import Iterator
from datetime import datetime, timedelta
from functools import partial
from threading import Event
from typing import Any

import jwt
import requests
from allauth.socialaccount.adapter import get_adapter
from allauth.socialaccount.models import SocialAccount
from allauth.socialaccount.providers.openid_connect.views import OpenIDConnectOAuth2Adapter
from django.conf import settings
from django.db import transaction
from django.db.models import QuerySet
from django.utils import timezone

from athanor.accounts import audit
from athanor.accounts.failures import run_isolated
from athanor.accounts.models import SignOnGrant, User
from athanor.accounts.sign_on_groups import apply_groups, groups_in
from athanor.core import encryption, task_triggers
from athanor.core.leases import Lease, applying, claim_each

log = logging.getLogger(__name__)

ACTOR = "sign_on_provider"
SCOPE = "offline_access"
LEASE_SECONDS = 120.0
MAX_USERS_PER_RUN = 200  # users in one run of the task
RETRY_AFTER = timedelta(minutes=5)  # after a failure that says nothing about the user


class Refused(Exception):
    """The provider answered that it no longer confirms the user."""


def remember(user: User, refresh_token: str) -> None:
    """Store the refresh token of a sign-in; without one, or with checks off, forget the one before it."""
    if not refresh_token or not _is_on():
        SignOnGrant.objects.filter(pk=user.pk).delete()
        return
    facts = {"encrypted": _encrypt(refresh_token, user.pk), "next_check_at": _next_check(), "lease_token": None}
    SignOnGrant.objects.update_or_create(user=user, defaults=facts)


def due() -> QuerySet[SignOnGrant]:
    """Return the grants whose user the provider is to be asked about now."""
    if not _is_on():
        return SignOnGrant.objects.none()
    return SignOnGrant.objects.filter(next_check_at__lte=timezone.now(), user__is_active=True).order_by("next_check_at")


def run_due() -> None:
    """Check the users who are due. After the first failure of the provider itself, leave the others to the next run."""
    adapter = OpenIDConnectOAuth2Adapter(None, settings.OIDC_PROVIDER_ID)  # reads the provider's document once
    failed = Event()
    for lease in claim_each(due(), seconds=LEASE_SECONDS, limit=MAX_USERS_PER_RUN):
        run_isolated(
            task_triggers.CHECK_SIGN_ONS, f"sign-on check of user {lease.pk}", partial(_check, adapter, lease, failed),
            held=(SignOnGrant, lease),
        )  # fmt: skip
        if failed.is_set():
            return


def rewrap() -> int:
    """Encrypt refresh tokens by the newest master key. Return how many the one before it had encrypted."""
    done = 0
    for pk in SignOnGrant.objects.order_by("pk").values_list("pk", flat=True):
        with transaction.atomic():
            row = SignOnGrant.objects.select_for_update(no_key=True).filter(pk=pk).first()
            if row is None or encryption.is_wrapped_by(encryption.master_keyset(), row.encrypted):
                continue
            row.encrypted = _encrypt(_decrypt(row), pk)
            row.save(update_fields=["encrypted"])
            done += 1
    return done


def _check(adapter: Any, lease: Lease, failed: Event) -> None:
    """Ask the provider about one user. Sets `failed` if it gave no usable answer."""
    row = SignOnGrant.objects.get(pk=lease.pk)
    try:
        answer = _refresh(adapter, _decrypt(row))
        if answer.get("refresh_token"):  # stored first: the one before it may not work a second time
            encrypted = _encrypt(answer["refresh_token"], row.pk)
            SignOnGrant.objects.filter(pk=row.pk, lease_token=lease.token).update(encrypted=encrypted)
        claims = list(_claims(adapter, answer, row.user_id))
    except Refused as error:
        _apply_refusal(lease, str(error))
        return
    except (requests.RequestException, ValueError) as error:
        failed.set()
        log.warning("the identity provider did not answer about user %s, asked again later: %s", row.user_id, error)
        with applying(SignOnGrant, lease) as held:
            if held is not None:
                SignOnGrant.objects.filter(pk=held.pk).update(next_check_at=timezone.now() + RETRY_AFTER)
        return
    with applying(SignOnGrant, lease) as held:
        if held is None:
            return  # the user has signed in meanwhile
        SignOnGrant.objects.filter(pk=held.pk).update(next_check_at=_next_check())
        User.objects.filter(pk=held.pk).update(signed_on_at=timezone.now())
        groups = [groups_in(part) for part in claims]
        if any(found is not None for found in groups):
            names = [name for found in groups for name in found or []]
            apply_groups(User.objects.get(pk=held.pk), names, settings.ATHANOR_GROUP_ROLES)


def _apply_refusal(lease: Lease, reason: str) -> None:
    with applying(SignOnGrant, lease) as held:
        if held is None:
            return
        User.objects.filter(pk=held.pk).update(sign_on_refused_at=timezone.now())
        facts = {"provider_answered": reason[:200]}
        audit.record("user.sign_on_refused", actor=ACTOR, target=("user", held.pk), after=facts)
        held.delete()


def _refresh(adapter: Any, refresh_token: str) -> dict[str, Any]:
    """Return the provider's answer to a refresh token.

    Raises Refused when it no longer accepts it, requests.RequestException and ValueError for any other failure.
    """
    app = adapter.get_provider().app
    form = {"grant_type": "refresh_token", "refresh_token": refresh_token}
    credentials = (app.client_id, app.secret) if adapter.basic_auth else None
    if credentials is None:
        form |= {"client_id": app.client_id, "client_secret": app.secret}
    with get_adapter().get_requests_session() as session:
        response = session.post(adapter.access_token_url, data=form, auth=credentials)
    answer = response.json()
    if not isinstance(answer, dict):
        raise ValueError("its token endpoint answered no JSON object")  # noqa: TRY004 - as json() raises for unreadable JSON
    if response.status_code == requests.codes.bad_request and answer.get("error") == "invalid_grant":
        raise Refused(f"invalid_grant {answer.get('error_description', '')}".strip())
    response.raise_for_status()
    if "access_token" not in answer:
        raise ValueError("its token endpoint answered no access token")
    return answer


def _claims(adapter: Any, answer: dict[str, Any], user_id: str) -> Iterator[dict[str, Any]]:
    """Yield the claims about the user: of the ID token, if one came, and of the user info.

    The ID token's signature is not checked: it came from the token endpoint itself (OpenID Connect Core 1.0, 3.1.3.7).
    Raises Refused when they are of another subject, or when the user info endpoint refuses the new access token.
    """
    subject = SocialAccount.objects.filter(user_id=user_id, provider=adapter.provider_id).first()
    found = []
    if answer.get("id_token"):
        found.append(jwt.decode(answer["id_token"], options={"verify_signature": False}))
    with get_adapter().get_requests_session() as session:
        headers = {"Authorization": f"Bearer {answer['access_token']}"}
        response = session.get(adapter.profile_url, headers=headers)
    if response.status_code == requests.codes.unauthorized:
        raise Refused("user info 401")
    response.raise_for_status()
    found.append(response.json())
    for claims in found:
        if subject is None or claims.get("sub") != subject.uid:
            raise Refused("the answer is about another subject")
        yield claims


def _is_on() -> bool:
    asked_for = settings.ATHANOR.oidc_scopes.split()
    return bool(settings.SIGN_ON and settings.ATHANOR.sign_on_check_minutes and SCOPE in asked_for)


def _next_check() -> datetime:
    return timezone.now() + timedelta(minutes=settings.ATHANOR.sign_on_check_minutes)


def _encrypt(refresh_token: str, user_id: str) -> bytes:
    return encryption.wrap_by_master(refresh_token, _owner(user_id))


def _decrypt(row: SignOnGrant) -> str:
    return encryption.unwrap_by_master(row.encrypted, _owner(row.pk))


def _owner(user_id: str) -> str:
    return f"sign_on:{user_id}"
