"""Tokens created with a token are revoked with it, and have neither a longer life nor more rights."""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.utils import timezone

from athanor.accounts import members, services
from athanor.accounts.models import ApiToken, AuditEvent, Team, User
from athanor.accounts.roles import DEFAULT_SCOPES, PlatformRole, Role, Scope, missing_for
from athanor.accounts.services import issue_token
from tests.control_plane.conftest import Api

pytestmark = pytest.mark.django_db
DAY = timedelta(days=1)


def with_token(secret: str) -> Api:
    client = Api()
    client.credentials(HTTP_AUTHORIZATION=f"Bearer {secret}")
    return client


def works(secret: str) -> bool:
    return bool(with_token(secret).send("GET", "jobs").status_code == 200)


@pytest.fixture
def session(user: User) -> Api:
    client = Api()
    client.force_login(user)
    return client


def mint(asker: Api, name: str = "child", **asked: Any) -> dict[str, Any]:
    answer = asker.send("POST", "tokens", {"name": name, **asked})
    assert answer.status_code == 201, answer.content
    made: dict[str, Any] = answer.json()
    return made


def rotate(asker: Api, token_id: str, overlap: int = 0) -> Any:
    return asker.send("POST", f"tokens/{token_id}:rotate", {"overlap_seconds": overlap})


def ends(token_id: str) -> datetime:
    found = ApiToken.objects.get(pk=token_id).expires_at
    assert found is not None
    return found


def test_a_short_token_cannot_rotate_a_longer_one(user: User, team: Team) -> None:
    _, short = issue_token(user, team, "short", timezone.now() + DAY)
    other, secret = issue_token(user, team, "other")
    refused = rotate(with_token(short), other.id)
    assert (refused.status_code, refused.json()["code"]) == (403, "not_a_descendant")
    assert works(secret)


def test_a_token_that_rotates_itself_gains_no_time(user: User, team: Team) -> None:
    end = timezone.now() + DAY
    row, secret = issue_token(user, team, "ci", end)
    for _ in range(3):
        made = rotate(with_token(secret), row.id).json()
        assert ends(made["id"]) == end
        assert made["parent"] == row.id
        assert not works(secret)
        row, secret = ApiToken.objects.get(pk=made["id"]), made["token"]
    assert works(secret)


def test_a_person_renews_their_own_token(session: Api, user: User, team: Team) -> None:
    row, _ = issue_token(user, team, "ci", timezone.now() + 30 * DAY)
    ApiToken.objects.filter(pk=row.pk).update(
        created_at=timezone.now() - 20 * DAY, expires_at=timezone.now() + 10 * DAY
    )
    made = rotate(session, row.id).json()
    assert ends(made["id"]) > timezone.now() + 29 * DAY
    assert made["parent"] is None


def test_a_person_rotates_a_tokens_child_without_more_time(session: Api, user: User, team: Team) -> None:
    end = timezone.now() + DAY
    parent, secret = issue_token(user, team, "parent", end)
    child = mint(with_token(secret))
    made = rotate(session, child["id"]).json()
    assert (made["parent"], ends(made["id"])) == (parent.id, end)


def test_children_and_grandchildren_end_with_a_revoked_token(session: Api, user: User, team: Team) -> None:
    root, secret = issue_token(user, team, "root")
    child = mint(with_token(secret))
    grandchild = mint(with_token(child["token"]))
    assert (child["parent"], grandchild["parent"]) == (root.id, child["id"])
    listed = {item["id"]: item["parent"] for item in session.send("GET", "tokens").json()["items"]}
    assert listed == {root.id: None, child["id"]: root.id, grandchild["id"]: child["id"]}
    assert session.send("DELETE", f"tokens/{root.id}").status_code == 204
    assert not any(works(each) for each in (secret, child["token"], grandchild["token"]))
    assert AuditEvent.objects.filter(action="token.revoke").count() == 3


def test_a_stolen_tokens_successor_is_revoked_with_it(session: Api, user: User, team: Team) -> None:
    stolen, secret = issue_token(user, team, "stolen")
    thiefs = rotate(with_token(secret), stolen.id).json()
    assert works(thiefs["token"])
    assert session.send("DELETE", f"tokens/{stolen.id}").status_code == 204
    assert not works(thiefs["token"])


