"""Requests without a valid token are refused, and no endpoint shows another team's objects."""

import json
import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.urls import URLPattern
from django.utils import timezone

from athanor.accounts.models import ApiToken, Team, User
from athanor.accounts.roles import PlatformRole, Role
from athanor.accounts.services import issue_token
from athanor.api.v1.urls import urlpatterns
from athanor.backends.fake.backend import World
from athanor.jobs.models import Job
from tests.control_plane.conftest import SPEC, Api, rolled_back

pytestmark = pytest.mark.django_db

MANAGED = ("teams/", "invitations/", "service-accounts/")
OF_NO_TEAM = {"cluster_id", "pool_id", "series_id", "decision_id", "simulation_id", "session_id", "passkey_id"}
# Of no team: what whom may see of them is in tests/control_plane/clusters, budgets and scheduling.
SHARED = ("clusters/", "prices/", "series/", "simulations/")
OVERSEEN = "budgets/"  # users with a role on the platform see what teams may spend
OPEN = {"session", "spec/schema"}  # readable without signing in, and of no team


def methods_of(pattern: URLPattern) -> list[str]:
    view = pattern.callback.view_class
    return [name.upper() for name in ("get", "post", "put", "patch", "delete") if hasattr(view, name)]


ENDPOINTS = [(method, str(pattern.pattern)) for pattern in urlpatterns for method in methods_of(pattern)]
OF_TEAMS = [(method, path) for method, path in ENDPOINTS if "<id:" in path and not path.startswith(SHARED)]
WITHOUT_ID = [(method, path) for method, path in ENDPOINTS if "<id:" not in path]


def path_of(template: str, ids: dict[str, str]) -> str:
    for name, value in ids.items():
        for converter in ("int", "id", "name", "alias"):
            template = template.replace(f"<{converter}:{name}>", value)
    template = template.replace("<int:attempt_number>", "1")
    assert "<" not in template, f"{template}: give this test an object of the new kind"
    return template


def test_without_a_token_every_endpoint_refuses(
    foreign: dict[str, str], world: World, subtests: pytest.Subtests
) -> None:
    for method, template in ENDPOINTS:
        if template in OPEN:
            continue
        with subtests.test(f"{method} {template}"), rolled_back():
            answer = Api().send(method, path_of(template, foreign), {} if method != "GET" else None)
            assert answer.status_code in (401, 403), answer.content
            assert answer.json()["code"]


@pytest.mark.parametrize("role", list(Role))
def test_another_teams_object_is_not_there(
    role: Role,
    foreign: dict[str, str],
    api_of: Callable,
    make_user: Callable,
    other_team: Team,
    subtests: pytest.Subtests,
) -> None:
    for method, template in OF_TEAMS:
        with subtests.test(f"{method} {template}"), rolled_back():
            body = {} if method != "GET" else None
            stranger = api_of(make_user("sam", other_team, role), other_team)
            answer = stranger.send(method, path_of(template, foreign), body)
            absent = stranger.send(method, path_of(template, dict.fromkeys(foreign, "job_" + "0" * 26)), body)
            assert answer.status_code == absent.status_code == 404
            assert answer.json()["code"] == absent.json()["code"] == "not_found"


@pytest.mark.parametrize("role", [PlatformRole.AUDITOR, PlatformRole.PLATFORM_ADMIN])
def test_a_platform_role_opens_no_teams_work(
    role: PlatformRole, foreign: dict[str, str], make_user: Callable, other_team: Team, subtests: pytest.Subtests
) -> None:
    """With a session, which no scope narrows. Platform administrators do manage who belongs to a team."""
    for method, template in OF_TEAMS:
        if (role is PlatformRole.PLATFORM_ADMIN and template.startswith(MANAGED)) or template.startswith(OVERSEEN):
            continue
        with subtests.test(f"{method} {template}"), rolled_back():
            user = make_user("sam", other_team)
            User.objects.filter(pk=user.pk).update(platform_role=role.value)
            client = Api()
            client.force_login(user)
            answer = client.send(method, path_of(template, foreign), {} if method != "GET" else None)
            assert answer.status_code == 404, answer.content


