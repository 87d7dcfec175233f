"""Evaluation after training by spec: one job of the same user for the registered version, or an event that says why."""

from collections.abc import Callable
from typing import Any

import pytest

from athanor.accounts.models import Membership, User, WorkFailure
from athanor.accounts.roles import Role
from athanor.artifacts.models import EvaluationResult, ModelVersion
from athanor.backends.fake.backend import World
from athanor.dispatch import finalise
from athanor.jobs.models import Attempt, Job, JobEvent
from athanor.scheduling import services as scheduling
from tests.control_plane import drive
from tests.control_plane.answers import done
from tests.control_plane.artifacts.test_base_models import agent_answer, exported
from tests.control_plane.artifacts.test_datasets import upload
from tests.control_plane.artifacts.test_evaluations import QUESTIONS, figure
from tests.control_plane.artifacts.test_lineage import edges, lineage
from tests.control_plane.artifacts.test_registry import ended
from tests.control_plane.conftest import Api
from tests.control_plane.quotas.test_limits import limit
from trainer.contract.run import EndClass

pytestmark = pytest.mark.django_db
Submit = Callable[..., Job]

FACTS = {
    "name": "facts", "kind": "generation", "source": "dataset:facts", "scores": ["exact_match", "f1"], "max_tokens": 8,
}  # fmt: skip
EVALUATION = {"tasks": [FACTS], "sequence_length": 64}
OUTPUT = {"register": "bot", "alias": "candidate", "evaluation": EVALUATION}


@pytest.fixture
def data(api: Api, bucket: str) -> None:
    assert upload(api, QUESTIONS, name="facts", content_type="application/x-ndjson").status_code == 201


def trained(submit: Submit, **changes: Any) -> Attempt:
    """An attempt that has exported its model and is about to end."""
    attempt = drive.run(submit(output=OUTPUT, **changes))
    exported(attempt)
    return attempt


def evaluations_of(job: Job) -> list[Job]:
    return list(Job.objects.filter(dependencies__upstream=job))


def refusal_of(job: Job) -> dict[str, Any]:
    (event,) = JobEvent.objects.filter(job=job, type="evaluation.refused")
    assert event.data["because"] in event.message and event.data["remedy"] in event.message
    (warning,) = [each for each in job.warnings if each["pointer"] == "/output/evaluation"]
    assert warning["detail"] == f"the evaluation was refused: {event.message}"
    return dict(event.data)


def test_the_registered_version_is_evaluated_by_the_same_user(
    api: Api, submit: Submit, data: None, world: World, user: User
) -> None:
    attempt = trained(submit, labels={"sweep": "lr"}, priority="low")
    assert not JobEvent.objects.filter(type="evaluation.submitted").exists()
    job = ended(attempt, world)
    assert job.status == "succeeded"
    (found,) = evaluations_of(job)
    artifact = ModelVersion.objects.get().artifact
    assert (found.created_by, found.team_id, found.pool_id) == (user, job.team_id, job.pool_id)
    assert (found.labels, found.priority, found.project) == ({"sweep": "lr"}, job.priority, job.project)
    assert found.resolved_spec["training"]["model"]["base"] == f"model:{artifact.id}"
    (event,) = JobEvent.objects.filter(job=job, type="evaluation.submitted")
    assert event.data == {"job": found.id, "tasks": ["facts"]}
    assert found.id in event.message
    results = [figure("exact_match", 0.5, name="facts"), figure("f1", 0.6, name="facts")]
    evaluating = drive.start(found)
    assert done(agent_answer(evaluating, "evaluations", {"figures": results})) == {"results": 2}
    shown = done(api.send("GET", f"models/{ModelVersion.objects.get().model_id}/versions/1"))["evaluations"]
    assert [(each["metric"], each["value"]) for each in shown] == [("exact_match", 0.5), ("f1", 0.6)]
    assert (found.id, "evaluates", artifact.id) in edges(lineage(api, artifact.id, "&direction=down"))
    promoted = api.send(
        "PUT", f"models/{ModelVersion.objects.get().model_id}/aliases/production",
        {"version": 1, "require": ["facts.f1>=0.6", "exact_match>=0.5"]},
    )  # fmt: skip
    assert done(promoted)["version"] == 1


