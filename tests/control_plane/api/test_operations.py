"""/admin: reconcilers and orphans, for platform administrators only."""

import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db.migrations.recorder import MigrationRecorder
from django.utils import timezone
from redis import Redis

from athanor.accounts.models import AuditEvent, Team, User
from athanor.accounts.roles import PlatformRole
from athanor.backends.fake.backend import World
from athanor.clusters.models import Cluster
from athanor.core import leases, task_triggers
from athanor.core.valkey import valkey
from athanor.jobs.models import Attempt, Job
from athanor.reconcilers import backlog
from athanor.webhooks import publishing as webhooks
from tests.control_plane import drive
from tests.control_plane.conftest import Api
from tests.control_plane.roles import as_owner
from trainer.contract.run import EndClass

pytestmark = pytest.mark.django_db
Submit = Callable[..., Job]


@pytest.fixture(autouse=True)
def no_runs_yet() -> None:
    valkey().delete(backlog.RUNS_KEY)


@pytest.fixture
def operator(make_user: Callable[..., User], other_team: Team) -> Api:
    """A platform administrator who belongs to another team than the jobs here."""
    user = make_user("root", other_team)
    User.objects.filter(pk=user.pk).update(platform_role=PlatformRole.PLATFORM_ADMIN.value)
    client = Api()
    client.force_login(User.objects.get(pk=user.pk))
    return client


def sweeper(operator: Api, name: str) -> dict[str, Any]:
    items = operator.send("GET", "admin/sweepers").json()["items"]
    return next(item for item in items if item["name"] == name)


def test_it_is_for_platform_administrators_alone(api: Api, make_user: Callable[..., User], team: Team) -> None:
    auditor = make_user("eve", team)
    User.objects.filter(pk=auditor.pk).update(platform_role=PlatformRole.AUDITOR.value)
    client = Api()
    client.force_login(User.objects.get(pk=auditor.pk))
    for someone in (api, client):
        for path in ("admin/sweepers", "admin/orphans"):
            answer = someone.send("GET", path)
            assert (answer.status_code, answer.json()["code"]) == (403, "role_missing")
        body = {"cluster_id": "cls_1", "backend_name": "athanor-1"}
        assert someone.send("POST", "admin/orphans:cancel", body).status_code == 403
        assert someone.send("POST", "admin/orphans:observe", {"attempt_id": "att_1"}).status_code == 403


def test_every_sweeper_says_its_invariant_and_when_nothing_is_due(operator: Api, world: World) -> None:
    items = operator.send("GET", "admin/sweepers").json()["items"]
    assert len(items) == len(backlog.RECONCILERS)
    assert len({item["invariant"] for item in items}) == len(items)
    for item in items:
        assert item["invariant"].endswith(".")
        assert (item["rows_due"], item["oldest_due_seconds"]) == (0, None), item


def test_a_sweeper_that_never_ran_is_late_when_it_should_have(operator: Api, world: World) -> None:
    with as_owner():
        MigrationRecorder.Migration.objects.update(applied=timezone.now())
    assert not sweeper(operator, task_triggers.ADMIT)["late"], "the platform was made just now"
    with as_owner():
        MigrationRecorder.Migration.objects.update(applied=timezone.now() - timedelta(hours=2))
    assert sweeper(operator, task_triggers.ADMIT)["late"]


def test_what_waits_for_a_sweeper_is_counted_until_it_has_run(operator: Api, submit: Submit, world: World) -> None:
    job = submit()
    Job.objects.update(updated_at=timezone.now() - timedelta(seconds=90))
    due = sweeper(operator, task_triggers.ADMIT)
    assert due["rows_due"] == 1
    assert due["oldest_due_seconds"] >= 90
    attempt = drive.start(job)
    assert sweeper(operator, task_triggers.ADMIT)["rows_due"] == 0
    assert sweeper(operator, task_triggers.OBSERVE)["rows_due"] == 1
    drive.observe.observe_due()
    assert sweeper(operator, task_triggers.OBSERVE)["rows_due"] == 0, "it was seen just now"
    Cluster.objects.update(observed_at=timezone.now() - timedelta(seconds=60))
    assert sweeper(operator, task_triggers.OBSERVE)["oldest_due_seconds"] >= 60
    world.finish(attempt.backend_name, 1)
    drive.observe.observe_due()
    assert sweeper(operator, task_triggers.OBSERVE)["rows_due"] == 0
    assert sweeper(operator, task_triggers.FINALISE)["rows_due"] == 1


def test_a_run_is_noted_and_so_is_one_that_failed(operator: Api, submit: Submit, bucket: str) -> None:
    with backlog.recorded(task_triggers.ADMIT):
        pass
    with pytest.raises(ZeroDivisionError), backlog.recorded(task_triggers.ADMIT):
        1 / 0  # noqa: B018 - any error
    shown = sweeper(operator, task_triggers.ADMIT)
    assert shown["ran_at"]
    assert not shown["late"]
    assert shown["error"] == "ZeroDivisionError: division by zero"
    ran_ago(310)
    assert sweeper(operator, task_triggers.ADMIT)["late"]
    ran_ago(290)
    assert not sweeper(operator, task_triggers.ADMIT)["late"], "an idle platform runs it every minute"
    submit()
    ran_ago(11)
    assert sweeper(operator, task_triggers.ADMIT)["late"], "with work, every 2 s"