# What a request without an id in its address refers to another team's things by. A new endpoint needs a line here.
BODIES: dict[str, Callable[[dict[str, str]], Any]] = {
    "POST session": lambda ids: {"username": ids["user_id"], "password": "x"},
    "DELETE session": lambda ids: None,
    "POST session:change-password": lambda ids: {"current_password": "x", "new_password": ids["user_id"]},
    "POST session:reset-password": lambda ids: {"token": ids["user_id"], "new_password": "x"},
    "POST session:second-factor": lambda ids: {"code": ids["user_id"]},
    "POST session:passkey-challenge": lambda ids: None,
    "POST second-factors/authenticator-app:begin": lambda ids: {"current_password": ids["user_id"]},
    "POST second-factors/authenticator-app:confirm": lambda ids: {"code": ids["user_id"]},
    "POST second-factors/authenticator-app:remove": lambda ids: {"current_password": ids["user_id"]},
    "POST second-factors/recovery-codes:generate": lambda ids: {"current_password": ids["user_id"]},
    "POST second-factors/passkeys:begin": lambda ids: {"current_password": ids["user_id"]},
    "POST second-factors/passkeys": lambda ids: {"name": ids["user_id"], "credential": {"id": ids["user_id"]}},
    "PATCH second-factors/passkeys/<int:passkey_id>": lambda ids: {"name": ids["user_id"]},
    "POST second-factors/passkeys/<int:passkey_id>:remove": lambda ids: {"current_password": ids["user_id"]},
    "DELETE sessions/<int:session_id>": lambda ids: None,
    "POST sessions:end-others": lambda ids: None,
    "POST tokens": lambda ids: {"name": "t", "team": ids["team_id"]},
    "POST tokens:revoke-all": lambda ids: None,
    "POST teams": lambda ids: {"name": "red"},
    "POST invitations:accept": lambda ids: {"token": ids["invitation_id"]},
    "POST jobs": lambda ids: {**SPEC, "team": ids["team_id"]},
    "POST jobs:plan": lambda ids: {**SPEC, "after": [ids["job_id"]]},
    "POST projects": lambda ids: {"name": "p", "team": ids["team_id"]},
    "POST jobs:cancel": lambda ids: {"ids": [ids["job_id"]]},
    "POST jobs:pause": lambda ids: {"ids": [ids["job_id"]]},
    "POST jobs:resume": lambda ids: {"ids": [ids["job_id"]]},
    "POST webhooks": lambda ids: {"url": "https://example.org/", "team": ids["team_id"]},
    "POST models:import": lambda ids: None,
    "POST models": lambda ids: {"name": "bot", "team": ids["team_id"]},
    "POST alert-rules": lambda ids: {
        "name": "mine",
        "measure": "queue_wait",
        "threshold": 1,
        "team": ids["team_id"],
    },
    "POST notifications:read": lambda ids: {"ids": [ids["job_id"]]},
    "PATCH notification-preferences": lambda ids: {"time_zone": ids["team_id"]},
    "POST datasets": lambda ids: None,
    "POST datasets:inspect": lambda ids: None,
    "POST admin/decisions/<int:decision_id>:replay": lambda ids: {},
    "POST admin/orphans:cancel": lambda ids: {"cluster_id": "cls_0", "backend_name": ids["attempt_id"]},
    "POST admin/orphans:observe": lambda ids: {"attempt_id": ids["attempt_id"]},
    "POST clusters": lambda ids: {"name": "mine", "kind": "local", "config": {"directory": ids["job_id"]}},
    "POST clusters:check": lambda ids: {"kind": "local", "config": {"directory": ids["job_id"]}},
    "PATCH quotas": lambda ids: {"changes": [{"node": ids["team_id"], "max_slots": 1}]},
    "PUT quotas": lambda ids: {"organisation": {"teams": {ids["team_id"]: {}}}},
    "POST quotas:preview": lambda ids: {"changes": [{"node": ids["team_id"], "max_slots": 1}]},
    "PUT quotas/settings": lambda ids: {"preempt": False},
    "POST simulations": lambda ids: {"history_days": 1, "changes": [{"node": ids["team_id"], "max_slots": 1}]},
    "POST budgets": lambda ids: {"node_id": ids["team_id"], "name": "b", "unit": "money", "period": "day", "amount": 1},
    "POST series": lambda ids: {"kind": "carbon", "cluster_id": ids["cluster_id"]},
    "POST metrics:query": lambda ids: {"jobs": [ids["job_id"]], "series": ["train/loss"]},
}


