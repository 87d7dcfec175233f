"""Jobs that export a stored checkpoint: what is fixed and read, what is refused, and how long the checkpoint stays."""

import copy
from collections.abc import Callable
from typing import Any

import pytest

from athanor.accounts.models import Team, User
from athanor.artifacts import checkpoint_states, deletions, services, storage
from athanor.artifacts.models import Artifact, Checkpoint, ModelVersion
from athanor.backends.fake.backend import World
from athanor.core.errors import Conflict, Invalid
from athanor.jobs.models import Attempt, Job
from athanor.scheduling import services as scheduling
from tests.control_plane import drive
from tests.control_plane.answers import done
from tests.control_plane.api.test_agent import stored_part
from tests.control_plane.artifacts.test_base_models import agent_answer
from tests.control_plane.artifacts.test_lineage import edges, lineage
from tests.control_plane.artifacts.test_replays import checkpoint, problem_of, replay, trained
from tests.control_plane.conftest import SPEC, Api
from trainer.contract.encryption import Encryptor
from trainer.contract.manifest import ModelManifest, StoredFile
from trainer.contract.run import EndClass, RunConfig

pytestmark = pytest.mark.django_db


def export(job: str, step: int = 20, **changes: Any) -> dict[str, Any]:
    return {"name": "export", "resources": SPEC["resources"], "export": {"job": job, "step": step}, **changes}


def exporting(api: Api, job: Job, step: int = 20, **changes: Any) -> Attempt:
    """A started attempt of a job that exports a checkpoint."""
    made = done(api.send("POST", "jobs", export(job.id, step, **changes)))
    return drive.start(Job.objects.get(pk=made["id"]))


def register_model(attempt: Attempt, step: int) -> Artifact:
    files = [StoredFile(path="model.safetensors", parts=[stored_part(attempt, "model/model.safetensors", b"weights")])]
    manifest = ModelManifest(
        job_id=attempt.job_id, attempt_id=attempt.id, step=step, num_parameters=10,
        created_at=attempt.created_at, files=[each.model_copy(update={"plaintext_sha256": "a" * 64}) for each in files],
    )  # fmt: skip
    return services.register_model(attempt, manifest)


def finish(world: World, attempt: Attempt, step: int) -> Artifact:
    """The artifact of an attempt that exports the checkpoint and ends."""
    artifact = register_model(attempt, step)
    drive.report(attempt, EndClass.COMPLETED)
    world.finish(attempt.backend_name, 0)
    drive.settle()
    assert drive.status_of(attempt.job) == ("succeeded", "completed")
    return artifact


def refused(answer: Any) -> tuple[str, str]:
    """The code and the detail of a refusal."""
    assert answer.status_code == 409, answer.content
    return answer.json()["code"], answer.json()["detail"]


def cancel(api: Api, world: World, job_id: str) -> None:
    """Cancel a job, and let its attempt end if it has one."""
    done(api.send("POST", f"jobs/{job_id}:cancel"))
    scheduling.admit()
    drive.settle()
    for attempt in Attempt.objects.filter(job=job_id, job__finished_at=None):
        world.finish(attempt.backend_name, 0)
        drive.settle()


def stored_steps(job: Job) -> list[int]:
    rows = Checkpoint.objects.filter(job=job, retired_at=None)
    return sorted(rows.values_list("step", flat=True))


def started(submit: Callable[..., Job], *steps: int, keep_last: int = 2) -> tuple[Job, Attempt]:
    """A running job that has saved checkpoints of these steps."""
    job = submit(checkpoint={"every_steps": 10, "keep_last": keep_last})
    attempt = drive.run(job)
    for step in steps:
        checkpoint(attempt, step)
    return job, attempt


