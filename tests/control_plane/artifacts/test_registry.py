"""The model registry: versions are registered once and never change, aliases move, and what is registered stays."""

import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.db import transaction
from django.utils import timezone

from athanor.accounts.models import AuditEvent, Team, User
from athanor.accounts.roles import Role
from athanor.artifacts import deletions, registry, storage, unreferenced
from athanor.artifacts.models import Artifact, Checkpoint, ModelVersion, RegisteredModel
from athanor.backends.fake.backend import World
from athanor.dispatch import finalise
from athanor.jobs import event_feed
from athanor.jobs.models import Job, JobEvent, Project
from athanor.webhooks import publishing
from athanor.webhooks import services as webhooks
from athanor.webhooks.models import Delivery
from deploy.local.handle import wait_until
from tests.control_plane import drive
from tests.control_plane.answers import done, refused
from tests.control_plane.artifacts.test_base_models import FILES, finished_model, going_on, started
from tests.control_plane.artifacts.test_project_deletions import in_thread, is_blocked
from tests.control_plane.conftest import Api
from trainer.contract.run import EndClass

pytestmark = pytest.mark.django_db
Submit = Callable[..., Job]


def registered(api: Api, artifact: Artifact, alias: str | None = None, name: str = "bot") -> dict[str, Any]:
    """Register an artifact as the next version of a model, which is created if need be. Return the version."""
    found = done(api.send("GET", f"models?name={name}"))["items"]
    model = found[0] if found else done(api.send("POST", "models", {"name": name}))
    body = {"artifact": artifact.id, **({"alias": alias} if alias else {})}
    version: dict[str, Any] = done(api.send("POST", f"models/{model['id']}/versions", body))
    return version


def ended(attempt: Any, world: World) -> Job:
    """The job after its attempt, which has a model, has completed."""
    drive.report(attempt, EndClass.COMPLETED)
    world.finish(attempt.backend_name, 0)
    drive.settle()
    return Job.objects.get(pk=attempt.job_id)


def test_a_version_names_the_export_and_never_changes(api: Api, submit: Submit, user: User, bucket: str) -> None:
    artifact, job = finished_model(submit)
    version = registered(api, artifact)
    assert version["number"] == 1
    assert (version["job"]["id"], version["attempt"], version["step"]) == (job.id, 1, 10)
    assert (version["artifact"], version["created_by"]) == (artifact.id, user.username)
    assert len(version["digest"]) == 64
    again = api.send("POST", f"models/{version['model']['id']}/versions", {"job": job.id})
    assert (again.status_code, again.json()["number"]) == (200, 1)
    second, _ = finished_model(submit)
    newer = registered(api, second)
    assert (newer["number"], newer["digest"] != version["digest"]) == (2, True)
    shown = done(api.send("GET", f"models/{version['model']['id']}/versions"))["items"]
    assert [each["number"] for each in shown] == [2, 1]
    page = done(api.send("GET", f"models/{version['model']['id']}/versions?limit=1"))
    assert page["next_cursor"] == "2"
    rest = done(api.send("GET", f"models/{version['model']['id']}/versions?limit=1&cursor=2"))
    assert ([each["number"] for each in rest["items"]], rest["next_cursor"]) == ([1], None)


def test_the_number_of_a_deleted_version_is_not_used_again(api: Api, submit: Submit, bucket: str) -> None:
    artifact, _ = finished_model(submit)
    version = registered(api, artifact)
    model = version["model"]["id"]
    done(api.send("DELETE", f"models/{model}/versions/1"))
    assert registered(api, artifact)["number"] == 2
    assert done(api.send("GET", f"models/{model}"))["last_version"] == 2
    actions = [event.action for event in AuditEvent.objects.filter(target_id=model).order_by("seq")]
    assert actions == ["model.create", "model.register", "model.version_delete", "model.register"]


