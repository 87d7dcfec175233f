"""Replay jobs: which segments are chosen, what an attempt may read, and that results are those of its own job."""

import copy
from collections.abc import Callable
from typing import Any

import pytest

from athanor.accounts.models import Team, User
from athanor.artifacts import checkpoint_states, replays, services, storage
from athanor.artifacts.models import Checkpoint, Dataset, ReplayedSegment
from athanor.backends.fake.backend import World
from athanor.jobs.models import Attempt, Job, JobEvent
from tests.control_plane import drive
from tests.control_plane.answers import done, refused
from tests.control_plane.api.test_agent import manifest_of, stored_part
from tests.control_plane.artifacts.test_base_models import agent_answer
from tests.control_plane.artifacts.test_datasets import upload
from tests.control_plane.artifacts.test_lineage import edges, lineage
from tests.control_plane.conftest import SPEC, Api
from trainer.contract.encryption import Encryptor
from trainer.contract.manifest import StoredFile
from trainer.contract.run import EndClass, RunConfig

pytestmark = pytest.mark.django_db


def checkpoint(attempt: Attempt, step: int, generation: int = 0) -> Checkpoint:
    """A checkpoint that an attempt registers."""
    files = [StoredFile(path="rank0", parts=[stored_part(attempt, f"checkpoints/{generation}-{step}/rank0", b"state")])]
    manifest = manifest_of(attempt, step, []).model_copy(update={"files": files, "generation": generation})
    return services.register_checkpoint(attempt, manifest)


def trained(api: Api, world: World, *steps: int, **changes: Any) -> Job:
    """A finished job with checkpoints of these steps."""
    spec = copy.deepcopy(SPEC) | {"name": "original", "checkpoint": {"keep_last": 10}, **changes}
    job = Job.objects.get(pk=done(api.send("POST", "jobs", spec))["id"])
    attempt = drive.start(job)
    for step in steps:
        checkpoint(attempt, step)
    drive.end(world, attempt, EndClass.COMPLETED)
    assert drive.status_of(job) == ("succeeded", "completed")
    return job


def replay(job: str, **changes: Any) -> dict[str, Any]:
    return {"name": "replay", "resources": SPEC["resources"], "replay": {"job": job, **changes}}


def replaying(api: Api, job: Job, **changes: Any) -> Attempt:
    """A started attempt of a replay of a job."""
    made = done(api.send("POST", "jobs", replay(job.id, **changes)))
    return drive.start(Job.objects.get(pk=made["id"]))


def result(number: int = 0, **changes: Any) -> dict[str, Any]:
    return {"number": number, "verdict": "equal", "is_exact": True, "tensors": 40, "differing": 0, **changes}


def problem_of(answer: Any) -> tuple[str, str, str]:
    assert answer.status_code == 422, answer.content
    (problem,) = answer.json()["errors"]
    return problem["pointer"], problem["code"], problem["detail"]


def test_a_replay_computes_pinned_segments_with_the_training_of_the_job(api: Api, world: World, bucket: str) -> None:
    job = trained(api, world, 10, 20, 30)
    attempt = replaying(api, job, segments=2)
    first, middle, last = Checkpoint.objects.filter(job=job).order_by("step")
    resolved = Job.objects.get(pk=attempt.job_id).resolved_spec
    assert resolved["replay"]["pinned"] == [
        {"start": first.id, "end": middle.id, "first_step": 10, "last_step": 20},
        {"start": middle.id, "end": last.id, "first_step": 20, "last_step": 30},
    ]
    assert resolved["training"] == job.resolved_spec["training"]
    assert attempt.job.dataset_ids == job.dataset_ids
    sent = agent_answer(attempt, "run").json()
    assert sent["training"] is None and "evaluated" not in sent, "an earlier trainer would train"
    config = RunConfig.model_validate(sent)
    assert config.training is not None and config.replay is not None and config.resume is None
    assert config.training.model_dump(mode="json") == job.resolved_spec["training"]
    assert [(each.start.step, each.end.step) for each in config.replay.segments if each.start] == [(10, 20), (20, 30)]
    assert (config.replay.job_id, config.replay.is_same_accelerator, config.replay.tolerance) == (job.id, True, 0.001)
    keys = agent_answer(attempt, "keys").json()
    (part,) = config.replay.segments[0].end.files[0].parts
    assert Encryptor(keys["replayed"]).decrypt(storage.get(part.key) or b"", part) == b"state"