@pytest.mark.parametrize("role", list(Role))
def test_what_names_no_object_tells_and_changes_nothing_of_another_team(
    role: Role,
    foreign: dict[str, str],
    api_of: Callable,
    make_user: Callable,
    other_team: Team,
    subtests: pytest.Subtests,
) -> None:
    of_red = [value for name, value in foreign.items() if name not in OF_NO_TEAM]
    before = list(Job.objects.values("id", "version", "desired"))
    for method, template in WITHOUT_ID:
        with subtests.test(f"{method} {template}"), rolled_back():
            stranger = api_of(make_user("sam", other_team, role), other_team)
            assert method == "GET" or f"{method} {template}" in BODIES, "add a body that refers to red's things"
            body = None if method == "GET" else BODIES[f"{method} {template}"](foreign)
            path = re.sub("<int:[a-z]+_id>", "1", template)
            named = f"{path}?team={foreign['team_id']}"
            # A parameter that the operation does not have would be refused before the view is asked.
            asked = [path, named] if method == "GET" or template in ("datasets", "models:import") else [path]
            text = "".join(b"".join(stranger.send(method, each, body)).decode() for each in asked)
            quoted = json.dumps(body) + named
            leaked = [value for value in of_red if value in text and value not in quoted]
            assert not leaked, text
            assert list(Job.objects.values("id", "version", "desired")) == before


def test_lists_hold_only_ones_own(
    foreign: dict[str, str], api_of: Callable, make_user: Callable, other_team: Team
) -> None:
    stranger = api_of(make_user("sam", other_team), other_team)
    for path in ("jobs", "datasets"):
        assert stranger.send("GET", path).json()["items"] == [], path
    assert len(stranger.send("GET", "tokens").json()["items"]) == 1, "its own"


def test_a_token_of_one_team_does_not_reach_the_users_other_team(
    user: User, team: Team, other_team: Team, api_of: Callable, foreign: dict[str, str]
) -> None:
    user.memberships.create(team=other_team, role="admin")
    assert api_of(user, other_team).send("GET", f"jobs/{foreign['job_id']}").status_code == 404
    assert api_of(user, team).send("GET", f"jobs/{foreign['job_id']}").status_code == 200


@pytest.mark.parametrize("state", ["unknown", "expired", "revoked", "user_inactive", "attempt_token"])
def test_a_token_that_is_no_longer_good_is_refused(user: User, team: Team, state: str) -> None:
    row, token = issue_token(user, team, "t")
    if state == "unknown":
        token = token[:-1] + ("a" if token[-1] != "a" else "b")
    elif state == "expired":
        ApiToken.objects.update(expires_at=timezone.now() - timedelta(seconds=1))
    elif state == "revoked":
        ApiToken.objects.update(revoked_at=timezone.now())
    elif state == "user_inactive":
        User.objects.update(is_active=False)
    else:
        token = "att_01.abc"
    client = Api()
    client.credentials(HTTP_AUTHORIZATION=f"Bearer {token}")
    answer = client.send("GET", "jobs")
    assert (answer.status_code, answer.json()["code"]) == (401, "invalid_token")
    assert answer["WWW-Authenticate"] == "Bearer"
    assert row.digest not in answer.content.decode()


def test_a_token_is_shown_once_and_kept_as_a_digest(api: Any) -> None:
    made = api.send("POST", "tokens", {"name": "ci", "expires_in_days": 1})
    assert made.status_code == 201
    token = made.json()["token"]
    assert token.startswith("ath_")
    listed = api.send("GET", "tokens")
    assert token not in listed.content.decode()
    assert not ApiToken.objects.filter(digest=token).exists()
    client = Api()
    client.credentials(HTTP_AUTHORIZATION=f"Bearer {token}")
    assert client.send("GET", "jobs").status_code == 200
    assert api.send("DELETE", f"tokens/{made.json()['id']}").status_code == 204
    assert client.send("GET", "jobs").status_code == 401


def test_the_dashboard_signs_in_with_csrf_and_out_again(user: User, team: Team) -> None:
    user.set_password("correct horse battery")
    user.save()
    client = Api(enforce_csrf_checks=True)
    token = client.send("GET", "session").json()["csrf_token"]
    credentials = {"username": "ada", "password": "correct horse battery"}
    refused = client.send("POST", "session", credentials)
    assert (refused.status_code, refused.json()["code"]) == (403, "csrf_failed"), "without the CSRF token"
    wrong = client.send("POST", "session", {**credentials, "password": "no"}, x_csrftoken=token)
    assert (wrong.status_code, wrong.json()["code"]) == (401, "invalid_credentials")
    session = client.send("POST", "session", credentials, x_csrftoken=token)
    assert session.status_code == 200, session.content
    assert session.json()["teams"] == [{"id": team.id, "name": "red", "role": "member"}]
    assert client.send("GET", "jobs").status_code == 200
    assert client.send("POST", "jobs:plan", {}).status_code == 403, "without the CSRF token"
    fresh = session.json()["csrf_token"]
    assert client.send("POST", "jobs:plan", {}, x_csrftoken=fresh).status_code == 422
    assert client.send("DELETE", "session", x_csrftoken=fresh).status_code == 204
    assert client.send("GET", "jobs").status_code in (401, 403)