def test_an_alias_is_moved_once_and_the_move_is_recorded_and_sent(
    api: Api, submit: Submit, user: User, team: Team, bucket: str
) -> None:
    webhooks.create(team, url="https://example.org/", name="", types=["model"], actor=user)
    one, _ = finished_model(submit)
    two, job = finished_model(submit)
    model = registered(api, one, "production")["model"]["id"]
    registered(api, two)
    for _ in range(2):
        moved = done(api.send("PUT", f"models/{model}/aliases/production", {"version": 2}))
    assert (moved["name"], moved["version"], moved["moved_by"]) == ("production", 2, user.username)
    (event,) = JobEvent.objects.filter(job=job, type="model.alias_moved")
    assert event.data == {
        "model": model, "name": "bot", "alias": "production", "version": 2, "previous_version": 1,
    }  # fmt: skip
    record = AuditEvent.objects.filter(action="model.alias_move").latest("seq")
    assert (record.before, record.after) == (
        {"alias": "production", "version": 1}, {"alias": "production", "version": 2},
    )  # fmt: skip
    assert AuditEvent.objects.filter(action="model.alias_move").count() == 2
    event_feed.assign_numbers()
    publishing.publish_due()
    types = list(Delivery.objects.filter(team=team).order_by("team_seq").values_list("event_type", flat=True))
    assert types == ["model.registered", "model.alias_moved", "model.registered", "model.alias_moved"]


def test_an_alias_of_a_version_that_does_not_exist_is_refused(api: Api, submit: Submit, bucket: str) -> None:
    artifact, _ = finished_model(submit)
    model = registered(api, artifact)["model"]["id"]
    answer = api.send("PUT", f"models/{model}/aliases/production", {"version": 7})
    refused(answer, "unknown_version", "athanor model show bot")
    assert not done(api.send("GET", f"models/{model}"))["aliases"]
    assert api.send("DELETE", f"models/{model}/aliases/production").status_code == 404


def test_a_removed_alias_is_an_event_and_the_version_stays(api: Api, submit: Submit, bucket: str) -> None:
    artifact, job = finished_model(submit)
    model = registered(api, artifact, "production")["model"]["id"]
    done(api.send("DELETE", f"models/{model}/aliases/production"))
    assert JobEvent.objects.get(job=job, type="model.alias_removed").data["version"] == 1
    assert done(api.send("GET", f"models/{model}/versions/1"))["aliases"] == []


@pytest.mark.parametrize(("kind", "code"), [("log", "not_a_model"), ("model", "invalid_version")])
def test_what_cannot_be_registered(kind: str, code: str, api: Api, submit: Submit, bucket: str) -> None:
    artifact, job = finished_model(submit)
    Artifact.objects.filter(pk=artifact.pk).update(kind=kind)
    model = done(api.send("POST", "models", {"name": "bot"}))["id"]
    body = {"artifact": artifact.id} if kind == "log" else {"artifact": artifact.id, "job": job.id}
    assert api.send("POST", f"models/{model}/versions", body).json()["code"] == code
    assert not ModelVersion.objects.exists()


def test_a_model_is_created_with_its_first_version_or_not_at_all(
    api: Api, submit: Submit, other_team: Team, bucket: str
) -> None:
    artifact, job = finished_model(submit)
    made = done(api.send("POST", "models", {"name": "bot", "job": job.id, "alias": "candidate", "tags": ["chat"]}))
    assert [(alias["name"], alias["version"]) for alias in made["aliases"]] == [("candidate", 1)]
    assert (made["versions"], made["last_version"], made["tags"]) == (1, 1, ["chat"])
    assert done(api.send("GET", f"models/{made['id']}/versions/1"))["artifact"] == artifact.id
    actions = [event.action for event in AuditEvent.objects.filter(target_id=made["id"]).order_by("seq")]
    assert actions == ["model.create", "model.register", "model.alias_move"]

    def refuse(code: str, **body: Any) -> None:
        refused(api.send("POST", "models", {"name": "new", **body}), code)
        assert done(api.send("GET", "models?name=new"))["items"] == [], "nothing is half-registered"

    refuse("no_model", job=submit().id)
    refuse("invalid_version", alias="candidate")
    refuse("invalid_version", artifact=artifact.id, job=job.id)
    refused(api.send("POST", "models", {"name": "bot", "job": job.id}), "model_exists")
    Artifact.objects.filter(pk=artifact.pk).update(kind="log")
    refuse("not_a_model", artifact=artifact.id)
    Artifact.objects.filter(pk=artifact.pk).update(kind="model")
    Job.objects.filter(pk=job.pk).update(team=other_team)
    assert api.send("POST", "models", {"name": "new", "artifact": artifact.id}).status_code == 404


