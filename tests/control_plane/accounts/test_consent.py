"""Nobody joins a team without consent, usernames cannot be probed, and every member is listed."""

from collections.abc import Callable
from typing import Any

import pytest
from django.utils import timezone

from athanor.accounts import members
from athanor.accounts.models import AuditEvent, Invitation, Membership, Team, User
from athanor.accounts.roles import Role, Scope
from athanor.accounts.services import issue_token
from tests.control_plane.conftest import Api

pytestmark = pytest.mark.django_db


@pytest.fixture
def admin(api_of: Callable, make_user: Callable, team: Team) -> Api:
    return api_of(make_user("hal", team, "admin"), team)


@pytest.fixture
def bo(make_user: Callable, other_team: Team) -> User:
    user: User = make_user("bo", other_team)
    user.email = "bo@example.org"
    user.save()
    return user


def signed_in(user: User) -> Api:
    client = Api()
    client.force_login(user)
    return client


def offer(admin: Api, team: Team, username: str = "bo", role: str = "member") -> Any:
    return admin.send("POST", f"teams/{team.id}/members", {"username": username, "role": role})


def test_adding_a_user_asks_them_first(admin: Api, team: Team, bo: User) -> None:
    answer = offer(admin, team)
    assert answer.status_code == 202, answer.content
    assert (answer.json()["username"], answer.json()["accepted_at"]) == ("bo", None)
    assert not Membership.objects.filter(team=team, user=bo).exists()
    assert b"bo@example.org" not in answer.content
    assert b"bo@example.org" not in b"".join(admin.send("GET", f"teams/{team.id}/{part}").content for part in
                                             ("members", "invitations"))  # fmt: skip
    (seen,) = signed_in(bo).send("GET", "invitations").json()["items"]
    assert (seen["team"], seen["role"], seen["created_by"]) == ("red", "member", "hal")
    joined = signed_in(bo).send("POST", f"invitations/{seen['id']}:accept")
    assert (joined.status_code, joined.json()["role"]) == (201, "member")
    assert signed_in(bo).send("GET", "invitations").json()["items"] == []
    again = signed_in(bo).send("POST", f"invitations/{seen['id']}:accept")
    assert again.status_code == 404
    actions = AuditEvent.objects.filter(team_id=team.id).order_by("seq").values_list("action", "actor")
    assert list(actions)[-3:] == [("invitation.create", "hal"), ("member.add", "bo"), ("invitation.accept", "bo")]


def test_an_offer_is_declined(admin: Api, team: Team, bo: User) -> None:
    made = offer(admin, team).json()
    assert signed_in(bo).send("POST", f"invitations/{made['id']}:decline").status_code == 204
    assert signed_in(bo).send("POST", f"invitations/{made['id']}:accept").status_code == 404
    (row,) = admin.send("GET", f"teams/{team.id}/invitations").json()["items"]
    assert row["declined_at"] is not None
    assert AuditEvent.objects.filter(action="invitation.decline", actor="bo").exists()
    assert offer(admin, team).status_code == 202, "they may be asked again"


@pytest.mark.parametrize("state", ["revoked", "expired", "anothers"])
def test_an_offer_that_is_not_open_or_not_theirs_is_not_there(
    admin: Api, team: Team, bo: User, user: User, make_user: Callable, other_team: Team, state: str
) -> None:
    made = offer(admin, team).json()
    asker = bo
    if state == "revoked":
        assert admin.send("DELETE", f"invitations/{made['id']}").status_code == 204
    elif state == "expired":
        Invitation.objects.update(expires_at=timezone.now())
    else:
        asker = make_user("cy", other_team)
    assert signed_in(asker).send("GET", "invitations").json()["items"] == []
    for verb in ("accept", "decline"):
        assert signed_in(asker).send("POST", f"invitations/{made['id']}:{verb}").status_code == 404


def test_names_of_users_cannot_be_probed(admin: Api, team: Team, bo: User, other_team: Team) -> None:
    members.create_service_account(other_team, "ci", Role.MEMBER, bo)
    gone = User.objects.create(username="gone", is_active=False)
    answers = [offer(admin, team, name) for name in ("bo", "nobody", "ci@blue", gone.username)]
    assert {answer.status_code for answer in answers} == {202}
    shapes = []
    for answer in answers:
        body = dict(answer.json())
        for varying in ("id", "username", "created_at", "expires_at"):
            body.pop(varying)
        shapes.append(body)
    assert all(shape == shapes[0] for shape in shapes)
    repeated = [offer(admin, team, name) for name in ("bo", "nobody")]
    assert [(each.status_code, each.json()["code"]) for each in repeated] == [(409, "already_invited")] * 2
    # What the remedy says.
    assert admin.send("DELETE", f"invitations/{answers[1].json()['id']}").status_code == 204
    assert offer(admin, team, "nobody").status_code == 202


