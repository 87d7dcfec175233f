"""Single sign-on with a real identity provider: accounts, groups and roles, and refusals."""

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from allauth.mfa.totp.internal.auth import TOTP, generate_totp_secret
from django.test import Client
from django.utils import timezone

from athanor.accounts import members
from athanor.accounts.models import ApiToken, AuditEvent, Membership, Team, User
from athanor.accounts.roles import Role, parse_group_roles
from athanor.accounts.services import issue_token
from athanor.accounts.stream_sessions import StreamSession, authorized_sessions
from tests.control_plane.accounts.authenticators import totp
from tests.control_plane.accounts.oidc_provider import Provider, sign_in

pytestmark = pytest.mark.django_db


def test_a_new_user_is_made_and_gets_what_their_groups_mean(provider: Provider, team: Team) -> None:
    provider.claims["groups"] = ["ml", "ml-leads", "chess"]
    client, back = sign_in(provider)
    assert (back.status_code, back["Location"]) == (302, "/jobs")
    user = User.objects.get(username="grace")
    assert not user.has_usable_password()
    assert client.get("/api/v1/session").json()["teams"] == [{"id": team.id, "name": "red", "role": "admin"}]
    actions = set(AuditEvent.objects.filter(actor="grace").values_list("action", flat=True))
    assert {"user.create", "member.add", "session.begin"} <= actions


def test_groups_that_are_gone_take_role_and_tokens_with_them(provider: Provider, team: Team) -> None:
    provider.claims["groups"] = ["ml", "ops"]
    sign_in(provider)
    user = User.objects.get(username="grace")
    assert user.platform_role == "auditor"
    token, _ = issue_token(user, team, "ci")
    provider.claims["groups"] = ["ml-leads"]
    sign_in(provider)
    assert Membership.objects.get(user=user).role == "admin"
    assert User.objects.get(pk=user.pk).platform_role == "none"
    provider.claims["groups"] = []
    sign_in(provider)
    assert not Membership.objects.filter(user=user).exists()
    assert ApiToken.objects.get(pk=token.pk).revoked_at is not None
    assert User.objects.filter(username="grace").count() == 1


def test_what_an_administrator_gave_stays(provider: Provider, team: Team, other_team: Team) -> None:
    provider.claims["groups"] = ["ml"]
    sign_in(provider)
    user = User.objects.get(username="grace")
    Membership.objects.create(user=user, team=other_team, role="viewer")
    provider.claims["groups"] = []
    sign_in(provider)
    assert list(Membership.objects.filter(user=user).values_list("team__name", "role")) == [("blue", "viewer")]


def test_a_sign_in_leaves_memberships_of_a_deleted_team_as_they_are(provider: Provider, team: Team) -> None:
    provider.claims["groups"] = ["ml"]
    sign_in(provider)
    token, _ = issue_token(User.objects.get(username="grace"), team, "ci")
    Team.objects.filter(pk=team.pk).update(deleted_at=timezone.now())
    client, _ = sign_in(provider)
    assert client.get("/api/v1/session").json()["teams"] == []
    Team.objects.filter(pk=team.pk).update(deleted_at=None)
    assert client.get("/api/v1/session").json()["teams"] != []
    assert ApiToken.objects.get(pk=token.pk).revoked_at is None


def test_a_role_that_an_administrator_changed_stays_changed(provider: Provider, team: Team) -> None:
    provider.claims["groups"] = ["ml-leads"]
    sign_in(provider)
    user = User.objects.get(username="grace")
    Membership.objects.create(user=User.objects.create(username="ada"), team=team, role="admin")
    members.set_role(team, user.id, Role.VIEWER, user)
    sign_in(provider)
    assert Membership.objects.get(user=user).role == "viewer"


def test_a_local_account_of_the_same_name_and_address_is_not_taken_over(
    provider: Provider, make_user: Callable[..., User], team: Team
) -> None:
    local = make_user("grace", team, "admin")
    User.objects.filter(pk=local.pk).update(email="grace@example.org")
    client, _ = sign_in(provider)
    session = client.get("/api/v1/session").json()
    assert session["user"] is None or session["user"]["id"] != local.id
    assert Membership.objects.filter(team=team).count() == 1


def test_a_retired_user_does_not_come_in(provider: Provider, team: Team) -> None:
    sign_in(provider)
    User.objects.filter(username="grace").update(is_active=False)
    client, back = sign_in(provider)
    assert back["Location"] == "/sign-in?problem=inactive"
    assert client.get("/api/v1/session").json()["authenticated"] is False


def test_a_refusal_of_the_provider_is_told_on_the_sign_in_page(provider: Provider) -> None:
    provider.refuse_tokens = True
    client, back = sign_in(provider)
    assert (back.status_code, back["Location"]) == (302, "/sign-in?problem=sign_on_failed")
    assert client.get("/api/v1/session").json()["authenticated"] is False