def test_an_export_has_the_training_of_the_job_and_reads_its_checkpoint(api: Api, world: World, bucket: str) -> None:
    job = trained(api, world, 10, 20, 30)
    attempt = exporting(api, job)
    row = Checkpoint.objects.get(job=job, step=20)
    resolved = Job.objects.get(pk=attempt.job_id).resolved_spec
    assert resolved["export"] == {"job": job.id, "step": 20, "checkpoint": row.id}
    assert resolved["training"] == job.resolved_spec["training"]
    assert attempt.job.dataset_ids == job.dataset_ids
    sent = agent_answer(attempt, "run").json()
    assert sent["training"] is None and sent["exported"], "a trainer of an earlier version would train"
    config = RunConfig.model_validate(sent)
    assert config.export is not None and config.resume is None and not config.trains
    assert (config.export.job_id, config.export.checkpoint.step) == (job.id, 20)
    keys = agent_answer(attempt, "keys").json()
    (part,) = config.export.checkpoint.files[0].parts
    assert Encryptor(keys["replayed"]).decrypt(storage.get(part.key) or b"", part) == b"state"
    for other in Checkpoint.objects.filter(job=job):
        key = other.manifest["files"][0]["parts"][0]["key"]
        answer = agent_answer(attempt, "storage:presign", {"operation": "get", "keys": [key]})
        assert answer.status_code == (200 if other.step == 20 else 403), other.step


def test_other_processes_take_the_default_parallelism(api: Api, world: World, bucket: str) -> None:
    spec = copy.deepcopy(SPEC)
    spec["resources"] = {**spec["resources"], "processes_per_node": 2}
    spec["training"] = {**spec["training"], "parallelism": {"tensor": 2}}
    job = trained(api, world, 20, resources=spec["resources"], training=spec["training"])
    alike = exporting(api, job, resources=spec["resources"]).job
    assert alike.resolved_spec["training"]["parallelism"]["tensor"] == 2
    other = exporting(api, job, resources={**spec["resources"], "processes_per_node": 1}).job
    assert other.resolved_spec["training"]["parallelism"]["tensor"] == 1


def test_the_version_of_an_export_names_its_training_and_step(api: Api, world: World, team: Team, bucket: str) -> None:
    job = trained(api, world, 10, 20)
    attempt = exporting(api, job, 10, output={"register": "bot", "alias": "candidate"})
    artifact = finish(world, attempt, 10)
    version = ModelVersion.objects.get(artifact=artifact)
    row = Checkpoint.objects.get(job=job, step=10)
    assert (version.model.name, version.number) == ("bot", 1)
    up = lineage(api, artifact.id, "&direction=up")
    found = edges(up)
    assert {(attempt.job_id, "exports", row.id), (row.id, "made_by", job.id)} <= found
    assert (job.id, "trained_on", job.dataset_id) in found
    assert not [edge for edge in found if edge[0] == attempt.job_id and edge[1] != "exports"]
    assert (attempt.job_id, "exports", row.id) in edges(lineage(api, job.id, "&direction=down"))
    Checkpoint.objects.filter(pk=row.pk).update(retired_at=row.created_at)
    assert (attempt.job_id, "exports", row.id) in edges(lineage(api, job.id, "&direction=down")), "retired since"
    path = f"models/{version.model_id}/versions/1"
    build = done(api.send("GET", f"{path}/documentation"))
    facts = {fact["name"]: fact for item in build["items"] for fact in item["facts"]}
    assert facts["Steps in the model, of those in the spec"]["value"].startswith("10 of ")
    assert facts["Job"]["of"] == job.id
    assert facts["Exported checkpoint, exported by"]["value"] == f"{row.id}, export ({attempt.job_id})"


