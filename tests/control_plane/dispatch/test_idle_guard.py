"""The idle guard: running jobs without progress are warned about once, then paused, by the limits of their team."""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db import connection, transaction
from django.db.models import F
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from athanor.accounts.models import AuditEvent, Role, Team, User
from athanor.backends.fake.backend import World
from athanor.budgets import metering_cycle
from athanor.budgets.models import Meter
from athanor.clusters.models import NodeIncident, Pool
from athanor.dispatch import idle_guard
from athanor.dispatch.idle_guard import find_idle, guard_due
from athanor.jobs import services, transitions
from athanor.jobs.models import Attempt, Job, JobEvent
from athanor.jobs.reasons import Reason
from athanor.quotas.models import QuotaNode
from athanor.quotas.selectors import IdleLimits, idle_limits
from athanor.scheduling import services as scheduling
from athanor.telemetry import ingest
from athanor.telemetry.models import Heartbeat, Progress
from tests.control_plane import drive
from tests.control_plane.conftest import Api
from trainer.contract.run import Batch, EndClass, LogLine, MetricPoint, ProgressEvent
from trainer.contract.run import Heartbeat as HeartbeatMessage

pytestmark = pytest.mark.django_db
Submit = Callable[..., Job]
WARNING, PAUSE = 600, 1800


@pytest.fixture(autouse=True)
def limits(team: Team) -> None:
    QuotaNode.objects.filter(team=team).update(idle_warning_seconds=WARNING, idle_pause_seconds=PAUSE)


def pass_without_progress(minutes: float) -> None:
    """Advance the time for the guard; agents report meanwhile that they are where they were."""
    ago = timedelta(minutes=minutes)
    Progress.objects.update(progressed_at=F("progressed_at") - ago)
    Attempt.objects.update(started_at=F("started_at") - ago)
    JobEvent.objects.update(time=F("time") - ago)
    Heartbeat.objects.update(received_at=timezone.now())


def beat(attempt: Attempt, phase: str = "training", generation: int = 0) -> None:
    message = HeartbeatMessage(node_rank=0, generation=generation, phase=phase, step=1, processes_alive=1)
    ingest.heartbeat(attempt, message)


def report(attempt: Attempt, kind: str, **data: Any) -> None:
    event = ProgressEvent(time=timezone.now(), type=kind, data=data)
    ingest.ingest(attempt, "progress", Batch(writer="e", sequence=0, events=[event]))


def measure(attempt: Attempt, sequence: int = 0, at: datetime | None = None) -> None:
    point = MetricPoint(step=sequence + 1, time=at or timezone.now(), values={"train/loss": 2.0})
    ingest.ingest(attempt, "metrics", Batch(writer="m", sequence=sequence, points=[point]))


def warnings(job: Job) -> list[JobEvent]:
    return list(job.events.filter(type="job.idle").order_by("seq"))


def test_an_idle_job_is_warned_about_once_in_each_idle_period(submit: Submit, world: World) -> None:
    job = submit()
    attempt = drive.run(job)
    pass_without_progress(9)
    guard_due()
    assert not warnings(job)
    pass_without_progress(3)
    guard_due()
    pass_without_progress(5)
    guard_due()
    [warning] = warnings(job)
    assert warning.message == ("No progress for 12m; it holds 1 slot. It is paused after 30m without progress.")
    assert warning.data["attempt"] == attempt.id
    assert (warning.data["seconds"], warning.data["cost_per_hour"], warning.data["pause_seconds"]) == (720, 0, PAUSE)
    drive.beat(attempt, step=2)
    pass_without_progress(11)
    guard_due()
    assert len(warnings(job)) == 2, "it has made progress: another period"
    assert drive.status_of(job)[0] == "running"


def test_the_warning_has_the_price_of_the_slots(submit: Submit, world: World) -> None:
    Pool.objects.update(price_per_slot_hour="2.5", currency="EUR")
    job = submit(resources={"cluster": "fake", "processes_per_node": 8})
    drive.run(job)
    pass_without_progress(10)
    guard_due()
    [warning] = warnings(job)
    assert (warning.data["cost_per_hour"], warning.data["currency"], warning.data["slots"]) == (20_000_000, "EUR", 8)
    assert "it holds 8 slots, which cost 20.00 EUR per hour." in warning.message