def test_an_answer_that_nobody_asked_for_is_refused(provider: Provider) -> None:
    client = Client()
    away = client.post("/sso/oidc/login")
    stolen = provider.authorize(away["Location"])
    answer = Client().get(stolen)  # another browser, which began nothing
    assert answer["Location"] == "/sign-in?problem=sign_on_failed"
    assert not User.objects.filter(username="grace").exists()


def test_a_link_alone_signs_nobody_in(provider: Provider) -> None:
    assert Client().get("/sso/oidc/login").status_code == 405
    assert Client(enforce_csrf_checks=True).post("/sso/oidc/login").status_code == 403


def ask(token: str) -> Any:
    return Client().get("/api/v1/jobs", headers={"Authorization": f"Bearer {token}"})


def test_a_token_of_somebody_the_provider_knows_no_more_stops_working(provider: Provider, team: Team) -> None:
    provider.claims["groups"] = ["ml"]
    client, _ = sign_in(provider)
    user = User.objects.get(username="grace")
    _, token = issue_token(user, team, "ci")
    assert ask(token).status_code == 200
    provider.refuse_tokens = True  # the account there has ended
    User.objects.filter(pk=user.pk).update(signed_on_at=timezone.now() - timedelta(days=29))
    assert ask(token).status_code == 200
    User.objects.filter(pk=user.pk).update(signed_on_at=timezone.now() - timedelta(days=30))
    refused = ask(token)
    assert (refused.status_code, refused.json()["code"]) == (401, "sign_on_expired")
    assert "/sign-in" in refused.json()["remedy"]
    assert client.get("/api/v1/session").json()["authenticated"] is False
    assert client.get("/api/v1/jobs").status_code in (401, 403)
    _, back = sign_in(provider)
    assert back["Location"] == "/sign-in?problem=sign_on_failed"
    assert ask(token).status_code == 401
    provider.refuse_tokens = False
    sign_in(provider)  # the remedy
    assert ask(token).status_code == 200


def test_a_stream_ends_when_the_last_sign_in_is_too_long_ago(provider: Provider, team: Team) -> None:
    provider.claims["groups"] = ["ml"]
    sign_in(provider)
    user = User.objects.get(username="grace")
    row, _ = issue_token(user, team, "ci")
    session = StreamSession(user.id, frozenset({team.id}), token_id=row.id)
    assert authorized_sessions([session]) == {session}
    User.objects.filter(pk=user.pk).update(signed_on_at=timezone.now() - timedelta(days=31))
    assert authorized_sessions([session]) == set()


def test_service_accounts_passwords_and_a_limit_of_zero_are_not_concerned(
    provider: Provider, team: Team, make_user: Callable[..., User], settings: Any
) -> None:
    provider.claims["groups"] = ["ml-leads"]
    sign_in(provider)
    grace = User.objects.get(username="grace")
    User.objects.filter(pk=grace.pk).update(signed_on_at=timezone.now() - timedelta(days=400))
    account = members.create_service_account(team, "ci", Role.MEMBER, grace)
    local = make_user("ada", team)
    assert ask(issue_token(account, team, "ci")[1]).status_code == 200
    assert ask(issue_token(local, team, "ci")[1]).status_code == 200
    settings.ATHANOR = settings.ATHANOR.model_copy(update={"sign_on_max_age_days": 0})
    assert ask(issue_token(grace, team, "ci")[1]).status_code == 200


def test_the_session_names_the_way_in(provider: Provider, settings: Any) -> None:
    assert Client().get("/api/v1/session").json()["sign_on"] == {"name": "Example", "url": "/sso/oidc/login"}
    settings.SIGN_ON = False
    assert Client().get("/api/v1/session").json()["sign_on"] is None


@pytest.mark.parametrize("text", ["ml", "ml=red", "ml=red:boss", "ops=platform:admin", "=red:member"])
def test_a_mapping_that_means_nothing_is_refused_with_what_to_write(text: str) -> None:
    with pytest.raises(ValueError, match="write group=team:role"):
        parse_group_roles(text)


def test_a_group_that_is_given_two_meanings_is_refused_rather_than_half_heard() -> None:
    with pytest.raises(ValueError, match="group 'ml' has a meaning already"):
        parse_group_roles("ml=red:member,ml=blue:viewer")


def test_who_has_a_second_factor_here_is_asked_for_it_after_the_provider(provider: Provider) -> None:
    sign_in(provider)
    user = User.objects.get(username="grace")
    user.set_password("correct horse battery")  # by a link of an administrator
    user.save()
    secret = generate_totp_secret()
    TOTP.activate(user, secret)
    client, back = sign_in(provider, Client())
    assert (back.status_code, back["Location"]) == (302, "/sign-in?next=%2Fjobs")
    session = client.get("/api/v1/session").json()
    assert (session["authenticated"], session["second_factor"]) == (False, {"kinds": ["authenticator_app"]})
    body = {"code": totp(secret, time.time())}
    assert client.post("/api/v1/session:second-factor", body, content_type="application/json").status_code == 200
    assert client.get("/api/v1/session").json()["user"]["username"] == "grace"
