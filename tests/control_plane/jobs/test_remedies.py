"""Every remedy of a reason is followed: what it names exists, and doing what it says works."""

import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any, get_args

import pytest
from django.db import transaction
from django.utils import timezone
from pydantic import BaseModel

from athanor.accounts.models import Role, Team, User
from athanor.backends.fake.backend import World
from athanor.budgets import services as budgets
from athanor.clusters.models import Cluster, Pool
from athanor.jobs import services, transitions
from athanor.jobs.models import Job
from athanor.jobs.reasons import CONTINUES, MEANINGS, NO_RETRIES, Reason, Retry
from athanor.jobs.states import JobStatus
from athanor.quotas.models import QuotaGrant
from athanor.quotas.services import leaf_of
from athanor.scheduling import services as scheduling
from athanor.specs.v1 import JobSpec
from tests.control_plane import drive
from tests.control_plane.conftest import Api
from trainer.contract.run import EndClass

pytestmark = pytest.mark.django_db
R = Reason
FIELD = re.compile(r"\b[a-z]+(?:[._][a-z_]+)+\b")


@pytest.fixture(autouse=True)
def _bucket(bucket: str) -> None:
    """Logs are archived at the end of an attempt."""


def models_in(annotation: Any) -> list[type[BaseModel]]:
    """The models that a field of this type may hold."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for part in get_args(annotation) for model in models_in(part)]


def is_field(path: str) -> bool:
    """Whether a job spec has a field at this dotted path."""
    models: list[type[BaseModel]] = [JobSpec]
    for name in path.split("."):
        found = [model.model_fields[name].annotation for model in models if name in model.model_fields]
        if not found:
            return False
        models = [model for annotation in found for model in models_in(annotation)]
    return True


@pytest.mark.parametrize("text", [NO_RETRIES, *(meaning.remedy for meaning in MEANINGS.values())])
def test_fields_that_a_remedy_names_are_fields_of_a_spec(text: str) -> None:
    assert [path for path in FIELD.findall(text) if not is_field(path)] == []


# What the remedy of an end says to change: each path is in its text, and each change alone makes an accepted fork.
FORKS: dict[Reason, dict[str, Any]] = {
    R.DEADLINE: {"time_limit_seconds": 100_000, "training.steps": 5},
    R.WAITED_TOO_LONG: {"wait_limit_seconds": 1000, "resources.processes_per_node": 1},
    R.DEADLINE_MISSED: {"schedule.deadline": "2999-01-01T00:00:00Z", "resources.accelerator": "cpu"},
    R.OUT_OF_MEMORY: {
        "training.parallelism.micro_batch_sequences": "auto",
        "training.activation_checkpointing": "full",
        "training.sequence_length": 32,
        "resources.processes_per_node": 2,
    },
    R.LOSS_DIVERGED: {
        "training.optimizer.learning_rate": 1e-5,
        "training.schedule.warmup_steps": 5,
        "training.optimizer.gradient_clip": 0.1,
    },
    R.STOPPED_BY_USER: {"": None},
    R.STOPPED_BY_ADMIN: {"": None},
    R.DEPENDENCY_FAILED: {"": None},
    R.BAD_SPEC: {"": None},
    R.DATA_ERROR: {"": None},
    R.CHECKPOINT_DAMAGED: {"": None},
    R.BACKEND_REJECTED: {"": None},
    R.USER_ERROR: {"": None},
}
# Their advice is to look somewhere, or to ask somebody; what follows by itself is tested with FREE_ENDS.
FREE_ENDS = {reason for reason, meaning in MEANINGS.items() if meaning.retry is Retry.FREE}


def end_as(job: Job, reason: Reason) -> None:
    """Move a job to the end that a reason leads to."""
    final = MEANINGS[reason].final
    assert final is not None
    if final is JobStatus.EXPIRED:
        transitions.move(job, final, reason=reason, actor="test")
        return
    drive.run(job)
    job.refresh_from_db()
    if final is JobStatus.CANCELLED:
        transitions.move(job, JobStatus.STOPPING, reason=reason, actor="test")
    transitions.move(job, final, reason=reason, actor="test")


def merge_patch(path: str, value: Any) -> dict[str, Any]:
    for name in reversed(path.split(".") if path else []):
        value = {name: value}
    return value or {}


@pytest.mark.parametrize("reason", FORKS)
def test_a_fork_with_what_the_remedy_says_is_accepted(
    reason: Reason, world: World, submit: Callable[..., Job], api: Api
) -> None:
    job = submit(resources={"cluster": "fake", "processes_per_node": 1})
    end_as(job, reason)
    shown = api.get(f"/api/v1/jobs/{job.id}").json()
    assert shown["reason"]["code"] == reason.value
    for path, value in FORKS[reason].items():
        assert path in shown["reason"]["remedy"]
        fork = api.send("POST", f"jobs/{job.id}:fork", {"changes": merge_patch(path, value)})
        assert fork.status_code == 201, fork.json()
        assert fork.json()["forked_from"] == job.id
        assert fork.json()["status"] == "queued"


@pytest.mark.parametrize("end_class", [EndClass.PROCESS_KILLED, EndClass.STORAGE_ERROR, EndClass.COLLECTIVE_TIMEOUT])
def test_a_fault_of_the_infrastructure_is_retried_until_no_retry_is_left(
    end_class: EndClass, world: World, submit: Callable[..., Job], api: Api
) -> None:
    job = submit(retry={"max_free": 1})
    first = drive.run(job)
    drive.end(world, first, end_class)
    shown = api.get(f"/api/v1/jobs/{job.id}").json()
    assert shown["status"] == "queued"
    assert shown["attempts"][0]["reason"]["remedy"].endswith(CONTINUES)
    Job.objects.filter(pk=job.pk).update(act_after=None)
    second = drive.run(job)
    assert second.number == 2
    drive.end(world, second, end_class)
    shown = api.get(f"/api/v1/jobs/{job.id}").json()
    assert shown["status"] == "failed"
    assert shown["reason"]["remedy"].endswith(NO_RETRIES)
    assert CONTINUES not in shown["reason"]["remedy"]
    fork = api.send("POST", f"jobs/{job.id}:fork", {"changes": {"retry": {"max_free": 2}}})
    assert fork.status_code == 201
    again = Job.objects.get(pk=fork.json()["id"])
    drive.end(world, drive.run(again), end_class)
    assert drive.status_of(again)[0] == "queued"


@pytest.fixture
def raise_quota(make_user: Callable[..., User], team: Team) -> Callable[[int], None]:
    """Change the team's quota as a platform administrator does."""
    root = make_user("root", team, Role.ADMIN)
    root.platform_role = "platform_admin"
    root.save()

    def change(nominal: int) -> None:
        body = {"changes": [{"node": team.name, "grants": {"cpu": {"nominal": nominal, "borrow_limit": 0}}}]}
        client = Api()
        client.force_login(root)
        answer = client.send("PATCH", "quotas", body)
        assert answer.status_code == 200, answer.json()

    return change


