"""Remedies of malformed requests, and of those that settings, accounts and limits refuse, are followed."""

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
import yaml
from allauth.mfa.models import Authenticator
from django.test import Client
from django.test.client import FakePayload
from django.utils import timezone

from athanor.accounts import members, passkeys, passwords
from athanor.accounts.models import Role, Team, User
from athanor.artifacts.models import Dataset
from athanor.backends.fake.backend import World
from athanor.clusters.models import Pool
from athanor.dispatch import tokens
from athanor.jobs.models import Job
from athanor.quotas.services import leaf_of
from athanor.scheduling import simulations
from tests.control_plane import drive
from tests.control_plane.answers import done, refused
from tests.control_plane.conftest import Api

pytestmark = pytest.mark.django_db
LONG = "a long enough one 81"
GENERATED = {"days": 1, "jobs_per_day": 5, "seed": 1}


@pytest.fixture(autouse=True)
def quick_passwords(settings: Any) -> None:
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]


# Malformed requests


def test_who_sends_no_token_sends_one(team: Team, user: User) -> None:
    client = Api()
    answer = client.send("GET", "jobs")
    refused(answer, "not_authenticated", "Authorization: Bearer")
    assert answer["WWW-Authenticate"] == "Bearer"
    owner = Api()
    owner.force_login(user)
    token = done(owner.send("POST", "tokens", {"name": "ci", "team": team.name, "scopes": ["read"]}))["token"]
    done(client.send("GET", "jobs", authorization=f"Bearer {token}"))


def test_a_method_is_one_of_those_that_are_allowed(api: Api) -> None:
    answer = api.send("PUT", "tokens", {})
    refused(answer, "method_not_allowed", "the header Allow")
    assert "GET" in answer["Allow"]
    done(api.send("GET", "tokens"))


def test_json_is_accepted(api: Api) -> None:
    refused(api.send("GET", "jobs", accept="text/csv"), "not_acceptable", "leave the header Accept out")
    done(api.send("GET", "jobs", accept="application/json"))
    done(api.send("GET", "jobs"))


def test_a_body_is_corrected(api: Api, team: Team) -> None:
    post = partial(api.generic, "POST", "/api/v1/tokens", content_type="application/json")
    refused(post('{"name": "ci",}'), "parse_error", "correct the body")
    done(post(f'{{"name": "ci", "team": "{team.name}", "scopes": ["read"]}}'))


def test_a_body_is_sent_as_json(api: Api, team: Team) -> None:
    post = partial(
        api.generic, "POST", "/api/v1/tokens", f'{{"name": "ci", "team": "{team.name}", "scopes": ["read"]}}'
    )
    refused(post(content_type="text/plain"), "unsupported_media_type", "application/json")
    done(post(content_type="application/json"))


def test_a_nul_character_is_left_out(api: Api, pool: Pool, spec: dict[str, Any]) -> None:
    refused(api.send("POST", "jobs", {**spec, "labels": {"note": "a\0b"}}), "invalid_text", "leave it out")
    done(api.send("POST", "jobs", {**spec, "labels": {"note": "ab"}}))


def test_a_large_spec_is_shortened(api: Api, pool: Pool, spec: dict[str, Any]) -> None:
    post = partial(api.generic, "POST", "/api/v1/jobs", content_type="application/yaml")
    labels = {f"label-{number}": "x" * 60 for number in range(8000)}
    answer = post(yaml.safe_dump({**spec, "labels": labels}))
    refused(answer, "spec_too_large", "write shorter lists")
    assert answer.json()["detail"] == "the spec is larger than 262144 bytes"
    done(post(yaml.safe_dump({**spec, "labels": {"label-1": "x"}})))


# People


def test_a_taken_user_name_is_chosen_anew(team: Team, user: User) -> None:
    secret = members.invite(team, Role.MEMBER, 1, "", user)[1]
    body = {"token": secret, "password": LONG}
    refused(Api().send("POST", "invitations:accept", {**body, "username": user.username}), "username_taken", "another")
    done(Api().send("POST", "invitations:accept", {**body, "username": "newcomer"}))