def test_a_job_without_an_export_and_a_deleted_one_are_refused(
    api: Api, submit: Submit, user: User, bucket: str
) -> None:
    model = done(api.send("POST", "models", {"name": "bot"}))["id"]
    refused(api.send("POST", f"models/{model}/versions", {"job": submit().id}), "no_model", "output.register")
    artifact, _ = finished_model(submit)
    Job.objects.filter(pk=artifact.job_id).update(status="succeeded")
    deletions.delete(artifact, user)
    assert api.send("POST", f"models/{model}/versions", {"artifact": artifact.id}).status_code == 404


def test_viewers_read_and_other_teams_see_nothing(
    api: Api, submit: Submit, team: Team, other_team: Team, make_user: Callable[..., User],
    api_of: Callable[[User, Team], Api], bucket: str,
) -> None:  # fmt: skip
    artifact, _ = finished_model(submit)
    model = registered(api, artifact, "production")["model"]["id"]
    viewer = api_of(make_user("vera", team, Role.VIEWER), team)
    assert done(viewer.send("GET", f"models/{model}"))["name"] == "bot"
    stranger = api_of(make_user("bob", other_team), other_team)
    writes = (
        ("PATCH", "", {"card": "mine"}), ("DELETE", "", None), ("POST", "/versions", {"artifact": artifact.id}),
        ("DELETE", "/versions/1", None), ("PUT", "/aliases/production", {"version": 1}),
        ("DELETE", "/aliases/production", None),
    )  # fmt: skip
    for method, path, body in writes:
        assert viewer.send(method, f"models/{model}{path}", body).status_code == 403, path
        assert stranger.send(method, f"models/{model}{path}", body).status_code == 404, path
    for path in ("", "/versions", "/versions/1", "/deletion", "/versions/1/deletion"):
        assert stranger.send("GET", f"models/{model}{path}").status_code == 404
    assert done(stranger.send("GET", "models?name=bot"))["items"] == []
    own = done(stranger.send("POST", "models", {"name": "bot"}))["id"]  # names are unique in a team only
    assert stranger.send("POST", f"models/{own}/versions", {"artifact": artifact.id}).status_code == 404
    answer = stranger.send("POST", "jobs", going_on("model:bot@production"))
    assert "has no alias 'production'" in answer.json()["errors"][0]["detail"]


def test_a_card_and_tags_are_changed_and_a_name_is_given_once(api: Api) -> None:
    model = done(api.send("POST", "models", {"name": "bot", "tags": ["chat", "chat", "german"]}))
    assert model["tags"] == ["chat", "german"]
    card = "# Bot\n\nAnswers <b>questions</b>.\n"
    assert done(api.send("PATCH", f"models/{model['id']}", {"card": card}))["tags"] == ["chat", "german"]
    assert done(api.send("GET", f"models/{model['id']}"))["card"] == card
    refused(api.send("POST", "models", {"name": "bot"}), "model_exists", "register a version")