def waits_for(job: Job, reason: Reason) -> None:
    scheduling.admit()
    assert drive.status_of(job) == ("queued", reason.value)


def starts(job: Job) -> None:
    scheduling.admit()
    assert drive.status_of(job)[0] == "admitted"


def test_a_raised_quota_starts_what_waited_for_it(
    world: World, submit: Callable[..., Job], team: Team, raise_quota: Callable[[int], None]
) -> None:
    QuotaGrant.objects.create(node=leaf_of(team), accelerator="cpu", nominal=1, borrow_limit=0)
    job = submit(resources={"cluster": "fake", "processes_per_node": 2})
    waits_for(job, R.QUOTA_EXCEEDED)
    raise_quota(2)
    starts(job)


def test_a_raised_budget_starts_what_waited_for_it(
    world: World, submit: Callable[..., Job], team: Team, user: User
) -> None:
    facts = {"unit": "slot_hours", "period": "month", "soft_percent": 80, "hard": True}
    row = budgets.create(leaf_of(team).id, user, name="small", amount=60, **facts)
    job = submit(time_limit_seconds=3600)
    waits_for(job, R.BUDGET_EXHAUSTED)
    budgets.change(row.pk, user, lambda _: None, amount=7200)
    starts(job)


def test_slots_that_are_released_start_what_waited_for_them(world: World, submit: Callable[..., Job]) -> None:
    first = submit(resources={"cluster": "fake", "processes_per_node": 8})
    attempt = drive.run(first)
    job = submit(name="second")
    waits_for(job, R.WAITING_FOR_CAPACITY)
    drive.end(world, attempt, EndClass.COMPLETED)
    starts(job)


def test_nodes_that_are_released_start_what_waited_for_all_of_them(
    world: World, submit: Callable[..., Job], pool: Pool
) -> None:
    pool.nodes, pool.slots_per_node = 2, 4
    pool.save()
    attempt = drive.run(submit(resources={"cluster": "fake", "processes_per_node": 4}))
    job = submit(name="second", resources={"cluster": "fake", "nodes": 2, "processes_per_node": 4})
    waits_for(job, R.WAITING_FOR_GANG)
    drive.end(world, attempt, EndClass.COMPLETED)
    starts(job)


def test_a_job_on_hold_starts_when_it_is_resumed(world: World, submit: Callable[..., Job], api: Api) -> None:
    job = submit()
    assert api.send("POST", f"jobs/{job.id}:pause").status_code == 202
    waits_for(job, R.HELD)
    assert api.send("POST", f"jobs/{job.id}:resume").status_code == 202
    starts(job)