def test_an_administrator_makes_a_new_reset_link(user: User, operator: Api) -> None:
    root = User.objects.get(username="root")

    def reset(link: str) -> Any:
        body = {"token": link.partition("#")[2], "new_password": LONG}
        return Api().send("POST", "session:reset-password", body)

    link = passwords.reset_link(user, root)
    done(reset(link))
    user.refresh_from_db()
    refused(reset(link), "invalid_reset_link", "ask a platform administrator for a new one")
    done(reset(passwords.reset_link(user, root)))


def test_a_token_that_is_over_is_replaced(api: Api, team: Team) -> None:
    body = {"name": "ci", "team": team.name, "scopes": ["read"]}
    token = done(api.send("POST", "tokens", body))
    done(api.send("DELETE", f"tokens/{token['id']}"))
    refused(api.send("POST", f"tokens/{token['id']}:rotate", {}), "token_over", "issue a new token")
    done(api.send("POST", "tokens", body))


def test_a_passkey_too_many_is_added_when_one_is_removed(
    user: User, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.ATHANOR = settings.ATHANOR.model_copy(update={"public_url": "https://athanor.example"})
    settings.ALLOWED_HOSTS = ["*"]
    monkeypatch.setattr(passkeys, "MAX_PASSKEYS", 0)
    user.set_password(LONG)
    user.save()
    browser = Client(headers={"host": "athanor.example"})
    post = partial(browser.post, content_type="application/json")
    done(post("/api/v1/session", {"username": user.username, "password": LONG}))
    begin = partial(post, "/api/v1/second-factors/passkeys:begin", {"current_password": LONG})
    refused(begin(), "too_many_passkeys", "remove one")
    monkeypatch.setattr(passkeys, "MAX_PASSKEYS", 1)
    assert not Authenticator.objects.filter(user=user).exists()
    done(begin())


# Settings


def test_a_kind_of_cluster_is_chosen_from_those_that_are_named(operator: Api) -> None:
    body = {"name": "new", "kind": "slrum", "config": {}}
    answer = operator.send("POST", "clusters", body)
    refused(answer, "unknown_kind", "choose one of these kinds")
    assert "slurm" in answer.json()["detail"]
    done(operator.send("POST", "clusters", {**body, "kind": "fake"}))


def test_changes_of_quotas_or_a_whole_tree_are_given(operator: Api, team: Team) -> None:
    changes = [{"node": team.name, "max_running_jobs": 3}]
    tree = done(operator.send("GET", "quotas/document"))
    both = {"changes": changes, "organisation": tree["organisation"]}
    refused(operator.send("POST", "quotas:preview", both), "invalid_quotas", "either changes or organisation")
    done(operator.send("POST", "quotas:preview", {"changes": changes}))
    done(operator.send("POST", "quotas:preview", {"organisation": tree["organisation"]}))


def test_a_price_rule_is_fixed(operator: Api, pool: Pool) -> None:
    rule = {"weekdays": [0], "from_hour": 9, "to_hour": 17, "price_per_slot_hour": "1.25", "zone": "Berlin"}
    answer = operator.send("PATCH", f"prices/{pool.id}", {"rules": [rule]})
    refused(answer, "invalid_prices", "fix the rules")
    assert answer.json()["errors"][0]["pointer"] == "/rules/0/zone"
    done(operator.send("PATCH", f"prices/{pool.id}", {"rules": [{**rule, "zone": "Europe/Berlin"}]}))


def test_a_budget_is_corrected_as_its_error_says(operator: Api, team: Team) -> None:
    body = {"name": "b", "unit": "slot_hours", "period": "month", "amount": 10, "node_id": leaf_of(team).id}
    answer = operator.send("POST", "budgets", {**body, "accelerator": "h10O"})
    refused(answer, "invalid_budget")
    assert answer.json()["remedy"] and answer.json()["errors"][0]["pointer"] == "/accelerator"
    done(operator.send("POST", "budgets", body))


def test_a_simulation_has_one_source_of_jobs(operator: Api, pool: Pool) -> None:
    body = {"name": "s", "history_days": 1, "generate": GENERATED}
    refused(operator.send("POST", "simulations", body), "invalid_simulation", "either history_days or generate")
    done(operator.send("POST", "simulations", {"name": "s", "generate": GENERATED}))


def test_a_simulation_too_many_is_tried_again_when_others_are_done(
    operator: Api, pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(simulations, "MAX_WAITING", 1)
    body = {"name": "s", "generate": GENERATED}
    done(operator.send("POST", "simulations", body))
    refused(operator.send("POST", "simulations", body), "too_many_simulations", "when some of them are done")
    simulations.run_due()
    done(operator.send("POST", "simulations", body))


def test_points_of_a_series_are_fixed_line_by_line(operator: Api, pool: Pool) -> None:
    series = done(operator.send("POST", "series", {"kind": "price", "pool_id": pool.id}))
    path, now = f"series/{series['id']}/points", timezone.now().replace(microsecond=0)
    points = [{"time": (now - timedelta(minutes=number)).isoformat(), "value": 0.5} for number in (1, 2)]
    answer = operator.send("POST", path, [points[0], {**points[1], "value": -1e30}])
    refused(answer, "invalid_series", "fix the lines listed in errors")
    assert answer.json()["errors"][0]["pointer"].startswith("/1")
    assert done(operator.send("POST", path, points)) == {"points": 2}


# Data sets and agents


def test_a_data_set_of_elsewhere_is_looked_at_where_it_is_stored(api: Api, team: Team) -> None:
    elsewhere = Dataset.objects.create(team=team, name="s3://userdata/books", origin="plain")
    refused(api.send("GET", f"datasets/{elsewhere.id}/preview"), "no_preview", "where it is stored")
    assert done(api.send("GET", f"datasets/{elsewhere.id}"))["name"] == "s3://userdata/books"


def test_a_deleted_teams_uploads_go_to_another_team(
    bucket: str, api_of: Callable, user: User, team: Team, other_team: Team, operator: Api
) -> None:
    members.add_member(other_team, user.username, Role.MEMBER, User.objects.get(username="root"))

    def upload(of: Team) -> Any:
        path = "/api/v1/datasets?name=books&format=text"
        return api_of(user, of).generic("POST", path, b"text\n" * 100, content_type="text/plain")

    client = api_of(user, team)
    done(operator.send("DELETE", f"teams/{team.id}"))
    late = client.generic("POST", "/api/v1/datasets?name=books&format=text", b"text\n" * 100, content_type="text/plain")
    assert late.status_code in (401, 403, 409), late.content
    done(upload(other_team))


def test_an_agents_batch_goes_to_its_own_address_with_its_token(
    bucket: str, world: World, submit: Callable[..., Job]
) -> None:
    attempt = drive.start(submit())
    line = {"time": timezone.now().isoformat(), "rank": 0, "stream": "stdout", "text": "hello"}
    batch = {"writer": "node-0", "sequence": 0, "lines": [line]}
    client = Api()
    post = partial(client.post, data=batch, format="json")
    refused(post("/api/agent/v1/logs"), "token_missing", "bearer token")
    client.credentials(HTTP_AUTHORIZATION=f"Bearer {tokens.issue(attempt.id)}")
    refused(post("/api/agent/v1/metrics"), "wrong_batch", "lines to /logs")
    done(post("/api/agent/v1/logs"))


# What the framework refuses


def test_a_session_sends_its_csrf_token(user: User, team: Team) -> None:
    browser = Client(enforce_csrf_checks=True)
    browser.force_login(user)
    body = {"name": "ci", "team": team.name, "scopes": ["read"]}
    post = partial(browser.post, "/api/v1/tokens", body, content_type="application/json")
    refused(post(), "csrf_failed", "X-CSRFToken")
    token = browser.get("/api/v1/session").json()["csrf_token"]
    done(post(headers={"X-CSRFToken": token}))


def test_a_body_that_broke_off_is_sent_again(api: Api, team: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    body = {"name": "ci", "team": team.name, "scopes": ["read"]}

    def broken(*_arguments: Any) -> bytes:
        raise OSError("connection reset")

    with monkeypatch.context() as reset:
        reset.setattr(FakePayload, "read", broken)
        refused(api.send("POST", "tokens", body), "body_incomplete", "send it again")
    done(api.send("POST", "tokens", body))


def test_an_unexpected_error_names_the_request(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as broken:
        broken.setattr("athanor.api.v1.tokens.TokensView.get", lambda *_: 1 / 0)
        answer = api.send("GET", "tokens")
    refused(answer, "internal_error", "report the request id")
    assert answer.status_code == 500 and answer.json()["request_id"] == answer["X-Request-ID"]
    done(api.send("GET", "tokens"))