def test_the_spec_registers_the_export_once(api: Api, submit: Submit, world: World, user: User, bucket: str) -> None:
    output = {"register": "bot", "alias": "candidate"}
    attempt = drive.run(submit(output=output))
    drive.register_model(attempt)
    job = ended(attempt, world)
    assert job.status == "succeeded"
    (model,) = done(api.send("GET", "models"))["items"]
    assert (model["name"], model["versions"], model["created_by"]) == ("bot", 1, user.username)
    assert [(each["name"], each["version"]) for each in model["aliases"]] == [("candidate", 1)]
    Job.objects.filter(pk=job.pk).update(status="running")  # as if a crash had lost the last transition
    finalise.finalise_due()
    assert Job.objects.get(pk=job.pk).status == "succeeded"
    assert (ModelVersion.objects.count(), RegisteredModel.objects.get().last_version) == (1, 1)
    assert JobEvent.objects.filter(job=job, type__startswith="model.").count() == 2
    sequence = list(JobEvent.objects.filter(job=job).order_by("seq").values_list("seq", flat=True))
    assert sequence == list(range(1, len(sequence) + 1))
    drive.end(world, drive.run(submit(output=output)), EndClass.COMPLETED)
    (model,) = done(api.send("GET", "models"))["items"]
    assert [(each["name"], each["version"]) for each in model["aliases"]] == [("candidate", 2)]


def test_a_job_that_fails_registers_nothing(submit: Submit, world: World, bucket: str) -> None:
    attempt = drive.run(submit(output={"register": "bot"}, retry={"max_charged": 0}))
    drive.register_model(attempt)
    drive.end(world, attempt, EndClass.OUT_OF_MEMORY)
    assert Job.objects.get(pk=attempt.job_id).status == "failed"
    assert not RegisteredModel.objects.exists()


@pytest.mark.parametrize(
    ("output", "pointer"),
    [({"alias": "candidate"}, "/output/alias"), ({"register": "a b"}, "/output/register"),
     ({"register": "bot", "alias": "3"}, "/output/alias")],
)  # fmt: skip
def test_a_wrong_output_is_refused(output: dict[str, str], pointer: str, api: Api, spec: Any, pool: Any) -> None:
    answer = api.send("POST", "jobs", {**spec, "output": output})
    assert answer.status_code == 422
    assert [each["pointer"] for each in answer.json()["errors"]] == [pointer]


def test_a_base_by_alias_is_fixed_when_the_job_is_submitted(
    api: Api, submit: Submit, world: World, bucket: str
) -> None:
    one, _ = finished_model(submit)
    two, _ = finished_model(submit)
    model = registered(api, one, "production")["model"]["id"]
    registered(api, two)
    attempt = started(api, "model:bot@production")
    assert attempt.job.resolved_spec["training"]["model"]["base"] == f"model:{one.id}"
    done(api.send("PUT", f"models/{model}/aliases/production", {"version": 2}))
    drive.end(world, attempt, EndClass.BAD_SPEC)
    path = f"jobs/{attempt.job_id}"
    again = done(api.send("POST", f"{path}:retry"))
    assert Job.objects.get(pk=again["id"]).resolved_spec["training"]["model"]["base"] == f"model:{one.id}"
    forked = done(api.send("POST", f"{path}:fork", {}))
    assert Job.objects.get(pk=forked["id"]).resolved_spec["training"]["model"]["base"] == f"model:{two.id}"
    by_number = started(api, "model:bot@2")
    assert by_number.job.resolved_spec["training"]["model"]["base"] == f"model:{two.id}"


@pytest.mark.parametrize(
    ("base", "words"),
    [
        ("model:none@production", "athanor model list"),
        ("model:bot@staging", "its aliases: production"),
        ("model:bot@9", "no version 9"),
        ("model:bot@99999999999999999999", "no version 99999999999999999999"),
        ("model:bot@", "its aliases: production"),
    ],
)
def test_an_unknown_base_is_refused_with_what_there_is(
    base: str, words: str, api: Api, submit: Submit, bucket: str
) -> None:
    artifact, _ = finished_model(submit)
    registered(api, artifact, "production")
    answer = api.send("POST", "jobs", going_on(base))
    (problem,) = answer.json()["errors"]
    assert (answer.status_code, problem["pointer"], problem["code"]) == (422, "/training/model/base", "base_not_found")
    assert words in problem["detail"]


