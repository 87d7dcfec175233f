"""Roles, members, invitations, service accounts and the scopes of tokens."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from athanor.accounts.models import ApiToken, AuditEvent, Invitation, Membership, Team, User
from athanor.accounts.roles import (
    PLATFORM_SCOPES,
    Permission,
    PlatformRole,
    Role,
    Scope,
    permissions,
    platform_permissions,
)
from athanor.accounts.services import issue_token
from tests.control_plane.conftest import Api

pytestmark = pytest.mark.django_db


@pytest.fixture
def admin(api_of: Callable, make_user: Callable, team: Team) -> Api:
    return api_of(make_user("hal", team, "admin"), team)


def with_token(secret: str) -> Api:
    client = Api()
    client.credentials(HTTP_AUTHORIZATION=f"Bearer {secret}")
    return client


def test_a_scope_only_narrows() -> None:
    for role in Role:
        for scope in Scope:
            assert permissions(role, frozenset({scope})) <= permissions(role)
        assert permissions(role, frozenset(Scope)) == permissions(role)
    assert Permission.SUBMIT not in permissions(Role.VIEWER)
    assert permissions(Role.ADMIN, frozenset({Scope.READ})) == {Permission.VIEW}
    for platform_role in PlatformRole:
        assert Permission.VIEW not in platform_permissions(platform_role), "it opens nobody's jobs"
        assert platform_permissions(platform_role, frozenset(Scope) - PLATFORM_SCOPES) == frozenset()


@pytest.mark.parametrize("role", ["viewer", "member"])
def test_only_administrators_manage_a_team(role: str, api_of: Callable, make_user: Callable, team: Team) -> None:
    user = make_user("mia", team, role)
    api = api_of(user, team)
    here = f"teams/{team.id}"
    for method, path, body in [
        ("POST", f"{here}/members", {"username": "x", "role": "member"}),
        ("PATCH", f"{here}/members/{user.id}", {"role": "admin"}),
        ("DELETE", f"{here}/members/{user.id}", None),
        ("GET", f"{here}/invitations", None),
        ("POST", f"{here}/invitations", {"role": "admin"}),
        ("GET", f"{here}/service-accounts", None),
        ("POST", f"{here}/service-accounts", {"name": "ci", "role": "member"}),
        ("PATCH", here, {"max_slots": 9}),
        ("POST", "teams", {"name": "mine"}),
    ]:
        answer = api.send(method, path, body)
        assert (answer.status_code, answer.json()["code"]) == (403, "role_missing"), (method, path)
    assert api.send("GET", f"{here}/members").json()["items"][0]["role"] == role


def test_members_come_change_and_go(admin: Api, team: Team, user: User, other_team: Team, make_user: Callable) -> None:
    make_user("bo", other_team)
    members = f"teams/{team.id}/members"
    assert admin.send("POST", members, {"username": "bo", "role": "viewer"}).status_code == 202
    invited = Api()
    invited.force_login(User.objects.get(username="bo"))
    (offer,) = invited.send("GET", "invitations").json()["items"]
    joined = invited.send("POST", f"invitations/{offer['id']}:accept")
    assert (joined.status_code, joined.json()["role"]) == (201, "viewer")
    again = admin.send("POST", members, {"username": "bo", "role": "member"})
    assert (again.status_code, again.json()["code"]) == (409, "already_member")
    bo = joined.json()["user_id"]
    assert admin.send("PATCH", f"{members}/{bo}", {"role": "member"}).json()["role"] == "member"
    assert [item["username"] for item in admin.send("GET", members).json()["items"]] == ["ada", "bo", "hal"]
    _, secret = issue_token(User.objects.get(pk=bo), team, "t")
    assert with_token(secret).send("GET", "jobs").status_code == 200
    assert admin.send("DELETE", f"{members}/{bo}").status_code == 204
    assert with_token(secret).send("GET", "jobs").status_code == 401, "immediately"
    seen = AuditEvent.objects.filter(target_id=bo).order_by("seq").values_list("action", flat=True)
    assert list(seen) == ["session.begin", "member.add", "member.role", "member.remove"]
    changed = AuditEvent.objects.get(action="member.role")
    assert (changed.before, changed.after) == ({"role": "viewer"}, {"role": "member"})


def test_the_last_administrator_stays(admin: Api, team: Team) -> None:
    hal = User.objects.get(username="hal")
    for method, body in (("DELETE", None), ("PATCH", {"role": "member"})):
        answer = admin.send(method, f"teams/{team.id}/members/{hal.id}", body)
        assert (answer.status_code, answer.json()["code"]) == (409, "last_admin")


def test_an_invitation_is_good_once(admin: Api, team: Team, other_team: Team, make_user: Callable, client: Any) -> None:
    made = admin.send("POST", f"teams/{team.id}/invitations", {"role": "member", "note": "for Bo"})
    assert made.status_code == 201, made.content
    secret = made.json()["token"]
    assert made.json()["url"].endswith(f"/invitation#{secret}")
    assert secret not in admin.send("GET", f"teams/{team.id}/invitations").content.decode()
    assert not Invitation.objects.filter(digest=secret).exists()
    client.force_login(make_user("bo", other_team))
    body = {"token": secret}
    joined = client.post("/api/v1/invitations:accept", body, content_type="application/json")
    assert (joined.status_code, joined.json()["role"]) == (201, "member"), joined.content
    client.force_login(make_user("cy", other_team))
    second = client.post("/api/v1/invitations:accept", body, content_type="application/json")
    assert (second.status_code, second.json()["code"]) == (401, "invalid_invitation")
    assert Membership.objects.filter(team=team).count() == 2


@pytest.mark.parametrize("state", ["expired", "revoked"])
def test_an_old_invitation_lets_nobody_in(admin: Api, team: Team, state: str) -> None:
    made = admin.send("POST", f"teams/{team.id}/invitations", {"role": "member"}).json()
    if state == "expired":
        Invitation.objects.update(expires_at=timezone.now() - timedelta(seconds=1))
    else:
        assert admin.send("DELETE", f"invitations/{made['id']}").status_code == 204
    new = {"token": made["token"], "username": "dee", "password": "correct horse battery"}
    answer = Api().send("POST", "invitations:accept", new)
    assert (answer.status_code, answer.json()["code"]) == (401, "invalid_invitation")
    assert not User.objects.filter(username="dee").exists()


def test_somebody_new_joins_by_invitation(admin: Api, team: Team, user: User) -> None:
    secret = admin.send("POST", f"teams/{team.id}/invitations", {"role": "viewer"}).json()["token"]
    new = {"token": secret, "username": "dee", "password": "correct horse battery"}
    for wrong, pointer in (({"password": "short"}, "/password"), ({"username": "no spaces"}, "/username")):
        refused = Api().send("POST", "invitations:accept", {**new, **wrong})
        assert (refused.status_code, refused.json()["errors"][0]["pointer"]) == (422, pointer)
    taken = Api().send("POST", "invitations:accept", {**new, "username": user.username})
    assert taken.status_code in (409, 422)
    assert Api().send("POST", "invitations:accept", new).status_code == 201, "the refused ones did not use it up"
    assert User.objects.get(username="dee").check_password("correct horse battery")


def test_a_service_account_has_tokens_and_no_password(admin: Api, team: Team, spec: Any, pool: Any) -> None:
    made = admin.send("POST", f"teams/{team.id}/service-accounts", {"name": "ci", "role": "member"}).json()
    assert made["username"] == "ci@red"
    token = admin.send("POST", f"service-accounts/{made['id']}/tokens", {"name": "t", "scopes": ["submit"]}).json()
    robot = with_token(token["token"])
    job = robot.send("POST", "jobs", spec)
    assert (job.status_code, job.json()["created_by"]) == (201, "ci@red")
    assert not User.objects.get(pk=made["id"]).has_usable_password()
    listed = {item["username"]: item for item in admin.send("GET", f"teams/{team.id}/members").json()["items"]}
    assert (listed["ci@red"]["is_service_account"], listed["hal"]["is_service_account"]) == (True, False)
    assert admin.send("DELETE", f"service-accounts/{made['id']}").status_code == 204
    assert robot.send("GET", "jobs").status_code == 401
    again = admin.send("POST", f"teams/{team.id}/service-accounts", {"name": "ci", "role": "member"})
    assert again.status_code == 201, "the name is free again"


def test_a_tokens_scopes_narrow_what_it_may(user: User, team: Team, spec: Any, pool: Any) -> None:
    reader = with_token(issue_token(user, team, "r", scopes=[Scope.READ])[1])
    assert reader.send("GET", "jobs").status_code == 200
    refused = reader.send("POST", "jobs", spec)
    assert (refused.status_code, refused.json()["code"]) == (403, "role_missing")
    assert (
        with_token(issue_token(user, team, "s", scopes=[Scope.SUBMIT])[1]).send("POST", "jobs", spec).status_code == 201
    )


def test_a_token_makes_none_that_can_do_more_or_lives_longer(user: User, team: Team) -> None:
    ends = timezone.now() + timedelta(days=1)
    reader = with_token(issue_token(user, team, "r", ends, scopes=[Scope.READ])[1])
    wider = reader.send("POST", "tokens", {"name": "w", "scopes": ["read", "submit"]})
    assert (wider.status_code, wider.json()["code"]) == (403, "scope_missing")
    made = reader.send("POST", "tokens", {"name": "n", "expires_in_days": 30}).json()
    assert made["scopes"] == ["read"]
    assert ApiToken.objects.get(pk=made["id"]).expires_at == ends
    strong, _ = issue_token(user, team, "strong")
    assert reader.send("DELETE", f"tokens/{strong.id}").json()["code"] == "scope_missing"
    assert reader.send("POST", f"tokens/{strong.id}:rotate", {}).json()["code"] == "scope_missing"


def test_rotation_overlaps_and_then_ends(user: User, team: Team) -> None:
    row, secret = issue_token(user, team, "ci", timezone.now() + timedelta(days=30), scopes=[Scope.READ])
    old = with_token(secret)
    answer = old.send("POST", f"tokens/{row.id}:rotate", {"overlap_seconds": 60})
    assert answer.status_code == 201, answer.content
    made = answer.json()
    new = with_token(made["token"])
    assert (made["name"], made["scopes"]) == ("ci", ["read"])
    assert new.send("GET", "jobs").status_code == old.send("GET", "jobs").status_code == 200
    row.refresh_from_db()
    assert row.expires_at < timezone.now() + timedelta(seconds=61)
    assert ApiToken.objects.get(pk=made["id"]).expires_at > timezone.now() + timedelta(days=29)
    ApiToken.objects.filter(pk=row.pk).update(expires_at=timezone.now())
    assert old.send("GET", "jobs").status_code == 401
    assert new.send("POST", f"tokens/{made['id']}:rotate", {"overlap_seconds": 0}).status_code == 201
    assert new.send("GET", "jobs").status_code == 401
    assert AuditEvent.objects.filter(action="token.rotate").count() == 2


def test_a_platform_administrator_makes_teams_but_sees_nobodys_jobs(
    make_user: Callable, other_team: Team, team: Team, submit: Callable, client: Any
) -> None:
    job = submit()
    boss = make_user("boss", other_team)
    User.objects.filter(pk=boss.pk).update(platform_role="platform_admin")
    client.force_login(boss)
    made = client.post("/api/v1/teams", {"name": "green", "max_slots": 4}, content_type="application/json")
    assert (made.status_code, made.json()["max_slots"]) == (201, 4), made.content
    taken = client.post("/api/v1/teams", {"name": "green"}, content_type="application/json")
    assert (taken.status_code, taken.json()["code"]) == (409, "team_exists")
    names = [item["name"] for item in client.get("/api/v1/teams").json()["items"]]
    assert names == ["blue", "green", "red"]
    changed = client.patch(f"/api/v1/teams/{team.id}", {"max_slots": 2}, content_type="application/json")
    assert changed.json()["max_slots"] == 2
    assert AuditEvent.objects.get(action="quota.change", team_id=team.id).after["max_slots"] == 2
    assert client.get(f"/api/v1/teams/{team.id}/invitations").status_code == 200
    assert client.get(f"/api/v1/jobs/{job.id}").status_code == 404
