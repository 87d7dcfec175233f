"""Checks at the identity provider between sign-ins: users refused there lose access here within the interval."""

from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from athanor.accounts import sign_on_checks
from athanor.accounts.models import ApiToken, AuditEvent, Membership, SignOnGrant, Team, User
from athanor.accounts.services import issue_token
from athanor.accounts.stream_sessions import StreamSession, authorized_sessions
from athanor.artifacts import rotation
from athanor.core import encryption
from tests.control_plane.accounts.oidc_provider import CLIENT_ID, CLIENT_SECRET, Provider, sign_in

pytestmark = pytest.mark.django_db


@pytest.fixture
def checked(provider: Provider, settings: Any) -> Provider:
    """An identity provider with refresh tokens, and one member of team red."""
    scopes = "openid groups offline_access"
    settings.ATHANOR = settings.ATHANOR.model_copy(update={"oidc_scopes": scopes, "sign_on_check_minutes": 60})
    app = {
        "provider_id": "oidc",
        "name": "Example",
        "client_id": CLIENT_ID,
        "secret": CLIENT_SECRET,
        "settings": {"server_url": provider.issuer, "scope": scopes.split()},
    }
    settings.SOCIALACCOUNT_PROVIDERS = {"openid_connect": {"OAUTH_PKCE_ENABLED": True, "APPS": [app]}}
    provider.claims["groups"] = ["ml"]
    return provider


def grace() -> User:
    return User.objects.get(username="grace")


def make_due() -> None:
    SignOnGrant.objects.update(next_check_at=timezone.now())


def ask(token: str) -> Any:
    return Client().get("/api/v1/jobs", headers={"Authorization": f"Bearer {token}"})


def test_a_user_whom_the_provider_refuses_loses_tokens_sessions_and_streams(checked: Provider, team: Team) -> None:
    client, _ = sign_in(checked)
    row, token = issue_token(grace(), team, "ci")
    session = StreamSession(grace().id, frozenset({team.id}), token_id=row.id)
    make_due()
    sign_on_checks.run_due()
    assert ask(token).status_code == 200
    assert authorized_sessions([session]) == {session}

    checked.refuse_tokens = True  # the account there has ended
    sign_on_checks.run_due()
    assert ask(token).status_code == 200  # not asked before the interval is over
    make_due()
    sign_on_checks.run_due()
    refused = ask(token)
    assert (refused.status_code, refused.json()["code"]) == (401, "sign_on_expired")
    assert "refused to confirm grace" in refused.json()["detail"]
    assert client.get("/api/v1/jobs").status_code in (401, 403)
    assert authorized_sessions([session]) == set()
    event = AuditEvent.objects.get(action="user.sign_on_refused")
    assert event.after == {"provider_answered": "invalid_grant Token is not active"}
    assert not SignOnGrant.objects.exists()

    checked.refuse_tokens = False
    sign_in(checked)  # the remedy
    assert ask(token).status_code == 200
    assert SignOnGrant.objects.count() == 1


def test_a_refusal_counts_without_a_maximum_age(checked: Provider, team: Team, settings: Any) -> None:
    settings.ATHANOR = settings.ATHANOR.model_copy(update={"sign_on_max_age_days": 0})
    sign_in(checked)
    _, token = issue_token(grace(), team, "ci")
    checked.refuse_tokens = True
    make_due()
    sign_on_checks.run_due()
    assert ask(token).status_code == 401


def test_a_confirmation_starts_the_maximum_age_again(checked: Provider, team: Team) -> None:
    sign_in(checked)
    _, token = issue_token(grace(), team, "ci")
    User.objects.update(signed_on_at=timezone.now() - timedelta(days=29, hours=23))
    make_due()
    sign_on_checks.run_due()
    assert timezone.now() - grace().signed_on_at < timedelta(minutes=1)
    assert SignOnGrant.objects.get().next_check_at > timezone.now() + timedelta(minutes=59)
    assert ask(token).status_code == 200


def test_refresh_tokens_that_change_at_each_use_are_followed(checked: Provider) -> None:
    sign_in(checked)
    for _ in range(3):
        make_due()
        sign_on_checks.run_due()
    grant = SignOnGrant.objects.get()
    assert encryption.unwrap_by_master(grant.encrypted, f"sign_on:{grace().id}") in checked.refresh_tokens
    assert grace().sign_on_refused_at is None