def test_a_job_that_stays_idle_is_paused_keeps_its_work_and_continues_when_it_is_resumed(
    submit: Submit, world: World, bucket: str, api: Api
) -> None:
    job = submit()
    attempt = drive.run(job)
    pass_without_progress(29)
    guard_due()
    assert drive.status_of(job)[0] == "running"
    pass_without_progress(1)
    guard_due()
    assert drive.status_of(job) == ("pausing", "idle")
    drive.settle()
    assert world.cancelled == [attempt.backend_name], "its agent gets the signal to save a checkpoint and end"
    drive.end(world, attempt, EndClass.STOPPED)
    scheduling.admit()
    assert drive.status_of(job) == ("paused", "idle"), "it does not start again by itself"
    assert drive.attempt_of(job).reason == "idle"
    shown = api.get(f"/api/v1/jobs/{job.id}").json()["reason"]
    assert "30m without progress; the limit is 30m." in shown["message"]
    assert shown["runbook"].endswith("/reasons/waiting#idle")
    [paused] = AuditEvent.objects.filter(action="job.pause", target_id=job.id)
    assert (paused.actor, paused.after) == ("dispatch", {"desired": "pause", "reason": "idle"})
    assert not NodeIncident.objects.exists()
    assert api.send("POST", f"jobs/{job.id}:resume").status_code == 202
    assert (drive.run(job).number, drive.status_of(job)[0]) == (2, "running")
    guard_due()
    assert drive.status_of(job)[0] == "running", "the time before the pause does not count"


def test_a_job_whose_processes_are_stuck_is_ended_by_its_cluster_and_paused(
    submit: Submit, world: World, bucket: str
) -> None:
    job = submit()
    attempt = drive.run(job)
    pass_without_progress(30)
    guard_due()
    drive.settle()
    world.finish(attempt.backend_name, 137)
    drive.settle()
    assert drive.status_of(job) == ("paused", "idle")


def test_the_team_pays_for_an_idle_job_and_not_for_one_that_was_preempted(
    submit: Submit, world: World, bucket: str
) -> None:
    lost = {}
    for reason in (Reason.IDLE, Reason.RECLAIMED):
        job = submit(name=reason.value)
        attempt = drive.run(job)
        Attempt.objects.filter(pk=attempt.pk).update(launched_at=timezone.now() - timedelta(minutes=40))
        metering_cycle.run()
        pass_without_progress(30)
        if reason is Reason.IDLE:
            guard_due()
        else:
            with transaction.atomic():
                locked = Job.objects.select_for_update().get(pk=job.pk)
                transitions.preempt_at_checkpoint(locked, reason, "", actor="test")
        drive.end(world, attempt, EndClass.STOPPED)
        lost[reason] = Meter.objects.get(attempt=attempt).fault_slot_seconds
    assert lost[Reason.IDLE] == 0
    assert lost[Reason.RECLAIMED] > 0


@pytest.mark.parametrize(
    "progress",
    [
        lambda attempt: drive.beat(attempt, step=2),
        lambda attempt: beat(attempt, phase="export"),
        lambda attempt: beat(attempt, generation=1),
        lambda attempt: report(attempt, "checkpoint.saved", step=1),
        lambda attempt: report(attempt, "evaluation", step=1),
        lambda attempt: report(attempt, "phase.finished", phase="compile", seconds=1.0),
        lambda attempt: report(attempt, "export.finished", seconds=1.0),
        measure,
    ],
    ids=["step", "phase", "restart", "checkpoint", "evaluation", "start-up", "export", "metrics"],
)
def test_progress_of_any_kind_begins_another_period(
    progress: Callable[[Attempt], None], submit: Submit, world: World
) -> None:
    job = submit()
    attempt = drive.run(job)
    pass_without_progress(60)
    assert list(find_idle([job.team_id], timezone.now() - timedelta(minutes=1)))
    progress(attempt)
    guard_due()
    assert (drive.status_of(job)[0], warnings(job)) == ("running", [])