def ran_ago(seconds: float) -> None:
    with backlog.recorded(task_triggers.ADMIT):
        pass
    run = json.loads(valkey().hget(backlog.RUNS_KEY, task_triggers.ADMIT))
    run["ran_at"] = (timezone.now() - timedelta(seconds=seconds)).isoformat()
    valkey().hset(backlog.RUNS_KEY, task_triggers.ADMIT, json.dumps(run))


def test_without_the_broker_the_last_runs_are_not_known_and_work_is_done(
    operator: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = []
    with monkeypatch.context() as without:
        without.setattr(backlog, "valkey", lambda: Redis(port=1))
        with backlog.recorded(task_triggers.ADMIT):
            done.append("work")
        shown = sweeper(operator, task_triggers.ADMIT)
    assert (done, shown["ran_at"], shown["took_seconds"]) == (["work"], None, None)


def test_a_platform_is_idle_while_nothing_waits(submit: Submit, world: World, bucket: str) -> None:
    webhooks.publish_due()
    assert backlog.is_idle()
    job = submit()
    assert not backlog.is_idle(), "a job is queued"
    attempt = drive.start(job)
    assert not backlog.is_idle(), "a job runs"
    drive.end(world, attempt, EndClass.COMPLETED)
    drive.settle()
    assert not backlog.is_idle(), "its last events have no number"
    webhooks.publish_due()
    assert backlog.is_idle()


def test_an_object_without_a_live_attempt_is_shown_and_cancelled(
    operator: Api, submit: Submit, world: World, bucket: str
) -> None:
    alive, over = submit(name="alive"), submit(name="over")
    mine, lost = drive.run(alive), drive.run(over)
    submission = world.running[lost.backend_name]
    Attempt.objects.filter(pk=lost.pk).update(status="ended")
    world.running["athanor-stranger"] = submission
    found = operator.send("GET", "admin/orphans").json()
    assert {(item["backend_name"], item["attempt_id"]) for item in found["objects"]} == {
        (lost.backend_name, lost.id),
        ("athanor-stranger", ""),
    }
    assert over.name not in str(found), "of other teams' jobs only ids are shown"
    for name in (lost.backend_name, "athanor-stranger"):
        body = {"cluster_id": found["objects"][0]["cluster_id"], "backend_name": name}
        assert operator.send("POST", "admin/orphans:cancel", body).status_code == 202
    assert world.cancelled == [lost.backend_name, "athanor-stranger"]
    assert AuditEvent.objects.filter(action="orphan.cancel").count() == 2
    body["backend_name"] = mine.backend_name
    refused = operator.send("POST", "admin/orphans:cancel", body)
    assert (refused.status_code, refused.json()["code"]) == (409, "not_an_orphan")
    body["backend_name"] = "athanor-never"
    assert operator.send("POST", "admin/orphans:cancel", body).status_code == 404
    assert len(world.cancelled) == 2


def test_a_live_attempt_without_an_object_is_shown_and_looked_at(
    operator: Api, submit: Submit, world: World, team: Team
) -> None:
    job = submit()
    attempt = drive.run(job)
    submission = world.running.pop(attempt.backend_name)
    drive.observe.observe_due()
    (shown,) = operator.send("GET", "admin/orphans").json()["attempts"]
    assert (shown["attempt_id"], shown["job_id"], shown["absent_count"]) == (attempt.id, job.id, 1)
    world.running[attempt.backend_name] = submission
    answer = operator.send("POST", "admin/orphans:observe", {"attempt_id": attempt.id})
    assert answer.json() == {"attempt_id": attempt.id, "presence": "present"}
    assert operator.send("GET", "admin/orphans").json()["attempts"] == []
    event = AuditEvent.objects.get(action="attempt.observe")
    assert (event.target_id, event.team_id) == (attempt.id, team.id)


def test_looking_never_ends_an_attempt_by_itself(operator: Api, submit: Submit, world: World) -> None:
    attempt = drive.start(submit())
    world.forget(attempt.backend_name)
    for _ in range(3):
        answer = operator.send("POST", "admin/orphans:observe", {"attempt_id": attempt.id})
        assert answer.json()["presence"] == "absent"
    assert drive.status_of(attempt.job)[0] == "starting"


def test_a_cluster_that_is_away_is_named_and_hides_no_other(operator: Api, submit: Submit, world: World) -> None:
    attempt = drive.start(submit())
    world.away = 1
    found = operator.send("GET", "admin/orphans").json()
    assert [item["cluster"] for item in found["unlisted"]] == ["fake"]
    world.away = 1
    answer = operator.send("POST", "admin/orphans:observe", {"attempt_id": attempt.id})
    assert (answer.status_code, answer.json()["code"]) == (503, "cluster_unavailable")
    (lease,) = leases.claim(Cluster.objects.all(), seconds=30, limit=1)
    answer = operator.send("POST", "admin/orphans:observe", {"attempt_id": attempt.id})
    assert (answer.status_code, answer.json()["code"]) == (409, "sweep_under_way")
    leases.release(Cluster, lease)