def test_an_attempt_reads_the_checkpoints_of_its_segments_alone(api: Api, world: World, bucket: str) -> None:
    job = trained(api, world, 10, 20, 30)
    attempt = replaying(api, job, segments=1)
    config = RunConfig.model_validate(agent_answer(attempt, "run").json())
    assert config.replay is not None
    (segment,) = config.replay.segments
    assert segment.start is not None
    of_segment = {segment.start.step, segment.end.step}
    for row in Checkpoint.objects.filter(job=job):
        key = row.manifest["files"][0]["parts"][0]["key"]
        answer = agent_answer(attempt, "storage:presign", {"operation": "get", "keys": [key]})
        assert answer.status_code == (200 if row.step in of_segment else 403), row.step
        written = agent_answer(attempt, "storage:presign", {"operation": "put", "keys": [key]})
        assert written.json()["code"] == "outside_prefix"


def test_segments_follow_the_attempts_that_made_the_result(api: Api, world: World, bucket: str) -> None:
    job = Job.objects.get(
        pk=done(api.send("POST", "jobs", copy.deepcopy(SPEC) | {"checkpoint": {"keep_last": 10}}))["id"]
    )
    first = drive.start(job)
    checkpoint(first, 10), checkpoint(first, 20), checkpoint(first, 30)
    Attempt.objects.filter(pk=first.pk).update(status="ended")
    second = Attempt.objects.create(job=job, number=2, backend_name="athanor-second")
    checkpoint(second, 30), checkpoint(second, 40), checkpoint(second, 50, generation=1)
    rows = list(Checkpoint.objects.filter(job=job).select_related("attempt"))
    found = [(each.first_step, each.last_step, each.end) for each in replays.segments_of(rows)]
    by_step = {(row.attempt.number, row.step): row.id for row in rows}
    assert found == [
        (0, 10, by_step[1, 10]), (10, 20, by_step[1, 20]), (20, 30, by_step[2, 30]), (30, 40, by_step[2, 40]),
        (40, 50, by_step[2, 50]),
    ]  # fmt: skip


def test_results_are_shown_for_both_jobs_and_the_first_one_counts(api: Api, world: World, bucket: str) -> None:
    job = trained(api, world, 10, 20, 30)
    attempt = replaying(api, job, segments=2)
    differs = result(
        1, verdict="differs", differing=1, because="1 of 40 tensors differs",
        differences=[{"name": "model/head.weight", "largest": 0.5, "relative": None}],
    )  # fmt: skip
    done(agent_answer(attempt, "replays", differs))
    config = RunConfig.model_validate(agent_answer(attempt, "run").json())
    assert config.replay is not None and [each.number for each in config.replay.segments] == [0], "after a restart"
    done(agent_answer(attempt, "replays", result(0)))
    done(agent_answer(attempt, "replays", result(1)))
    for of in (job.id, attempt.job_id):
        rows = done(api.send("GET", f"jobs/{of}/replays"))["items"]
        assert [(row["number"], row["verdict"], row["first_step"], row["last_step"]) for row in rows] == [
            (0, "equal", 10, 20), (1, "differs", 20, 30),
        ]  # fmt: skip
        assert (rows[1]["replayed"]["id"], rows[1]["replay"]["id"]) == (job.id, attempt.job_id)
        assert rows[1]["differences"] == differs["differences"] and rows[1]["because"] == differs["because"]
    drive.report(attempt, EndClass.COMPLETED)
    world.finish(attempt.backend_name, 0)
    drive.settle()
    assert drive.status_of(attempt.job) == ("succeeded", "completed")
    verdicts = JobEvent.objects.filter(job=attempt.job, type="replay.registered").values_list(
        "data__verdict", flat=True
    )
    assert sorted(verdicts) == ["differs", "equal"]
    found = edges(lineage(api, attempt.job_id))
    assert {(attempt.job_id, "replays", job.id), (attempt.job_id, "replayed_on", job.dataset_id)} <= found
    assert (attempt.job_id, "replays", job.id) in edges(lineage(api, job.id, "&direction=down"))
    assert attempt.job_id not in {target for target, relation, _ in found if relation == "trained_on"}


def test_a_completed_replay_without_all_results_is_no_success(api: Api, world: World, bucket: str) -> None:
    attempt = replaying(api, trained(api, world, 10, 20, 30), segments=2)
    done(agent_answer(attempt, "replays", result(0)))
    drive.report(attempt, EndClass.COMPLETED)
    world.finish(attempt.backend_name, 0)
    drive.settle()
    assert Attempt.objects.get(pk=attempt.pk).reason_detail == "It reported its completion but registered no result."