def test_children_end_with_a_rotated_token_and_not_before(user: User, team: Team) -> None:
    root, secret = issue_token(user, team, "root")
    child = mint(with_token(secret))
    made = rotate(with_token(secret), root.id, overlap=3600).json()
    assert works(child["token"])
    assert ends(child["id"]) == ends(root.id) < timezone.now() + timedelta(seconds=3601)
    assert ends(made["id"]) > timezone.now() + 300 * DAY


def test_an_ancestor_rotates_a_descendant(user: User, team: Team) -> None:
    _, secret = issue_token(user, team, "root", timezone.now() + DAY)
    child = mint(with_token(secret))
    grandchild = mint(with_token(child["token"]))
    made = rotate(with_token(secret), grandchild["id"])
    assert (made.status_code, made.json()["parent"]) == (201, child["id"])
    upwards = rotate(with_token(made.json()["token"]), child["id"])
    assert (upwards.status_code, upwards.json()["code"]) == (403, "not_a_descendant")


def test_no_token_lives_longer_than_the_settings_allow(session: Api, user: User, team: Team) -> None:
    made = mint(session)
    assert ends(made["id"]) < timezone.now() + 366 * DAY
    too_long = session.send("POST", "tokens", {"name": "t", "expires_in_days": 366})
    assert (too_long.status_code, too_long.json()["errors"][0]["pointer"]) == (422, "/expires_in_days")
    assert "365" in too_long.json()["remedy"]
    assert mint(session, expires_in_days=365)["expires_at"]


def test_a_user_has_a_bounded_number_of_valid_tokens(session: Api, user: User, team: Team, monkeypatch: Any) -> None:
    monkeypatch.setattr(services, "MAX_LIVE_TOKENS", 2)
    first, _ = mint(session), mint(session)
    refused = session.send("POST", "tokens", {"name": "third"})
    assert (refused.status_code, refused.json()["code"]) == (409, "too_many_tokens")
    assert rotate(session, first["id"]).status_code == 201, "one for one"
    # What the remedy says.
    assert session.send("DELETE", f"tokens/{first['id']}").status_code == 204
    assert session.send("DELETE", f"tokens/{ApiToken.objects.latest('created_at').pk}").status_code == 204
    mint(session)


def test_no_token_waits_for_a_promotion(session: Api, user: User, team: Team) -> None:
    refused = session.send("POST", "tokens", {"name": "t", "scopes": ["read", "platform"]})
    assert (refused.status_code, refused.json()["code"]) == (403, "platform_role_missing")
    User.objects.filter(pk=user.pk).update(platform_role=PlatformRole.AUDITOR.value)
    made = mint(session, scopes=["read", "platform"])
    User.objects.filter(pk=user.pk).update(platform_role=PlatformRole.PLATFORM_ADMIN.value)
    assert ApiToken.objects.get(pk=made["id"]).scopes == ["read"]
    assert with_token(made["token"]).send("GET", "admin/orphans").status_code == 403
    assert with_token(mint(session, scopes=["platform"])["token"]).send("GET", "admin/orphans").status_code == 200


@pytest.fixture
def narrow_admin(make_user: Callable[..., User], team: Team) -> Api:
    """A token that manages the team and can neither submit nor download."""
    return with_token(issue_token(make_user("hal", team, "admin"), team, "t", scopes=[Scope.READ, Scope.ADMIN])[1])


@pytest.mark.parametrize("role", list(Role))
def test_a_token_gives_nobody_more_than_it_can_do(narrow_admin: Api, team: Team, user: User, role: Role) -> None:
    here = f"teams/{team.id}"
    for method, path, body in [
        ("POST", f"{here}/invitations", {"role": role.value}),
        ("POST", f"{here}/members", {"username": "x", "role": role.value}),
        ("PATCH", f"{here}/members/{user.id}", {"role": role.value}),
        ("POST", f"{here}/service-accounts", {"name": "ci", "role": role.value}),
    ]:
        answer = narrow_admin.send(method, path, body)
        assert (answer.status_code, answer.json()["code"]) == (403, "scope_missing"), (method, path)
    assert (
        role is Role.VIEWER
        or "submit" in narrow_admin.send("POST", f"{here}/invitations", {"role": role}).json()["detail"]
    )