def test_whoever_takes_an_invited_name_later_is_not_invited(
    admin: Api, team: Team, other_team: Team, make_user: Callable
) -> None:
    made = offer(admin, team, "later", "admin").json()
    later = signed_in(make_user("later", other_team))
    assert later.send("GET", "invitations").json()["items"] == []
    assert later.send("POST", f"invitations/{made['id']}:accept").status_code == 404


def test_a_service_account_joins_no_other_team(admin: Api, team: Team, other_team: Team, bo: User) -> None:
    account = members.create_service_account(other_team, "ci", Role.MEMBER, bo)
    secret = admin.send("POST", f"teams/{team.id}/invitations", {"role": "member"}).json()["token"]
    robot = Api()
    robot.credentials(HTTP_AUTHORIZATION=f"Bearer {issue_token(account, other_team, 't')[1]}")
    refused = robot.send("POST", "invitations:accept", {"token": secret})
    assert (refused.status_code, refused.json()["code"]) == (403, "service_account")
    assert not Membership.objects.filter(team=team, user=account).exists()
    assert signed_in(bo).send("POST", "invitations:accept", {"token": secret}).status_code == 201, "it is not used up"


def test_a_narrow_token_consents_to_nothing(admin: Api, team: Team, other_team: Team, bo: User) -> None:
    made = offer(admin, team).json()
    reader = Api()
    reader.credentials(HTTP_AUTHORIZATION=f"Bearer {issue_token(bo, other_team, 't', scopes=[Scope.READ])[1]}")
    for path, body in ((f"invitations/{made['id']}:accept", None), ("invitations:accept", {"token": "athinv_x"})):
        refused = reader.send("POST", path, body)
        assert (refused.status_code, refused.json()["code"]) == (403, "scope_missing")


def test_a_foreign_service_account_from_before_is_seen_and_removed(
    admin: Api, team: Team, other_team: Team, bo: User
) -> None:
    account = members.create_service_account(other_team, "spy", Role.MEMBER, bo)
    Membership.objects.create(team=team, user=account, role="admin")
    listed = {item["user_id"]: item for item in admin.send("GET", f"teams/{team.id}/members").json()["items"]}
    assert (listed[account.id]["is_service_account"], listed[account.id]["role"]) == (True, "admin")
    assert admin.send("DELETE", f"teams/{team.id}/members/{account.id}").status_code == 204
    assert not Membership.objects.filter(team=team, user=account).exists()
    assert Membership.objects.filter(team=other_team, user=account).exists(), "its own team still has it"


def test_removing_a_service_account_of_the_team_retires_it(admin: Api, team: Team, user: User) -> None:
    account = members.create_service_account(team, "ci", Role.ADMIN, user)
    assert admin.send("DELETE", f"teams/{team.id}/members/{account.id}").status_code == 204
    account.refresh_from_db()
    assert not account.is_active


def test_everybody_may_leave(team: Team, user: User, admin: Api) -> None:
    by_token = Api()
    by_token.credentials(HTTP_AUTHORIZATION=f"Bearer {issue_token(user, team, 't')[1]}")
    path = f"teams/{team.id}/members/{user.id}"
    assert by_token.send("DELETE", path).status_code == 403, "a token does not give up its user's membership"
    assert signed_in(user).send("DELETE", path).status_code == 204
    hal = User.objects.get(username="hal")
    last = signed_in(hal).send("DELETE", f"teams/{team.id}/members/{hal.id}")
    assert (last.status_code, last.json()["code"]) == (409, "last_admin")


def test_a_user_of_several_teams_learns_what_to_send(user: User, other_team: Team, spec: Any, pool: Any) -> None:
    Membership.objects.create(user=user, team=other_team, role="member")
    client = signed_in(user)
    refused = client.send("POST", "jobs", spec)
    problem = refused.json()["errors"][0]
    assert (refused.status_code, problem["pointer"], problem["code"]) == (422, "/team", "team_needed")
    assert "blue, red" in refused.json()["detail"]
    assert '"team": "blue"' in refused.json()["remedy"]
    assert client.send("POST", "jobs", {**spec, "team": "blue"}).status_code == 201
