"""/jobs over HTTP: submit, replay, list, show, cancel, fork, plan."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
import yaml
from django.db import connection

from athanor.accounts.models import Role, Team, User
from athanor.backends.fake.backend import World
from athanor.core import ids
from athanor.jobs.models import Job
from athanor.scheduling import services as scheduling
from athanor.telemetry.models import Progress

pytestmark = pytest.mark.django_db


def test_a_submitted_job_is_shown_with_what_was_written_and_what_it_means(api: Any, spec: dict, world: World) -> None:
    answer = api.send("POST", "jobs", spec)
    assert answer.status_code == 201, answer.content
    job = answer.json()
    assert answer["Location"] == f"/api/v1/jobs/{job['id']}"
    assert job["status"] == "queued"
    assert job["spec"] == spec
    assert job["resolved_spec"]["training"]["optimizer"]["name"] == "adamw"
    assert job["resolved_spec"]["training"]["precision"] == "fp32"  # of the pool's CPUs
    shown = api.send("GET", f"jobs/{job['id']}")
    assert shown.json()["id"] == job["id"]
    unchanged = api.send("GET", f"jobs/{job['id']}", if_none_match=shown["ETag"])
    assert unchanged.status_code == 304


def test_a_spec_may_be_sent_as_yaml(api: Any, spec: dict, world: World) -> None:
    body = yaml.safe_dump(spec)
    answer = api.generic("POST", "/api/v1/jobs", body, content_type="application/yaml")
    assert answer.status_code == 201, answer.content


def test_every_mistake_comes_back_as_a_problem(api: Any, spec: dict, world: World) -> None:
    spec["training"] |= {"stepz": 1, "precision": "fp7"}
    answer = api.send("POST", "jobs", spec, x_request_id="my-request-1")
    assert answer.status_code == 422
    assert answer["Content-Type"] == "application/problem+json"
    body = answer.json()
    assert body["code"] == "invalid_spec"
    assert body["request_id"] == "my-request-1" == answer["X-Request-ID"]
    assert {item["pointer"] for item in body["errors"]} == {"/training/stepz", "/training/precision"}
    assert Job.objects.count() == 0


def test_mistakes_of_fields_between_fields_and_of_names_are_reported_together(
    api: Any, spec: dict[str, Any], world: World
) -> None:
    spec["nmae"] = "x"
    spec["resources"] = {"accelerator": "h200", "processes_per_node": 0}
    spec["secrets"] = ["missing"]
    spec["training"] |= {"tokens_per_step": 100, "data": {"source": "dataset:missing"}, "steps": -3}
    body = api.send("POST", "jobs", spec).json()
    assert {item["pointer"]: item["code"] for item in body["errors"]} == {
        "/nmae": "unknown_field",
        "/resources/processes_per_node": "greater_than_equal",
        "/training/steps": "greater_than_equal",
        "/training/tokens_per_step": "value_error",
        "/resources/accelerator": "unknown_accelerator",
        "/training/data/source": "dataset_missing",
        "/secrets/0": "unknown_secret",
    }
    assert body["detail"] == "7 fields of the spec cannot be used"


@pytest.mark.parametrize(
    ("change", "pointer", "code"),
    [
        ({"resources": {"cluster": "fakee"}}, "/resources/cluster", "unknown_cluster"),
        ({"resources": {"cluster": "fake", "accelerator": "h100"}}, "/resources/accelerator", "unknown_accelerator"),
        ({"resources": {"cluster": "fake", "nodes": 2}}, "/resources/nodes", "too_many_nodes"),
        ({"team": "green"}, "/team", "unknown_team"),
    ],
)
def test_what_does_not_exist_or_fit_is_named(
    api: Any, spec: dict, world: World, change: dict, pointer: str, code: str
) -> None:
    body = api.send("POST", "jobs", {**spec, **change}).json()
    assert [(item["pointer"], item["code"]) for item in body["errors"]] == [(pointer, code)]


def test_a_preset_too_large_for_the_machine_says_what_it_needs(api: Any, spec: dict, world: World) -> None:
    spec["training"]["model"] = {"preset": "llama-70b"}
    spec["training"]["tokenizer"] = {"vocab_size": 128_256}
    body = api.send("POST", "jobs", spec).json()
    assert body["errors"][0]["code"] == "does_not_fit"
    assert "GiB" in body["errors"][0]["detail"]


@pytest.mark.parametrize(
    ("source", "code"),
    [
        ("dataset:none", "dataset_missing"),
        ("s3://elsewhere/data", "bucket_not_allowed"),
        ("s3://athanor/jobs", "bucket_not_allowed"),
    ],
)
def test_data_that_cannot_be_used_is_refused_when_submitting(
    api: Any, spec: dict, world: World, source: str, code: str
) -> None:
    spec["training"]["data"] = {"source": source}
    body = api.send("POST", "jobs", spec).json()
    assert [(item["pointer"], item["code"]) for item in body["errors"]] == [("/training/data/source", code)]


def test_more_processes_than_cores_is_allowed_with_a_warning(api: Any, spec: dict, world: World) -> None:
    spec["resources"]["processes_per_node"] = 9
    spec["training"]["tokens_per_step"] = 64 * 9
    answer = api.send("POST", "jobs", spec)
    assert answer.status_code == 201
    assert answer.json()["warnings"][0]["code"] == "oversubscribed"


def test_the_same_key_gives_the_same_job(api: Any, spec: dict, world: World) -> None:
    first = api.send("POST", "jobs", spec, idempotency_key="run-1")
    again = api.send("POST", "jobs", spec, idempotency_key="run-1")
    assert again.status_code == 201
    assert again["Idempotency-Replayed"] == "true"
    assert not first.has_header("Idempotency-Replayed")
    assert again.json()["id"] == first.json()["id"]
    assert Job.objects.count() == 1


def test_the_same_key_with_another_body_is_refused(api: Any, spec: dict, world: World) -> None:
    api.send("POST", "jobs", spec, idempotency_key="run-1")
    answer = api.send("POST", "jobs", {**spec, "name": "other"}, idempotency_key="run-1")
    assert (answer.status_code, answer.json()["code"]) == (422, "idempotency_key_reused")
    assert Job.objects.count() == 1


@pytest.mark.django_db(transaction=True)
def test_the_same_key_from_eight_clients_at_once_gives_one_job(
    api_of: Callable, user: User, team: Team, spec: dict, world: World
) -> None:
    clients = [api_of(user, team) for _ in range(8)]
    barrier = threading.Barrier(8)
    answers: list[Any] = []

    def send(client: Any) -> None:
        try:
            barrier.wait()
            answers.append(client.send("POST", "jobs", spec, idempotency_key="once"))
        finally:
            connection.close()

    threads = [threading.Thread(target=send, args=(client,)) for client in clients]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [answer.status_code for answer in answers] == [201] * 8
    assert len({answer.json()["id"] for answer in answers}) == 1
    assert Job.objects.count() == 1


def test_lists_page_by_cursor_and_filter(api: Any, spec: dict, world: World) -> None:
    for number in range(5):
        api.send("POST", "jobs", {**spec, "name": f"run-{number}", "labels": {"kind": "odd" if number % 2 else "even"}})
    names: list[str] = []
    cursor = ""
    while cursor is not None:
        body = api.send("GET", f"jobs?limit=2&cursor={cursor}").json()
        names += [item["name"] for item in body["items"]]
        cursor = body["next_cursor"]
    assert names == ["run-4", "run-3", "run-2", "run-1", "run-0"]
    odd = api.send("GET", "jobs?label.kind=odd").json()["items"]
    assert [item["name"] for item in odd] == ["run-3", "run-1"]
    assert len(api.send("GET", "jobs?q=RUN-2").json()["items"]) == 1
    wanted = api.send("GET", "jobs?q=RUN-2").json()["items"][0]["id"]
    for part in (wanted, wanted[-6:], wanted[-8:].lower()):
        assert [item["id"] for item in api.send("GET", f"jobs?q={part}").json()["items"]] == [wanted], part
    assert wanted in [item["id"] for item in api.send("GET", f"jobs?q={wanted[:16]}").json()["items"]]
    assert api.send("GET", "jobs?q=job_00000000").json()["items"] == []
    assert api.send("GET", "jobs?status=running,failed").json()["items"] == []
    assert len(api.send("GET", "jobs?created_after=2020-01-01T00:00:00Z").json()["items"]) == 5


def test_lists_are_sorted_by_a_value_page_by_page_and_jobs_without_it_come_last(
    api: Any, spec: dict, world: World
) -> None:
    losses = {"a": 2.5, "b": None, "c": 1.5, "d": 2.5, "e": None, "f": 10.0}
    for name, loss in losses.items():
        job_id = api.send("POST", "jobs", {**spec, "name": name}).json()["id"]
        if loss is not None:
            Progress.objects.create(
                job_id=job_id, step=3, values={"train/loss": loss}, validation_last=loss + 1,
                trained_tokens=100 * loss, trained_seconds=10,
            )  # fmt: skip
    Progress.objects.create(job=Job.objects.get(name="b"), values={})  # before its first report
    for order, names in {
        "loss": "cdafeb", "-loss": "fdaceb", "validation_loss": "cdafeb", "-mean_tokens_per_second": "fdaceb",
        "name": "abcdef", "-name": "fedcba", "created_at": "abcdef", "-created_at": "fedcba", "started_at": "fedcba",
    }.items():  # fmt: skip
        assert "".join(_pages(api, f"sort={order}&limit=2")) == names, order
    assert "".join(_pages(api, "sort=-loss&limit=2&q=d")) == "d"
    refused = api.send("GET", f"jobs?sort=loss&cursor={ids.earliest_id('job', ids.EPOCH)}")
    assert refused.status_code == 422, refused.json()
    assert "start without a cursor" in refused.json()["remedy"]


def _pages(api: Any, query: str) -> list[str]:
    names: list[str] = []
    cursor = ""
    while cursor is not None:
        body = api.send("GET", f"jobs?{query}&cursor={cursor}").json()
        names += [item["name"] for item in body["items"]]
        cursor = body["next_cursor"]
    return names


def test_lists_filter_by_the_person_who_submitted(api: Any, spec: dict, world: World, user: User) -> None:
    mine = api.send("POST", "jobs", spec).json()["id"]
    found = api.send("GET", f"jobs?created_by={user.username}").json()["items"]
    assert [item["id"] for item in found] == [mine]
    assert found[0]["created_by"] == user.username
    assert api.send("GET", "jobs?created_by=@me").json()["items"] == found
    assert api.send("GET", "jobs?created_by=nobody").json()["items"] == []


@pytest.mark.parametrize(
    "query",
    [
        "limit=0",
        "limit=x",
        "limit=201",
        "sort=price",
        "sort=--loss",
        "cursor=nonsense",
        "status=done",
        "created_after=yesterday",
    ],
)
def test_a_bad_parameter_is_named(api: Any, query: str) -> None:
    answer = api.send("GET", f"jobs?{query}")
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["pointer"] == "/" + query.partition("=")[0]


def test_cancel_is_accepted_once_and_repeated_without_effect(api: Any, spec: dict, world: World, bucket: str) -> None:
    job_id = api.send("POST", "jobs", spec).json()["id"]
    first = api.send("POST", f"jobs/{job_id}:cancel")
    assert (first.status_code, first.json()["desired"]) == (202, "stop")
    scheduling.admit()
    again = api.send("POST", f"jobs/{job_id}:cancel")
    assert (again.status_code, again.json()["status"]) == (200, "cancelled")
    assert again.json()["reason"]["code"] == "stopped_by_user"


def test_a_stale_etag_does_not_cancel(api: Any, spec: dict, world: World) -> None:
    job_id = api.send("POST", "jobs", spec).json()["id"]
    answer = api.send("POST", f"jobs/{job_id}:cancel", if_match='W/"0-0-0"')
    assert answer.status_code == 412
    assert Job.objects.get(pk=job_id).desired == "run"


def test_fork_makes_a_new_job_from_the_spec_with_changes(api: Any, spec: dict, world: World) -> None:
    original = api.send("POST", "jobs", spec).json()
    body = {"changes": {"name": "second", "training": {"steps": 20}}}
    answer = api.send("POST", f"jobs/{original['id']}:fork", body, idempotency_key="fork-1")
    assert answer.status_code == 201, answer.content
    fork = answer.json()
    assert (fork["name"], fork["forked_from"]) == ("second", original["id"])
    assert fork["resolved_spec"]["training"]["steps"] == 20
    assert fork["resolved_spec"]["training"]["sequence_length"] == 64
    assert api.send("POST", f"jobs/{original['id']}:fork", body, idempotency_key="fork-1").json()["id"] == fork["id"]


def test_plan_tells_and_makes_nothing(api: Any, spec: dict, world: World) -> None:
    body = api.send("POST", "jobs:plan", spec).json()
    assert body["estimate"]["num_parameters"] == 988_288
    assert body["estimate"]["tokens_total"] == 5120
    assert body["resolved_spec"]["training"]["seed"] == 1
    assert Job.objects.count() == 0


def test_a_viewer_sees_and_changes_nothing(
    api: Any, api_of: Callable, make_user: Callable, team: Team, spec: dict, world: World
) -> None:
    job_id = api.send("POST", "jobs", spec).json()["id"]
    viewer = api_of(make_user("vera", team, Role.VIEWER), team)
    assert viewer.send("GET", f"jobs/{job_id}").status_code == 200
    for path in ("jobs", f"jobs/{job_id}:cancel", f"jobs/{job_id}:fork"):
        assert viewer.send("POST", path, spec).status_code == 403, path
    assert Job.objects.count() == 1