def test_a_batch_of_metrics_that_is_appended_with_one_statement_is_progress(submit: Submit, world: World) -> None:
    job = submit()
    attempt = drive.run(job)
    measure(attempt)
    pass_without_progress(60)
    measure(attempt, sequence=1)
    guard_due()
    assert (drive.status_of(job)[0], warnings(job)) == ("running", [])


@pytest.mark.parametrize("kind", sorted(ingest.NO_PROGRESS))
def test_reports_of_a_stall_or_a_fault_are_no_progress(kind: str, submit: Submit, world: World) -> None:
    job = submit()
    attempt = drive.run(job)
    pass_without_progress(60)
    report(attempt, kind, because="test")
    guard_due()
    assert drive.status_of(job) == ("pausing", "idle")


def test_log_lines_are_no_progress(submit: Submit, world: World) -> None:
    job = submit()
    attempt = drive.run(job)
    pass_without_progress(60)
    line = LogLine(time=timezone.now(), rank=0, stream="stdout", text="waiting")
    ingest.ingest(attempt, "logs", Batch(writer="l", sequence=0, lines=[line]))
    guard_due()
    assert drive.status_of(job) == ("pausing", "idle")


def test_a_clock_of_a_node_that_is_behind_does_not_matter(submit: Submit, world: World) -> None:
    job = submit()
    attempt = drive.run(job)
    Attempt.objects.update(created_at=timezone.now() - timedelta(hours=3))
    attempt.refresh_from_db()
    pass_without_progress(60)
    measure(attempt, at=timezone.now() - timedelta(hours=2))
    guard_due()
    assert (drive.status_of(job)[0], warnings(job)) == ("running", [])


def test_a_job_is_not_judged_while_its_agent_is_silent_and_its_time_starts_again_afterwards(
    submit: Submit, world: World
) -> None:
    job = submit()
    attempt = drive.run(job)
    pass_without_progress(60)
    Heartbeat.objects.update(received_at=timezone.now() - timedelta(minutes=40))  # web was unreachable
    guard_due()
    assert (drive.status_of(job)[0], warnings(job)) == ("running", [])
    drive.beat(attempt, step=1)
    guard_due()
    assert (drive.status_of(job)[0], warnings(job)) == ("running", []), "what it did meanwhile is not known"
    pass_without_progress(30)
    guard_due()
    assert drive.status_of(job) == ("pausing", "idle")


def test_jobs_that_do_not_run_are_not_judged(submit: Submit, world: World, bucket: str) -> None:
    starting, stopping, pausing, paused = (submit(name=name) for name in ("starting", "stopping", "pausing", "paused"))
    drive.run(stopping)
    queued = submit(name="queued", resources={"cluster": "fake", "processes_per_node": 8})
    drive.run(pausing)
    attempt = drive.run(paused)
    drive.beat(drive.start(starting), step=-1)
    services.request_stop(stopping.id, actor="ada")
    services.request_pause(pausing.id, actor="ada")
    services.request_pause(paused.id, actor="ada")
    drive.settle()
    drive.end(world, attempt, EndClass.STOPPED)
    before = dict(Job.objects.values_list("name", "status"))
    assert before == {
        "queued": "queued", "starting": "starting", "stopping": "stopping", "pausing": "pausing", "paused": "paused",
    }  # fmt: skip
    pass_without_progress(90)
    guard_due()
    assert dict(Job.objects.values_list("name", "status")) == before
    assert not warnings(queued) + warnings(starting) + warnings(stopping) + warnings(pausing) + warnings(paused)


def test_a_request_of_a_user_is_not_overridden(submit: Submit, world: World) -> None:
    """The request came after the last run of the reconciler that stops jobs."""
    job = submit()
    drive.run(job)
    services.request_stop(job.id, actor="ada")
    pass_without_progress(90)
    guard_due()
    assert (drive.status_of(job)[0], warnings(job)) == ("running", [])


def test_a_job_that_only_prepares_data_is_not_judged(submit: Submit, world: World) -> None:
    job = submit()
    drive.run(job)
    Job.objects.filter(pk=job.pk).update(resolved_spec={**job.resolved_spec, "training": None})
    pass_without_progress(90)
    guard_due()
    assert (drive.status_of(job)[0], warnings(job)) == ("running", [])