@pytest.mark.parametrize(
    ("step", "state", "code", "says"),
    [
        (
            15,
            {},
            "unknown_step",
            "no checkpoint of step 15; stored intact checkpoints are those of the steps 30, 20",
        ),
        (10, {"damaged_at": "2026-01-01T00:00:00Z", "damage": "bits"}, "checkpoint_damaged", "is damaged: bits"),
        (10, {"retired_at": "2026-01-01T00:00:00Z"}, "checkpoint_retired", "was retired"),
        (10, {"diverged_at": "2026-01-01T00:00:00Z"}, "checkpoint_diverged", "the loss diverged"),
    ],
)
def test_a_checkpoint_that_is_not_stored_is_refused(
    api: Api, world: World, bucket: str, step: int, state: dict[str, Any], code: str, says: str
) -> None:
    job = trained(api, world, 10, 20, 30)
    Checkpoint.objects.filter(job=job, step=10).update(**state)
    found = problem_of(api.send("POST", "jobs", export(job.id, step)))
    assert found[:2] == ("/export/step", code)
    assert says in found[2] and "30, 20" in found[2]


def test_a_deleted_checkpoint_is_refused_with_how_to_restore_it(
    api: Api, world: World, user: User, bucket: str
) -> None:
    job = trained(api, world, 10, 20)
    deletion = deletions.delete(Checkpoint.objects.get(job=job, step=20), user)
    pointer, code, detail = problem_of(api.send("POST", "jobs", export(job.id)))
    assert (pointer, code) == ("/export/step", "checkpoint_deleted")
    assert f"athanor trash restore {deletion.id}" in detail
    deletions.restore(deletion, user)
    assert done(api.send("POST", "jobs", export(job.id)))["id"]


def test_a_job_of_another_team_is_refused_like_an_unknown_one(
    api: Api, api_of: Callable[..., Api], make_user: Callable[..., User], other_team: Team, world: World, bucket: str
) -> None:
    job = trained(api, world, 10, 20)
    other_api = api_of(make_user("bob", other_team), other_team)
    unknown = "job_01JGZ6W8Q4T0V5N2X3Y7ABCDEF"
    theirs, none = (problem_of(other_api.send("POST", "jobs", export(each))) for each in (job.id, unknown))
    assert theirs[:2] == none[:2] == ("/export/job", "unknown_job")
    assert theirs[2].replace(job.id, unknown) == none[2]


def test_a_job_is_named_by_its_name_while_there_is_one(api: Api, world: World, bucket: str) -> None:
    job = trained(api, world, 10, 20)
    made = done(api.send("POST", "jobs", export("original")))
    assert made["resolved_spec"]["export"]["job"] == job.id
    other = trained(api, world, 10, 20)
    pointer, code, detail = problem_of(api.send("POST", "jobs", export("original")))
    assert (pointer, code) == ("/export/job", "ambiguous_job") and job.id in detail and other.id in detail
    cancel(api, world, made["id"])
    again = done(api.send("POST", f"jobs/{made['id']}:retry"))
    assert again["resolved_spec"]["export"]["job"] == job.id


@pytest.mark.parametrize("task", ["replay", "export", "prepare"])
def test_a_job_without_checkpoints_is_refused(api: Api, world: World, bucket: str, task: str) -> None:
    job = trained(api, world, 10, 20)
    prepare = {"data": SPEC["training"]["data"]}
    specs = {
        "replay": replay(job.id), "export": export(job.id),
        "prepare": {"name": "prepare", "resources": SPEC["resources"], "prepare": prepare},
    }  # fmt: skip
    made = done(api.send("POST", "jobs", specs[task]))
    pointer, code, detail = problem_of(api.send("POST", "jobs", export(made["id"])))
    assert (pointer, code) == ("/export/job", "no_checkpoints")
    assert detail.startswith(made["id"]) and "name the job that trained the model" in detail


@pytest.mark.parametrize(
    ("changes", "pointer", "says"),
    [
        ({"training": SPEC["training"]}, "", "give exactly one of"),
        ({"data": {"source": "builtin:text"}}, "/data", "unknown field"),
        ({"export": {"job": "JOB", "step": 20, "data": {}}}, "/export/data", "unknown field"),
        ({"export": {"job": "JOB", "step": 20, "checkpoint": "ckp_1"}}, "/export/checkpoint", "set by the platform"),
        ({"export": {"job": "JOB", "step": 0}}, "/export/step", "1"),
        ({"export": {"job": "JOB"}}, "/export/step", ""),
    ],
)
def test_fields_that_do_not_belong_are_refused(
    api: Api, world: World, bucket: str, changes: dict[str, Any], pointer: str, says: str
) -> None:
    job = trained(api, world, 10, 20)
    spec = {**export(job.id), **copy.deepcopy(changes)}
    spec["export"]["job"] = job.id
    found = problem_of(api.send("POST", "jobs", spec))
    assert found[0] == pointer and says in found[2]


