"""A secret is sent only to the destinations that an administrator of its team has set."""

import copy
from collections.abc import Callable
from typing import Any

import pytest

from athanor.accounts.models import AuditEvent, Team
from athanor.artifacts.models import TeamSecret
from athanor.dispatch import tokens
from athanor.dispatch.services import run_config_of
from athanor.jobs.models import Job, JobEvent
from tests.control_plane import drive
from tests.control_plane.api.test_agent import AgentClient
from tests.control_plane.conftest import Api

pytestmark = pytest.mark.django_db
SERVER = "https://mlflow.example.org"


@pytest.fixture
def admin(api_of: Callable, make_user: Callable, team: Team) -> Api:
    return api_of(make_user("hal", team, "admin"), team)


@pytest.fixture
def token(admin: Api, team: Team) -> dict[str, Any]:
    made = admin.send(
        "POST",
        f"teams/{team.id}/secrets",
        {"name": "mlflow-tracking-token", "value": "TOP-SECRET", "destinations": [f"{SERVER}:443/"]},
    )
    assert (made.status_code, made.json()["destinations"]) == (201, [SERVER])
    return made.json()


def reporting_to(spec: dict[str, Any], uri: str, secrets: list[str]) -> dict[str, Any]:
    return {**copy.deepcopy(spec), "secrets": secrets, "telemetry": {"mlflow": {"tracking_uri": uri}}}


def test_a_member_cannot_send_the_token_to_an_address_of_their_own(
    api: Api, admin: Api, team: Team, spec: dict[str, Any], pool: Any, token: dict[str, Any]
) -> None:
    theirs = reporting_to(spec, "https://attacker.example.org/x", [token["name"]])
    refused = api.send("POST", "jobs", theirs)
    (problem,) = refused.json()["errors"]
    assert (problem["pointer"], problem["code"]) == ("/secrets/0", "destination_not_allowed")
    assert "may not be sent to https://attacker.example.org" in problem["detail"]
    assert f"its destinations: {SERVER}" in problem["detail"]
    assert api.send("POST", "jobs:plan", theirs).status_code == 422
    for variant in (f"{SERVER}.attacker.org", "https://mlflow.example.org:8443", "http://mlflow.example.org"):
        assert api.send("POST", "jobs", reporting_to(spec, variant, [token["name"]])).status_code == 422, variant
    assert api.send("PATCH", f"secrets/{token['id']}", {"destinations": []}).status_code == 403, "a member"
    made = api.send("POST", "jobs", reporting_to(spec, f"{SERVER}/base", [token["name"]]))
    assert made.status_code == 201, made.content
    forked = api.send("POST", f"jobs/{made.json()['id']}:fork", {"changes": {
        "telemetry": {"mlflow": {"tracking_uri": "https://attacker.example.org"}}}})  # fmt: skip
    assert forked.status_code == 422, forked.content
    # The remedy of the message.
    changed = admin.send("PATCH", f"secrets/{token['id']}", {"destinations": [SERVER, "https://attacker.example.org"]})
    assert changed.status_code == 200, changed.content
    assert api.send("POST", "jobs", theirs).status_code == 201
    event = AuditEvent.objects.get(action="secret.destinations")
    assert (event.before["destinations"], event.after["destinations"]) == (
        [SERVER],
        [SERVER, "https://attacker.example.org"],
    )


def test_a_destination_that_is_withdrawn_is_not_served_at_delivery(
    api: Api, admin: Api, spec: dict[str, Any], pool: Any, token: dict[str, Any]
) -> None:
    made = api.send("POST", "jobs", reporting_to(spec, SERVER, [token["name"]]))
    attempt = drive.start(Job.objects.get(pk=made.json()["id"]))
    agent = AgentClient(tokens.issue(attempt.id))
    assert agent("GET", "keys").json()["secrets"] == {"mlflow-tracking-token": "TOP-SECRET"}
    admin.send("PATCH", f"secrets/{token['id']}", {"destinations": []})
    assert agent("GET", "keys").json()["secrets"] == {}
    event = JobEvent.objects.get(job=attempt.job_id, type="secret.withheld")
    assert event.data == {"secrets": ["mlflow-tracking-token"]}
    assert SERVER in event.message


def test_a_secret_from_before_destinations_goes_nowhere(
    api: Api, spec: dict[str, Any], pool: Any, token: dict[str, Any]
) -> None:
    TeamSecret.objects.update(destinations=[])
    refused = api.send("POST", "jobs", reporting_to(spec, SERVER, [token["name"]]))
    assert "its destinations: none" in refused.json()["errors"][0]["detail"]


def test_replacing_a_value_keeps_destinations(admin: Api, team: Team, token: dict[str, Any]) -> None:
    replaced = admin.send("POST", f"teams/{team.id}/secrets", {"name": token["name"], "value": "new"})
    assert (replaced.status_code, replaced.json()["destinations"]) == (200, [SERVER])


@pytest.mark.parametrize(
    ("written", "says"),
    [
        ("mlflow.example.org", "it must be a URL such as"),
        ("https://mlflow.example.org/path", "give only scheme, host and port, such as https://mlflow.example.org"),
        ("https://10.0.0.1", "is not a public address"),
        ("http://mlflow.example.org", "it must be https"),
        ("https://user:pw@mlflow.example.org", "must not contain a user name"),
    ],
)
def test_a_bad_destination_is_refused_by_entry(admin: Api, team: Team, written: str, says: str) -> None:
    body = {"name": "hf-token", "value": "x", "destinations": [SERVER, written]}
    answer = admin.send("POST", f"teams/{team.id}/secrets", body)
    (problem,) = answer.json()["errors"]
    assert (answer.status_code, problem["pointer"]) == (422, "/destinations/1")
    assert says in problem["detail"]


@pytest.mark.parametrize(
    "uri", ["http://127.0.0.1:5000", "https://169.254.169.254", "https://168.63.129.16", "http://mlflow.example.org"]
)
def test_a_tracking_server_inside_is_refused_unless_an_administrator_allows_it(
    api: Api, spec: dict[str, Any], pool: Any, settings: Any, uri: str
) -> None:
    refused = api.send("POST", "jobs", reporting_to(spec, uri, []))
    (problem,) = refused.json()["errors"]
    assert (problem["pointer"], problem["code"]) == ("/telemetry/mlflow/tracking_uri", "address_not_allowed")
    assert "ATHANOR_OUTBOUND_ALLOW" in problem["detail"]
    host = uri.partition("//")[2].partition(":")[0]
    settings.ATHANOR = settings.ATHANOR.model_copy(update={"outbound_allow": host})
    made = api.send("POST", "jobs", reporting_to(spec, uri, []))
    assert made.status_code == 201, made.content
    attempt = drive.start(Job.objects.get(pk=made.json()["id"]))
    assert run_config_of(attempt).outbound_allow == host