def test_a_token_with_all_scopes_and_a_session_invite_administrators(make_user: Callable, team: Team) -> None:
    assert [missing_for(role, frozenset(DEFAULT_SCOPES)) for role in Role] == [[], [], []]
    hal = make_user("hal", team, "admin")
    full = with_token(issue_token(hal, team, "t")[1])
    assert full.send("POST", f"teams/{team.id}/invitations", {"role": "admin"}).status_code == 201
    signed_in = Api()
    signed_in.force_login(hal)
    assert signed_in.send("POST", f"teams/{team.id}/invitations", {"role": "admin"}).status_code == 201


def test_a_service_accounts_token_ends_with_the_token_that_asked_for_it(make_user: Callable, team: Team) -> None:
    hal = make_user("hal", team, "admin")
    root, secret = issue_token(hal, team, "t", timezone.now() + DAY, scopes=[Scope.READ, Scope.ADMIN])
    account = members.create_service_account(team, "ci", Role.MEMBER, hal)
    path = f"service-accounts/{account.id}/tokens"
    wider = with_token(secret).send("POST", path, {"name": "t", "scopes": ["read", "submit"]})
    assert (wider.status_code, wider.json()["code"]) == (403, "scope_missing")
    made = with_token(secret).send("POST", path, {"name": "t"}).json()
    assert (made["scopes"], made["parent"], ends(made["id"])) == (["read", "admin"], root.id, ends(root.id))
    services.revoke_token(hal, root.id)
    assert not works(made["token"])


def test_all_tokens_are_revoked_by_one_request(session: Api, user: User, team: Team, other_team: Team) -> None:
    user.memberships.create(team=other_team, role="member")
    secrets = [issue_token(user, each, "t")[1] for each in (team, other_team)]
    assert session.send("POST", "tokens:revoke-all").json() == {"revoked": 2}
    assert not any(works(secret) for secret in secrets)
    assert AuditEvent.objects.filter(action="token.revoke").count() == 2
    assert session.send("POST", "tokens:revoke-all").json() == {"revoked": 0}


def test_a_token_revokes_itself_and_its_own(user: User, team: Team) -> None:
    _, other = issue_token(user, team, "other")
    _, secret = issue_token(user, team, "t")
    child = mint(with_token(secret))
    assert with_token(secret).send("POST", "tokens:revoke-all").json() == {"revoked": 2}
    assert [works(each) for each in (secret, child["token"], other)] == [False, False, True]


def test_an_administrator_revokes_a_members_tokens_for_the_team(
    user: User, team: Team, other_team: Team, make_user: Callable, api_of: Callable
) -> None:
    user.memberships.create(team=other_team, role="member")
    here, elsewhere = (issue_token(user, each, "t")[1] for each in (team, other_team))
    hal = make_user("hal", team, "admin")
    path = f"teams/{team.id}/members/{user.id}/tokens:revoke-all"
    assert api_of(user, team).send("POST", path).status_code == 403
    assert api_of(hal, team).send("POST", path).json() == {"revoked": 2}
    assert [works(here), works(elsewhere)] == [False, True]
    assert set(AuditEvent.objects.filter(action="token.revoke").values_list("actor", flat=True)) == {"hal"}


def test_all_tokens_of_a_user_share_one_budget_of_requests(user: User, team: Team, session: Api) -> None:
    first, second = (with_token(issue_token(user, team, "t")[1]) for _ in range(2))
    # Two requests may fall into two minutes, three cannot all fall into different ones this quickly.
    left = [int(each.send("GET", "jobs")["RateLimit-Remaining"]) for each in (first, second, session)]
    assert left[1] == left[0] - 1 or left[2] == left[1] - 1


def test_a_leaver_takes_what_their_tokens_made_along(make_user: Callable, team: Team, user: User) -> None:
    hal = make_user("hal", team, "admin")
    _, secret = issue_token(hal, team, "t")
    make_user("ida", team, "admin")
    account = members.create_service_account(team, "ci", Role.MEMBER, hal)
    made = with_token(secret).send("POST", f"service-accounts/{account.id}/tokens", {"name": "t"}).json()
    members.remove_member(team, hal.id, user)
    assert not works(made["token"])