def test_scores_that_a_task_does_not_have_are_no_results(submit: Submit, data: None, world: World) -> None:
    (found,) = evaluations_of(ended(trained(submit), world))
    attempt = drive.start(found)
    unknown = [figure(score, 0.5, name="facts") for score in ("regex", "json_schema")]
    for wrong in (*unknown, {**figure("f1", 0.9, name="facts"), "value": 1.2, "high": 1.3}):
        answer = agent_answer(attempt, "evaluations", {"figures": [wrong]})
        assert (answer.status_code, answer.json()["code"]) == (422, "invalid_results")
    assert not EvaluationResult.objects.exists()


def test_it_is_submitted_once_though_the_job_is_finalised_twice(submit: Submit, data: None, world: World) -> None:
    job = ended(trained(submit), world)
    Job.objects.filter(pk=job.pk).update(status="running")  # as if a crash had lost the last transition
    finalise.finalise_due()
    assert Job.objects.get(pk=job.pk).status == "succeeded"
    assert len(evaluations_of(job)) == 1
    assert JobEvent.objects.filter(job=job, type__startswith="evaluation.").count() == 1


def test_it_is_submitted_once_though_the_worker_is_killed_before_the_job_ends(
    submit: Submit, data: None, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt = trained(submit)

    def killed(*_: Any) -> None:
        raise RuntimeError("killed")

    with monkeypatch.context() as patched:
        patched.setattr(finalise, "_apply", killed)
        assert ended(attempt, world).status == "running"
    (found,) = evaluations_of(attempt.job)
    scheduling.admit()
    drive.dispatch()
    assert not found.attempts.exists(), "it waits until the job has succeeded"
    WorkFailure.objects.all().delete()
    Job.objects.filter(pk=attempt.job_id).update(lease_until=None)
    finalise.finalise_due()
    assert Job.objects.get(pk=attempt.job_id).status == "succeeded"
    assert evaluations_of(attempt.job) == [found]
    sequence = list(JobEvent.objects.filter(job=attempt.job).order_by("seq").values_list("seq", flat=True))
    assert sequence == list(range(1, len(sequence) + 1))


def test_a_refusal_is_an_event_and_the_version_is_registered(submit: Submit, data: None, world: World) -> None:
    attempt = trained(submit)
    submit(name="waits")
    limit("red", max_queued_jobs=1)
    job = ended(attempt, world)
    assert (job.status, ModelVersion.objects.count(), evaluations_of(job)) == ("succeeded", 1, [])
    facts = refusal_of(job)
    assert "max_queued_jobs" in facts["because"] and "submit it when" in facts["remedy"]


def test_a_user_who_may_no_longer_submit_evaluates_nothing(
    submit: Submit, data: None, world: World, user: User
) -> None:
    attempt = trained(submit)
    Membership.objects.filter(user=user).update(role=Role.VIEWER.value)
    job = ended(attempt, world)
    assert (job.status, evaluations_of(job)) == ("succeeded", [])
    assert refusal_of(job)["because"] == f"{user.username} may no longer submit jobs in team {job.team.name}"


def test_a_job_that_fails_is_not_evaluated(submit: Submit, data: None, world: World) -> None:
    attempt = trained(submit, retry={"max_charged": 0})
    drive.end(world, attempt, EndClass.OUT_OF_MEMORY)
    assert Job.objects.get(pk=attempt.job_id).status == "failed"
    assert not JobEvent.objects.filter(type__startswith="evaluation.").exists()


MISTAKES: list[tuple[dict[str, Any], str]] = [
    ({"evaluation": EVALUATION}, "/output/evaluation"),
    ({**OUTPUT, "evaluation": {**EVALUATION, "tasks": [{**FACTS, "source": "dataset:fact"}]}},
     "/output/evaluation/tasks/0/source"),
    ({**OUTPUT, "evaluation": {**EVALUATION, "model": "model:bot@1"}}, "/output/evaluation/model"),
    ({**OUTPUT, "evaluation": {**EVALUATION, "tasks": [{**FACTS, "max_tokens": 64}]}},
     "/output/evaluation/tasks/0/max_tokens"),
    ({**OUTPUT, "evaluation": {**EVALUATION, "tasks": [{**FACTS, "scores": None}]}},
     "/output/evaluation/tasks/0/scores"),
]  # fmt: skip


@pytest.mark.parametrize(("output", "pointer"), MISTAKES)
def test_mistakes_are_found_when_the_training_job_is_submitted(
    api: Api, spec: Any, pool: Any, data: None, output: dict[str, Any], pointer: str
) -> None:
    answer = api.send("POST", "jobs", {**spec, "output": output})
    assert answer.status_code == 422, answer.content
    assert [each["pointer"] for each in answer.json()["errors"]] == [pointer]
