"""The failure rate of a pool, by which the trainer chooses the interval of checkpoints."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from athanor.accounts.models import Team, User
from athanor.budgets.failure_rate import WINDOW, slot_hours_between_failures_of
from athanor.budgets.models import Meter
from athanor.clusters.models import Pool
from athanor.core import ids
from athanor.dispatch import tokens
from athanor.jobs.models import Attempt, Job
from athanor.jobs.reasons import Reason
from tests.control_plane import drive
from tests.control_plane.api.test_agent import AgentClient
from trainer.contract.checkpoint_interval import SLOT_HOURS_BETWEEN_FAILURES as PUBLISHED

pytestmark = pytest.mark.django_db

HOURS = 10_000


def ended(job: Job, reason: Reason | None, *, days_ago: float = 1.0, trained: bool = True, **changes: Any) -> Attempt:
    """Return an attempt that has held HOURS slot-hours."""
    began = timezone.now() - timedelta(days=days_ago)
    number = Attempt.objects.filter(job=job).count() + 1
    attempt = Attempt.objects.create(
        id=ids.earliest_id("att", began)[:-4] + f"{number:04d}", job=job, number=number, status="ended",
        backend_name=f"{job.id}-{number}", launched_at=began, started_at=began if trained else None,
        ended_at=timezone.now(), reason=reason.value if reason else "", **changes,
    )  # fmt: skip
    Meter.objects.create(
        attempt=attempt, job=job, slots=8, began_at=began, metered_until=began, due_at=began, closed=True,
        slot_seconds=HOURS * 3600,
    )  # fmt: skip
    return attempt


def test_a_pool_without_history_has_the_published_rate(pool: Pool) -> None:
    assert slot_hours_between_failures_of(pool) == PUBLISHED


def test_ends_that_users_did_not_cause_count_as_failures_and_all_held_time_counts(
    submit: Callable[..., Job], pool: Pool
) -> None:
    job = submit()
    for reason in (Reason.NODE_LOST, Reason.GPU_FAULT, Reason.STORAGE_ERROR, Reason.TRAINER_ERROR, Reason.PREEMPTED):
        ended(job, reason)
    assert slot_hours_between_failures_of(pool) == (PUBLISHED + 5 * HOURS) / (1 + 5)
    for reason in (
        Reason.COMPLETED, Reason.STOPPED_BY_USER, Reason.STOPPED_BY_ADMIN, Reason.PAUSED_BY_USER, Reason.RECLAIMED,
        Reason.SPOT_NOTICE, Reason.BAD_SPEC, Reason.USER_ERROR, Reason.OUT_OF_MEMORY, Reason.LOSS_DIVERGED,
    ):  # fmt: skip
        ended(job, reason)
    assert slot_hours_between_failures_of(pool) == (PUBLISHED + 15 * HOURS) / (1 + 5)


def test_only_recent_attempts_of_the_pool_that_lost_training_are_failures(
    submit: Callable[..., Job], pool: Pool
) -> None:
    job = submit()
    ended(job, Reason.NODE_LOST, days_ago=WINDOW.days + 1)
    assert slot_hours_between_failures_of(pool) == PUBLISHED
    ended(job, Reason.LAUNCH_FAILED, trained=False)
    ended(job, Reason.INTERRUPTED, end_report={"end_class": "stopped"})
    assert slot_hours_between_failures_of(pool) == PUBLISHED + 2 * HOURS
    ended(job, Reason.PROCESS_KILLED, end_report={"end_class": "process_killed"})
    assert slot_hours_between_failures_of(pool) == (PUBLISHED + 3 * HOURS) / 2
    other = Pool.objects.create(cluster=pool.cluster, name="other", slots_per_node=8, memory_bytes=2**30)
    assert slot_hours_between_failures_of(other) == PUBLISHED


def test_an_agent_is_given_the_rate_over_all_teams_if_the_interval_is_automatic(
    submit: Callable[..., Job], pool: Pool, make_user: Callable[..., User], other_team: Team, bucket: str
) -> None:
    others, job, fixed = submit(), submit(checkpoint={"every_minutes": "auto"}), submit()
    Job.objects.filter(pk=others.pk).update(team=other_team, status="failed")
    ended(others, Reason.NODE_LOST)
    for asked, expected in ((job, (PUBLISHED + HOURS) / 2), (fixed, PUBLISHED)):
        agent = AgentClient(tokens.issue(drive.start(asked).id))
        assert agent("GET", "run").json()["slot_hours_between_failures"] == pytest.approx(expected)