def test_a_job_that_has_reported_its_end_is_not_judged(submit: Submit, world: World) -> None:
    job = submit()
    drive.report(drive.run(job), EndClass.COMPLETED)
    pass_without_progress(90)
    guard_due()
    assert (drive.status_of(job)[0], warnings(job)) == ("running", [])


def test_progress_that_an_earlier_version_received_is_not_judged(submit: Submit, world: World) -> None:
    job = submit()
    drive.run(job)
    pass_without_progress(90)
    Progress.objects.update(progressed_at=None)
    guard_due()
    assert (drive.status_of(job)[0], warnings(job)) == ("running", [])


def test_progress_that_comes_while_the_guard_decides_counts(
    submit: Submit, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = submit()
    attempt = drive.run(job)
    pass_without_progress(90)
    found = list(idle_guard.find_idle([job.team_id], timezone.now()))
    drive.beat(attempt, step=2)
    real = idle_guard.find_idle
    answers = iter([found])
    monkeypatch.setattr(idle_guard, "find_idle", lambda *of: next(answers, None) or real(*of))
    guard_due()
    assert (drive.status_of(job)[0], warnings(job)) == ("running", [])


def test_teams_without_limits_are_left_alone_and_the_shortest_limit_of_the_path_applies(
    submit: Submit, world: World, team: Team, other_team: Team
) -> None:
    job = submit()
    drive.run(job)
    QuotaNode.objects.update(idle_warning_seconds=None, idle_pause_seconds=None)
    pass_without_progress(60 * 24)
    guard_due()
    assert (idle_limits(), drive.status_of(job)[0], warnings(job)) == ({}, "running", [])
    QuotaNode.objects.filter(team=team).update(idle_warning_seconds=900)
    QuotaNode.objects.filter(parent=None).update(idle_warning_seconds=1200, idle_pause_seconds=172_800)
    assert idle_limits() == {team.id: IdleLimits(900, 172_800), other_team.id: IdleLimits(1200, 172_800)}
    guard_due()
    assert (drive.status_of(job)[0], len(warnings(job))) == ("running", 1)


def test_the_number_of_queries_does_not_depend_on_the_number_of_jobs(submit: Submit, world: World) -> None:
    counts = []
    for number in (1, 3):
        for index in range(number):
            drive.run(submit(name=f"job-{number}-{index}"))
        pass_without_progress(11)
        guard_due()  # warns of those that are not warned of yet
        with CaptureQueriesContext(connection) as queries:
            guard_due()
        counts.append(len(queries))
    assert counts[0] == counts[1] <= 4


def test_a_platform_administrator_sets_the_limits_and_the_team_reads_them(
    api: Api, api_of: Callable[[User, Team], Api], make_user: Callable[..., User], team: Team, other_team: Team
) -> None:
    owner = api_of(make_user("olga", team, Role.ADMIN), team)
    change = {"changes": [{"node": "red", "idle_warning_seconds": 120, "idle_pause_seconds": None}]}
    for client in (api, owner):
        assert client.send("PATCH", "quotas", change).status_code == 403
    boss = make_user("boss", other_team)
    User.objects.filter(pk=boss.pk).update(platform_role="platform_admin")
    admin = Api()
    admin.force_login(User.objects.get(pk=boss.pk))
    assert admin.send("PATCH", "quotas", change).status_code == 200
    assert admin.send("PATCH", "quotas", {"changes": [{"node": "red", "idle_pause_seconds": 59}]}).status_code == 422
    late = admin.send("PATCH", "quotas", {"changes": [{"node": "red", "idle_pause_seconds": 120}]})
    assert (late.status_code, late.json()["errors"][0]["code"]) == (422, "warns_too_late")
    [red] = [node for node in owner.send("GET", "quotas").json()["nodes"] if node["name"] == "red"]
    assert (red["idle_warning_seconds"], red["idle_pause_seconds"]) == (120, None)
    seen = api_of(make_user("bo", other_team), other_team).send("GET", "quotas").json()
    assert [node["name"] for node in seen["nodes"]] == ["organisation", "blue"]
    changed = AuditEvent.objects.filter(action="quota.change").latest("seq")
    assert changed.after["idle_warning_seconds"] == 120