def test_another_step_is_not_registered(api: Api, world: World, bucket: str) -> None:
    attempt = exporting(api, trained(api, world, 10, 20))
    with pytest.raises(Invalid, match="exports the checkpoint of 20"):
        register_model(attempt, 10)


@pytest.mark.parametrize("end", ["completed", "cancelled", "failed"])
def test_retention_leaves_a_checkpoint_until_its_export_has_ended(
    api: Api, world: World, submit: Callable[..., Job], bucket: str, end: str
) -> None:
    job, training = started(submit, 10, 20)
    made = done(api.send("POST", "jobs", export(job.id, 10)))
    row = Job.objects.get(pk=made["id"])
    for step in (30, 40):
        checkpoint(training, step)
    assert stored_steps(job) == [10, 30, 40]
    assert services.sweep_retired() == 1
    if end == "cancelled":
        cancel(api, world, row.id)
    else:
        attempt = drive.start(row)
        assert stored_steps(job) == [10, 30, 40]
        if end == "completed":
            finish(world, attempt, 10)
        else:
            drive.end(world, attempt, EndClass.BAD_SPEC)
    row.refresh_from_db()
    assert row.finished_at is not None, row.status
    assert stored_steps(job) == [30, 40]


def test_retention_leaves_the_checkpoints_of_a_replay_until_it_has_ended(api: Api, world: World, bucket: str) -> None:
    job = trained(api, world, 10, 20, 30)
    made = done(api.send("POST", "jobs", replay(job.id, segments=2)))
    spec = {**job.resolved_spec, "checkpoint": {**job.resolved_spec["checkpoint"], "keep_last": 1}}
    Job.objects.filter(pk=job.pk).update(resolved_spec=spec)
    checkpoint(Attempt.objects.get(job=job), 40)
    assert stored_steps(job) == [10, 20, 30, 40]
    cancel(api, world, made["id"])
    assert stored_steps(job) == [40]


def test_what_an_unfinished_export_reads_is_neither_deleted_nor_retired(
    api: Api, world: World, user: User, bucket: str
) -> None:
    job = trained(api, world, 10, 20)
    made = done(api.send("POST", "jobs", export(job.id)))
    read, other = Checkpoint.objects.get(job=job, step=20), Checkpoint.objects.get(job=job, step=10)
    for target in (f"checkpoints/{read.id}", f"jobs/{job.id}"):
        shown = done(api.send("GET", f"{target}/deletion"))
        assert [each["id"] for each in shown["blocked_by"]] == [made["id"]]
        code, detail = refused(api.send("DELETE", target))
        assert code == "still_needed" and made["id"] in detail
    with pytest.raises(Conflict, match=made["id"]):
        checkpoint_states.retire(read, "too large", user)
    checkpoint_states.retire(other, "too large", user)
    cancel(api, world, made["id"])
    checkpoint_states.retire(read, "too large", user)


def test_a_checkpoint_that_is_retired_while_the_job_is_submitted_is_refused(
    api: Api, world: World, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from athanor.artifacts import submissions

    job, validate = trained(api, world, 10, 20), submissions.validate_submission

    def retire_then(*arguments: Any) -> Any:
        submission = validate(*arguments)
        Checkpoint.objects.filter(job=job, step=20).update(retired_at=job.created_at)
        return submission

    monkeypatch.setattr(submissions, "validate_submission", retire_then)
    code, detail = refused(api.send("POST", "jobs", export(job.id)))
    assert code == "checkpoint_retired" and job.id in detail
    assert not Job.objects.filter(name="export").exists()