def test_what_is_registered_outlives_its_job_and_then_goes_with_it(
    api: Api, submit: Submit, world: World, user: User, bucket: str
) -> None:
    artifact, job = finished_model(submit)
    Checkpoint.objects.filter(job=job).delete()
    ended(artifact.attempt, world)
    version = registered(api, artifact)
    refused(api.send("DELETE", f"artifacts/{artifact.id}"), "registered_version", "athanor model delete bot 1")
    preview = done(api.send("GET", f"jobs/{job.id}/deletion"))
    assert (preview["artifacts"], preview["registered"]) == (0, ["bot@1"])
    deletions.delete(job, user, permanently=True)
    deletions.purge_due()
    unreferenced.sweep(timezone.now() + timezone.timedelta(days=365))
    download = done(api.send("POST", f"artifacts/{version['artifact']}:download"))
    assert {file["path"] for file in download["files"]} == set(FILES)
    keys = [part["key"] for file in download["files"] for part in file["parts"]]
    assert all(storage.size_of(key) is not None for key in keys)
    archive = api.get(f"/api/v1/artifacts/{artifact.id}/archive")
    assert FILES["model.safetensors"] in b"".join(archive.streaming_content)
    done(api.send("DELETE", f"models/{version['model']['id']}/versions/1"))
    deletions.delete(Artifact.objects.get(pk=artifact.pk), user, permanently=True)
    deletions.purge_due()
    assert all(storage.size_of(key) is None for key in keys)


def test_a_version_with_an_alias_or_an_unfinished_user_is_not_deleted(
    api: Api, submit: Submit, world: World, bucket: str
) -> None:
    artifact, _ = finished_model(submit)
    model = registered(api, artifact, "production")["model"]["id"]
    attempt = started(api, "model:bot@production")
    for path in (f"models/{model}", f"models/{model}/versions/1"):
        refused(api.send("DELETE", path), "model_in_use", "athanor model alias bot ALIAS --remove")
    done(api.send("DELETE", f"models/{model}/aliases/production"))
    for path in (f"models/{model}", f"models/{model}/versions/1"):
        refused(api.send("DELETE", path), "model_in_use", "cancel them")
        preview = done(api.send("GET", f"{path}/deletion"))
        assert [each["id"] for each in preview["blocked_by"]] == [attempt.job_id]
        assert [each["number"] for each in preview["versions"]] == [1]
    drive.register_model(attempt)
    ended(attempt, world)
    assert [each["id"] for each in done(api.send("GET", f"models/{model}/deletion"))["used_by"]] == [attempt.job_id]
    done(api.send("DELETE", f"models/{model}"))
    assert not ModelVersion.objects.exists()
    record = AuditEvent.objects.get(action="model.delete")
    assert json.loads(json.dumps(record.before))["artifacts"] == [artifact.id]
    assert Artifact.objects.get(pk=artifact.pk).deletion is None


@pytest.mark.django_db(transaction=True)
def test_a_deletion_waits_for_a_registration_under_way(submit: Submit, team: Team, user: User, bucket: str) -> None:
    artifact, job = finished_model(submit)
    Job.objects.filter(pk=job.pk).update(status="succeeded", project="vision")
    project = Project.objects.create(team=team, name="vision")
    model = registry.create(team, user, name="bot")
    is_registered, may_commit = threading.Event(), threading.Event()

    def register_slowly() -> None:
        with transaction.atomic():
            registry.register(model, artifact, user)
            is_registered.set()
            may_commit.wait(20)

    with ThreadPoolExecutor(2) as pool:
        registration = pool.submit(in_thread, register_slowly)
        assert is_registered.wait(20)
        deletion = pool.submit(in_thread, lambda: deletions.delete(project, user))
        wait_until(lambda: is_blocked() or deletion.done(), "the deletion waits", 20)
        assert not deletion.done()
        may_commit.set()
        registration.result(20)
        deletion.result(20)
    assert Artifact.objects.get(pk=artifact.pk).deletion is None
