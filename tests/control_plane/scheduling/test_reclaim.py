"""Reclaiming borrowed slots at a checkpoint, the reasons of waiting jobs, and the replay of decisions."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.utils import timezone

from athanor.accounts.models import Team, User
from athanor.backends.fake.backend import World
from athanor.clusters.models import Node, Pool
from athanor.jobs import services as jobs
from athanor.jobs.models import Job
from athanor.quotas.models import AdmissionSettings, QuotaGrant
from athanor.quotas.services import leaf_of
from athanor.scheduling import services, stored_cycles
from athanor.scheduling.models import AdmissionCycle
from tests.control_plane import drive
from trainer.contract.run import EndClass, StopRequest

pytestmark = pytest.mark.django_db


@pytest.fixture
def of_blue(submit: Callable[..., Job], other_team: Team) -> Callable[..., Job]:
    """A queued job of the other team."""

    def make(**changes: Any) -> Job:
        job = submit(**changes)
        Job.objects.filter(pk=job.pk).update(team=other_team)
        job.refresh_from_db()
        return job

    return make


@pytest.fixture
def halves(team: Team, other_team: Team, pool: Pool) -> None:
    """Give each team half of the eight slots, and let it borrow the other half."""
    AdmissionSettings.objects.create(protected_seconds=0)
    for each in (team, other_team):
        QuotaGrant.objects.create(node=leaf_of(each), accelerator="cpu", nominal=4)


def test_who_claims_its_own_gets_it_from_who_borrows_it(
    submit: Callable[..., Job], of_blue: Callable[..., Job], halves: None, world: World, bucket: str
) -> None:
    red = [submit(resources={"cluster": "fake", "processes_per_node": 4}) for _ in range(2)]
    for job in red:
        drive.run(job)
    blue = of_blue(resources={"cluster": "fake", "processes_per_node": 4})
    services.admit()
    asked = [job for job in red if drive.status_of(job) == ("pausing", "reclaimed")]
    assert len(asked) == 1, "one of the two is enough"
    assert drive.status_of(blue)[0] == "queued", "it starts when the slots are free, not before"
    services.admit()
    assert Job.objects.filter(status="pausing").count() == 1, "nobody more is asked while one is leaving"
    attempt = drive.attempt_of(asked[0])
    from athanor.dispatch.services import stop_request_of

    assert stop_request_of(attempt) is StopRequest.PAUSE, "its agent is asked for a checkpoint"
    drive.end(world, attempt, EndClass.STOPPED)
    assert drive.status_of(asked[0]) == ("queued", "reclaimed")
    services.admit()
    assert drive.status_of(blue)[0] == "admitted"
    assert drive.status_of(asked[0])[0] == "queued"
    asked[0].refresh_from_db()
    assert asked[0].preemptions == 1
    assert asked[0].attempts.get().reason == "reclaimed", "it is no fault that counts"
    drive.end(world, drive.start(blue), EndClass.DATA_ERROR)
    services.admit()
    assert drive.status_of(asked[0])[0] == "admitted"


def test_within_its_quota_nobody_is_preempted(
    submit: Callable[..., Job], of_blue: Callable[..., Job], halves: None, world: World
) -> None:
    red = submit(resources={"cluster": "fake", "processes_per_node": 4})
    drive.run(red)
    blue = of_blue(resources={"cluster": "fake", "processes_per_node": 8})
    services.admit()
    assert drive.status_of(red)[0] == "running"
    assert drive.status_of(blue)[0] == "queued"


def test_what_waits_says_on_what_who_has_it_and_where_it_stands(
    submit: Callable[..., Job], of_blue: Callable[..., Job], halves: None, world: World
) -> None:
    drive.run(of_blue(resources={"cluster": "fake", "processes_per_node": 8}))
    first = submit(resources={"cluster": "fake", "processes_per_node": 8})
    second = submit(resources={"cluster": "fake", "processes_per_node": 8})
    services.admit()
    for place, job in enumerate((first, second), 1):
        job.refresh_from_db()
        assert job.waiting is not None
        assert job.waiting["position"] == place
        assert job.waiting["unblocks"]
        assert job.reason_detail
    assert first.waiting is not None
    assert first.waiting["blocker"]["held_by"] == [{"team": "blue", "slots": 8}]
    assert first.waiting["blocker"]["own_jobs"] == [], "another team's jobs are not named"


def test_whose_turn_it_is_is_told_by_name_only_within_the_team(
    submit: Callable[..., Job], of_blue: Callable[..., Job], world: World
) -> None:
    drive.run(submit(resources={"cluster": "fake", "processes_per_node": 4}))
    head = of_blue(resources={"cluster": "fake", "processes_per_node": 8})
    mine = submit(time_limit_seconds=10**6)
    services.admit()
    mine.refresh_from_db()
    assert mine.waiting is not None
    assert mine.waiting["blocker"]["name"] == "an earlier job of another team"
    assert head.id not in str(mine.waiting) + mine.reason_detail
    Job.objects.filter(pk=head.pk).update(team=mine.team)
    Job.objects.filter(pk=mine.pk).update(reason="")
    services.admit()
    mine.refresh_from_db()
    assert mine.waiting is not None
    assert mine.waiting["blocker"]["name"] == head.id


def test_a_decision_is_stored_and_made_again(submit: Callable[..., Job], halves: None) -> None:
    submit(), submit()
    services.admit()
    cycle = AdmissionCycle.objects.get()
    assert len(cycle.admitted) == 2
    assert stored_cycles.differences(cycle) == []
    AdmissionCycle.objects.update(digest="0" * 64)
    with pytest.raises(ValueError, match="changed after it was stored"):
        stored_cycles.differences(AdmissionCycle.objects.get())


def test_it_waits_for_its_time_and_expires_at_its_deadline(submit: Callable[..., Job]) -> None:
    later = datetime.now(UTC) + timedelta(hours=1)
    job = submit(schedule={"not_before": later.isoformat(), "deadline": (later + timedelta(hours=1)).isoformat()})
    services.admit()
    assert drive.status_of(job) == ("queued", "not_before")
    Job.objects.filter(pk=job.pk).update(not_before=timezone.now() - timedelta(seconds=1))
    Job.objects.filter(pk=job.pk).update(expires_at=timezone.now(), deadline=timezone.now())
    services.admit()
    assert drive.status_of(job) == ("expired", "deadline_missed")


def test_nodes_that_take_no_work_do_not_count(submit: Callable[..., Job], pool: Pool) -> None:
    Node.objects.create(cluster=pool.cluster, name="n1", state="down", listed=True, slots=8, accelerator="cpu")
    job = submit()
    services.admit()
    assert drive.status_of(job) == ("queued", "waiting_for_capacity")
    Node.objects.update(state="ready")
    services.admit()
    assert drive.status_of(job)[0] == "admitted"


def test_a_pause_by_its_user_wins_over_a_reclaim(
    submit: Callable[..., Job], of_blue: Callable[..., Job], halves: None, world: World, user: User
) -> None:
    red = submit(resources={"cluster": "fake", "processes_per_node": 8})
    drive.run(red)
    of_blue(resources={"cluster": "fake", "processes_per_node": 4})
    services.admit()
    assert drive.status_of(red) == ("pausing", "reclaimed")
    jobs.request_pause(red.id, user.username)
    drive.end(world, drive.attempt_of(red), EndClass.STOPPED)
    assert drive.status_of(red) == ("paused", "paused_by_user")