def test_a_paused_job_continues_when_it_is_resumed(world: World, submit: Callable[..., Job], api: Api) -> None:
    job = submit()
    attempt = drive.run(job)
    assert api.send("POST", f"jobs/{job.id}:pause").status_code == 202
    drive.settle()
    drive.end(world, attempt, EndClass.STOPPED)
    assert drive.status_of(job) == ("paused", R.PAUSED_BY_USER.value)
    assert api.send("POST", f"jobs/{job.id}:resume").status_code == 202
    starts(job)


def test_a_job_starts_at_its_time(world: World, submit: Callable[..., Job]) -> None:
    later = timezone.now() + timedelta(days=1)
    job = submit(schedule={"not_before": later.isoformat()})
    waits_for(job, R.NOT_BEFORE)
    Job.objects.filter(pk=job.pk).update(not_before=later - timedelta(days=2))
    starts(job)


def test_a_cluster_that_is_enabled_again_starts_what_waited_for_it(world: World, submit: Callable[..., Job]) -> None:
    job = submit()
    Cluster.objects.update(enabled=False)
    waits_for(job, R.CLUSTER_DOWN)
    Cluster.objects.update(enabled=True)
    starts(job)


def test_a_job_starts_after_those_that_it_names(
    world: World, submit: Callable[..., Job], api: Api, spec: dict[str, Any]
) -> None:
    first = submit()
    attempt = drive.run(first)
    second = api.send("POST", "jobs", {**spec, "name": "second", "after": [first.id]})
    job = Job.objects.get(pk=second.json()["id"])
    waits_for(job, R.DEPENDENCY)
    drive.end(world, attempt, EndClass.COMPLETED)
    starts(job)


def test_a_fork_with_a_higher_ceiling_starts_sooner(world: World, submit: Callable[..., Job], api: Api) -> None:
    Pool.objects.update(price_per_slot_hour="2.5")
    job = submit(schedule={"max_price_per_slot_hour": 2.4})
    waits_for(job, R.WINDOW_CLOSED)
    assert api.send("POST", f"jobs/{job.id}:cancel").status_code == 202
    changes = {"schedule": {"max_price_per_slot_hour": 3.0}}
    fork = api.send("POST", f"jobs/{job.id}:fork", {"changes": changes})
    assert fork.status_code == 201
    starts(Job.objects.get(pk=fork.json()["id"]))


@pytest.mark.parametrize("reason", [R.RECLAIMED, R.SPOT_NOTICE, R.NO_ROOM])
def test_a_job_whose_slots_were_taken_continues(reason: Reason, world: World, submit: Callable[..., Job]) -> None:
    job = submit()
    attempt = drive.run(job)
    job.refresh_from_db()
    transitions.preempt_at_checkpoint(job, reason, "", actor="test")
    drive.end(world, attempt, EndClass.STOPPED)
    assert drive.status_of(job) == ("queued", reason.value)
    Job.objects.update(act_after=None)  # the pause is over
    starts(job)


def test_an_idle_job_continues_when_it_is_resumed(world: World, submit: Callable[..., Job], api: Api) -> None:
    job = submit()
    attempt = drive.run(job)
    with transaction.atomic():
        locked = Job.objects.select_for_update().get(pk=job.pk)
        assert services.pause_idle(locked, "", {"attempt": attempt.id}, actor="test")
    drive.end(world, attempt, EndClass.STOPPED)
    assert drive.status_of(job) == ("paused", R.IDLE.value)
    assert api.send("POST", f"jobs/{job.id}:resume").status_code == 202
    starts(job)


def test_a_finished_job_has_a_model_to_download(world: World, submit: Callable[..., Job], api: Api) -> None:
    job = submit()
    drive.end(world, drive.run(job), EndClass.COMPLETED)
    shown = api.get(f"/api/v1/jobs/{job.id}").json()
    assert (shown["status"], shown["reason"]["remedy"]) == ("succeeded", "Download the model.")
    [model] = [each for each in api.get(f"/api/v1/jobs/{job.id}/artifacts").json()["items"] if each["kind"] == "model"]
    assert api.send("POST", f"artifacts/{model['id']}:download").status_code == 200


FOLLOWED_HERE = {
    R.QUOTA_EXCEEDED, R.BUDGET_EXHAUSTED, R.WAITING_FOR_CAPACITY, R.WAITING_FOR_GANG, R.NOT_BEFORE, R.HELD,
    R.CLUSTER_DOWN, R.DEPENDENCY, R.PAUSED_BY_USER, R.WINDOW_CLOSED, R.RECLAIMED, R.SPOT_NOTICE, R.NO_ROOM,
    R.COMPLETED, R.IDLE,
}  # fmt: skip


def test_no_remedy_is_left_out() -> None:
    assert set(Reason) == FOLLOWED_HERE | set(FORKS) | FREE_ENDS