def test_results_of_other_jobs_are_refused(api: Api, submit: Callable[..., Job], world: World, bucket: str) -> None:
    job = trained(api, world, 10, 20)
    attempt = replaying(api, job)
    forged = agent_answer(drive.start(submit(name="other")), "replays", result(0))
    assert (forged.status_code, forged.json()["code"]) == (409, "not_a_replay")
    beyond = agent_answer(attempt, "replays", result(1))
    assert beyond.status_code == 422 and "has 1 segments" in beyond.json()["detail"]
    for wrong in ({"differing": 3}, {"tensors": 0}):
        answer = agent_answer(attempt, "replays", result(0, **wrong))
        assert answer.status_code == 422 and "is not equal" in answer.json()["detail"]
    assert not ReplayedSegment.objects.exists()


def test_a_job_of_another_team_cannot_be_replayed(
    api: Api, world: World, bucket: str, api_of: Callable[..., Api], make_user: Callable[..., User]
) -> None:
    job = trained(api, world, 10, 20)
    done(agent_answer(replaying(api, job), "replays", result(0)))
    blue = Team.objects.create(name="blue")
    stranger = api_of(make_user("eve", blue), blue)
    assert problem_of(stranger.send("POST", "jobs", replay(job.id))) == (
        "/replay/job", "unknown_job", f"team blue has no job {job.id}; `athanor list` shows its jobs"
    )  # fmt: skip
    assert stranger.send("GET", f"jobs/{job.id}/replays").status_code == 404


def test_what_cannot_be_replayed_is_refused_with_the_remedy(api: Api, user: User, world: World, bucket: str) -> None:
    running = Job.objects.get(pk=done(api.send("POST", "jobs", copy.deepcopy(SPEC)))["id"])
    assert problem_of(api.send("POST", "jobs", replay(running.id)))[1] == "job_not_finished"
    once = trained(api, world, 10)
    pointer, code, detail = problem_of(api.send("POST", "jobs", replay(once.id)))
    assert (pointer, code) == ("/replay/job", "too_few_checkpoints")
    assert "has 1 intact stored checkpoints" in detail and "checkpoint.keep_every_steps" in detail
    made = done(api.send("POST", "jobs", replay(once.id, from_start=True)))
    (row,) = Checkpoint.objects.filter(job=once)
    pinned = [{"start": None, "end": row.id, "first_step": 0, "last_step": 10}]
    assert made["resolved_spec"]["replay"]["pinned"] == pinned
    assert problem_of(api.send("POST", "jobs", replay(made["id"])))[1] == "not_replayable"
    damaged = trained(api, world, 10, 20)
    row = Checkpoint.objects.get(job=damaged, step=20)
    checkpoint_states.mark_damaged(row, "a test", user)
    assert "has 1 intact stored checkpoints" in problem_of(api.send("POST", "jobs", replay(damaged.id)))[2]


def test_a_job_without_its_data_cannot_be_replayed(api: Api, world: World, bucket: str) -> None:
    upload(api, b"some text", name="texts")
    training = copy.deepcopy(SPEC["training"]) | {"data": {"source": "dataset:texts"}}
    job = trained(api, world, 10, 20, training=training)
    done(api.send("DELETE", f"datasets/{Dataset.objects.get(name='texts').id}"))
    assert problem_of(api.send("POST", "jobs", replay(job.id)))[1] == "data_deleted"


def test_what_the_platform_chooses_cannot_be_submitted(api: Api, world: World, bucket: str) -> None:
    job = trained(api, world, 10, 20)
    resolved = done(api.send("POST", "jobs", replay(job.id)))["resolved_spec"]
    written = replay(job.id, pinned=resolved["replay"]["pinned"])
    assert problem_of(api.send("POST", "jobs", written))[:2] == ("/replay/pinned", "set_by_the_platform")
    written["training"] = resolved["training"]
    assert problem_of(api.send("POST", "jobs", written))[:2] == ("/replay/pinned", "set_by_the_platform")
    both = replay(job.id) | {"training": resolved["training"]}
    assert (
        "exactly one of training, prepare, evaluation, replay and export"
        in problem_of(api.send("POST", "jobs", both))[2]
    )


def test_a_replay_with_another_number_of_processes_is_accepted(api: Api, world: World, bucket: str) -> None:
    job = trained(api, world, 10, 20)
    written = replay(job.id) | {"resources": SPEC["resources"] | {"processes_per_node": 2}}
    made = done(api.send("POST", "jobs", written))
    assert made["resolved_spec"]["resources"]["processes_per_node"] == 2
    refused(api.send("POST", f"jobs/{made['id']}:profile", {"steps": 2}), "nothing_to_profile", "profile a run")
