"""Conventions of the API: sparse fields, entity tags, bulk actions with a result per item, retries."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from athanor.accounts.models import Role, Team, User
from athanor.backends.fake.backend import World
from athanor.jobs.models import Job
from athanor.scheduling import services as scheduling
from deploy.local import checks
from tests.control_plane import drive

pytestmark = pytest.mark.django_db


def test_a_list_answers_only_the_fields_asked_for(api: Any, submit: Callable[..., Job]) -> None:
    job = submit()
    assert api.send("GET", "jobs?fields=id,status").json()["items"] == [{"id": job.id, "status": "queued"}]
    assert api.send("GET", f"jobs/{job.id}?fields=name").json() == {"name": "tiny"}
    usual = api.send("GET", "jobs").json()["items"][0]
    assert "spec" not in usual
    expanded = api.send("GET", "jobs?expand=spec,attempts").json()["items"][0]
    assert set(expanded) - set(usual) == {"spec", "attempts"}


def test_an_unknown_field_is_named_with_those_there_are(api: Any) -> None:
    answer = api.send("GET", "jobs?fields=id,colour")
    assert answer.status_code == 422
    problem = answer.json()["errors"][0]
    assert problem["pointer"] == "/fields"
    assert "'colour'" in problem["detail"]
    assert "status" in problem["detail"]


def test_a_bulk_action_answers_for_each_job(
    api: Any, submit: Callable[..., Job], make_user: Callable[..., User], other_team: Team, api_of: Callable
) -> None:
    first, second = submit(), submit(name="second")
    foreign = api_of(make_user("sam", other_team), other_team)
    gone = "job_" + "0" * 26
    body = {"ids": [second.id, gone, first.id, second.id]}
    items = api.send("POST", "jobs:cancel", body).json()["items"]
    assert [(item["id"], item["status"]) for item in items] == [(second.id, 202), (gone, 404), (first.id, 202)]
    assert items[0]["job"]["desired"] == "stop"
    assert items[1]["problem"]["code"] == "not_found"
    seen = foreign.send("POST", "jobs:pause", {"ids": [first.id]}).json()["items"]
    assert [(item["status"], item["job"]) for item in seen] == [(404, None)]
    refused = api.send("POST", "jobs:resume", {"ids": [first.id]}).json()["items"][0]
    assert (refused["status"], refused["problem"]["code"]) == (409, "job_is_ending")


@pytest.mark.parametrize("ids", [[], ["job_0"] * 201, "job_0", None])
def test_a_bulk_action_without_a_usable_list_does_nothing(api: Any, ids: Any) -> None:
    answer = api.send("POST", "jobs:cancel", {"ids": ids})
    assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, "/ids")


def test_only_a_job_that_has_ended_is_retried(api: Any, submit: Callable[..., Job], world: World) -> None:
    job = submit(labels={"team": "x"})
    early = api.send("POST", f"jobs/{job.id}:retry")
    assert (early.status_code, early.json()["code"]) == (409, "job_not_final")
    api.send("POST", f"jobs/{job.id}:cancel")
    scheduling.admit()
    again = api.send("POST", f"jobs/{job.id}:retry", idempotency_key="again")
    assert again.status_code == 201, again.content
    assert again.json()["forked_from"] == job.id
    assert again.json()["labels"] == {"team": "x"}
    assert api.send("POST", f"jobs/{job.id}:retry", idempotency_key="again").json()["id"] == again.json()["id"]


def test_a_report_of_the_trainer_is_no_reason_to_refuse_a_cancel(
    api: Any, submit: Callable[..., Job], world: World
) -> None:
    job = submit()
    attempt = drive.run(job)
    read = api.send("GET", f"jobs/{job.id}")
    drive.beat(attempt, step=7)
    assert api.send("GET", f"jobs/{job.id}")["ETag"] != read["ETag"]
    assert api.send("POST", f"jobs/{job.id}:cancel", if_match=read["ETag"]).status_code == 202
    late = api.send("POST", f"jobs/{job.id}:pause", if_match=read["ETag"])
    assert (late.status_code, late.json()["code"]) == (412, "changed")


def test_a_change_based_on_an_old_reading_is_refused(
    team: Team, make_user: Callable[..., User], api_of: Callable
) -> None:
    admin = api_of(make_user("root", team, Role.ADMIN), team)
    bob = make_user("bob", team)
    path = f"teams/{team.id}/members/{bob.id}"
    read = admin.send("GET", path)
    assert admin.send("GET", path, if_none_match=read["ETag"]).status_code == 304
    first = admin.send("PATCH", path, {"role": "viewer"}, if_match=read["ETag"])
    assert (first.status_code, first.json()["role"]) == (200, "viewer")
    late = admin.send("PATCH", path, {"role": "admin"}, if_match=read["ETag"])
    assert (late.status_code, late.json()["code"]) == (412, "changed")
    assert admin.send("GET", path).json()["role"] == "viewer"
    assert admin.send("PATCH", path, {"role": "admin"}, if_match=first["ETag"]).status_code == 200


@pytest.mark.parametrize(
    "path", ["jobs?q=%00", "jobs?label.a%00=b", "jobs?team=%00", "jobs/a%00b", "projects?team=%00", "audit?action=%00"]
)
def test_a_nul_in_an_address_is_no_error_of_ours(api: Any, path: str) -> None:
    assert api.send("GET", path).status_code in (200, 403, 404, 422)


@pytest.mark.parametrize("labels", [{"a": "b\x00"}, {"a\x00": "b"}])
def test_a_nul_in_a_body_is_no_error_of_ours(api: Any, spec: dict[str, Any], pool: Any, labels: dict[str, str]) -> None:
    answer = api.send("POST", "jobs", {**spec, "labels": labels})
    assert answer.status_code == 422
    asked = api.send("POST", "metrics:query", {"series": ["a"], "filters": {"labels": labels}})
    assert asked.status_code == 422


def test_an_unknown_query_parameter_is_refused_with_the_nearest_name(api: Any) -> None:
    answer = api.send("GET", "jobs?stauts=failed&limit=3")
    assert (answer.status_code, answer.json()["code"]) == (422, "unknown_parameter")
    assert answer.json()["errors"] == [
        {
            "pointer": "/stauts",
            "code": "unknown_parameter",
            "detail": "unknown query parameter 'stauts'; did you mean 'status'?",
        }
    ]
    assert "known here: none" in api.send("POST", "jobs:plan?x=1", {}).json()["detail"]
    assert api.send("GET", "jobs?label.env=prod").status_code == 200


def test_a_tag_is_found_in_a_list_of_tags(api: Any, submit: Callable[..., Job]) -> None:
    job = submit()
    tag = api.send("GET", f"jobs/{job.id}")["ETag"]
    for known in (tag, f'"a", {tag}, "b"', "*", tag.removeprefix("W/")):
        assert api.send("GET", f"jobs/{job.id}", **{"If_None_Match": known}).status_code == 304
    assert api.send("GET", f"jobs/{job.id}", **{"If_None_Match": '"a", "b"'}).status_code == 200


def test_a_value_that_a_query_parameter_does_not_have_is_refused(api: Any) -> None:
    answer = api.send("GET", "budgets?active=none")
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_parameter")
    assert answer.json()["errors"][0]["detail"] == "active='none' is none of all, true"
    assert api.send("GET", "budgets?active=all").status_code == 200


def test_an_unknown_choice_of_a_body_is_refused_with_those_that_there_are(api: Any) -> None:
    answer = api.send("POST", "tokens", {"name": "x", "scopes": ["read", "write"]})
    assert answer.status_code == 422
    (problem,) = answer.json()["errors"]
    assert problem["pointer"] == "/scopes/1"
    assert problem["detail"].startswith('"write" is none of read, submit, artifacts, admin, ')


# A second one finds what it asks for done already, and changes nothing.
IDEMPOTENT_BY_NATURE = {"admin_orphan_cancel", "jobs_cancel", "jobs_pause", "jobs_resume"}


def test_every_post_that_makes_something_takes_an_idempotency_key() -> None:
    without = []
    for path, operations in json.loads(checks.OPENAPI_DOCUMENT.read_text())["paths"].items():
        operation = operations.get("post", {})
        makes = operation.get("responses", {}).keys() & {"201", "202"}
        parameters = {each["name"] for each in operation.get("parameters", [])}
        if makes and "Idempotency-Key" not in parameters:
            without.append(operation["operationId"])
            continue
        for status in makes:
            assert "Idempotency-Replayed" in operation["responses"][status]["headers"], path
    assert set(without) == IDEMPOTENT_BY_NATURE, "use athanor.api.idempotency"


def test_an_unknown_field_of_a_body_is_refused_with_the_nearest_name(api: Any) -> None:
    answer = api.send("POST", "tokens", {"name": "a", "expires_in_day": 1})
    assert (answer.status_code, answer.json()["errors"]) == (
        422,
        [
            {
                "pointer": "/expires_in_day",
                "code": "unknown_field",
                "detail": "unknown field 'expires_in_day'; did you mean 'expires_in_days'?",
            }
        ],
    )
    assert api.send("POST", "tokens", {"name": "a", "expires_in_days": 1}).status_code == 201, "the remedy"


@pytest.mark.parametrize("value", ["5", True, 1.5, [5]])
def test_a_value_of_another_type_is_not_converted(api: Any, value: Any) -> None:
    answer = api.send("POST", "tokens", {"name": "a", "expires_in_days": value})
    assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, "/expires_in_days")
    assert "is not a whole number" in answer.json()["errors"][0]["detail"]


@pytest.mark.parametrize("time", ["0154-02-05T17:53:56%2B19:25", "2026-01-31T12:00:00-23:48", "0001-01-01T00:00:00Z"])
def test_a_time_of_a_zone_that_the_database_refuses_is_no_error_of_ours(api: Any, time: str) -> None:
    assert api.send("GET", f"jobs?created_after={time}").status_code == 200
    early = api.send("GET", "jobs?created_after=0001-01-01T00:00:00%2B01:00")
    assert (early.status_code, early.json()["errors"][0]["pointer"]) == (422, "/created_after")