@pytest.mark.parametrize("part", ["unavailable", "userinfo_unavailable"])
def test_a_provider_that_does_not_answer_ends_nobodys_access(checked: Provider, team: Team, part: str) -> None:
    sign_in(checked)
    _, token = issue_token(grace(), team, "ci")
    setattr(checked, part, True)
    make_due()
    sign_on_checks.run_due()
    assert ask(token).status_code == 200
    grant = SignOnGrant.objects.get()
    assert timezone.now() < grant.next_check_at <= timezone.now() + sign_on_checks.RETRY_AFTER
    setattr(checked, part, False)
    make_due()
    sign_on_checks.run_due()
    assert ask(token).status_code == 200


def test_a_provider_that_is_down_ends_nobodys_access(checked: Provider, team: Team) -> None:
    sign_in(checked)
    _, token = issue_token(grace(), team, "ci")
    make_due()
    checked.server.server_close()
    sign_on_checks.run_due()
    assert ask(token).status_code == 200
    assert SignOnGrant.objects.get().next_check_at > timezone.now()


def test_groups_that_are_gone_at_the_provider_end_their_roles_at_the_next_check(checked: Provider, team: Team) -> None:
    sign_in(checked)
    row, token = issue_token(grace(), team, "ci")
    checked.claims["groups"] = []
    make_due()
    sign_on_checks.run_due()
    assert not Membership.objects.filter(user=grace()).exists()
    assert ApiToken.objects.get(pk=row.pk).revoked_at is not None
    assert ask(token).status_code == 401


def test_an_answer_without_groups_changes_none(checked: Provider, team: Team) -> None:
    sign_in(checked)
    del checked.claims["groups"]
    make_due()
    sign_on_checks.run_due()
    assert Membership.objects.get(user=grace()).role == "member"


def test_an_answer_about_another_subject_is_a_refusal(checked: Provider, team: Team) -> None:
    sign_in(checked)
    checked.claims["sub"] = "u-2"
    make_due()
    sign_on_checks.run_due()
    assert grace().sign_on_refused_at is not None


def test_a_sign_in_during_a_check_wins(checked: Provider, monkeypatch: pytest.MonkeyPatch) -> None:
    sign_in(checked)
    make_due()
    refresh = sign_on_checks._refresh

    def sign_in_meanwhile(adapter: Any, token: str) -> Any:
        sign_in(checked)
        checked.refresh_tokens.discard(token)
        return refresh(adapter, token)

    monkeypatch.setattr(sign_on_checks, "_refresh", sign_in_meanwhile)
    sign_on_checks.run_due()
    assert grace().sign_on_refused_at is None
    grant = SignOnGrant.objects.get()
    assert encryption.unwrap_by_master(grant.encrypted, f"sign_on:{grace().id}") in checked.refresh_tokens


@pytest.mark.parametrize("change", [{"oidc_scopes": "openid groups"}, {"sign_on_check_minutes": 0}])
def test_without_the_scope_or_an_interval_nothing_is_stored_and_nobody_is_checked(
    checked: Provider, settings: Any, change: dict[str, Any]
) -> None:
    sign_in(checked)
    make_due()
    settings.ATHANOR = settings.ATHANOR.model_copy(update=change)
    checked.refuse_tokens = True
    sign_on_checks.run_due()
    assert grace().sign_on_refused_at is None
    checked.refuse_tokens = False
    sign_in(checked)
    assert not SignOnGrant.objects.exists()


def test_refresh_tokens_are_encrypted_and_follow_a_new_master_key(checked: Provider, settings: Any) -> None:
    sign_in(checked)
    (token,) = checked.refresh_tokens
    assert token.encode() not in bytes(SignOnGrant.objects.get().encrypted)
    old = settings.ATHANOR.master_key
    settings.ATHANOR = settings.ATHANOR.model_copy(
        update={"master_key": encryption.new_wrapping_keyset(), "previous_master_key": old}
    )
    assert rotation.rotate_master() >= 1
    settings.ATHANOR = settings.ATHANOR.model_copy(update={"previous_master_key": ""})
    make_due()
    sign_on_checks.run_due()
    assert grace().sign_on_refused_at is None
    assert SignOnGrant.objects.get().next_check_at > timezone.now()


def test_a_provider_that_does_not_answer_is_asked_about_one_user_per_run(
    checked: Provider, team: Team, make_user: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request that times out takes ten seconds: for every user it would occupy a worker for the whole outage."""
    sign_in(checked)
    for name in ("ada", "lin"):
        sign_on_checks.remember(make_user(name, team), "a-refresh-token")
    make_due()
    checked.unavailable = True
    asked: list[str] = []
    refresh = sign_on_checks._refresh

    def count(adapter: Any, token: str) -> Any:
        asked.append(token)
        return refresh(adapter, token)

    monkeypatch.setattr(sign_on_checks, "_refresh", count)
    sign_on_checks.run_due()
    assert len(asked) == 1
    assert sign_on_checks.due().count() == 2
