"""Budgets from admission to the end of a run: reservation, metering, release, refunds, and preemption."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import DatabaseError, transaction
from django.utils import timezone

from athanor.accounts.models import Team
from athanor.backends.fake.backend import World
from athanor.budgets import ledger, meter, refunds, reservations, usage
from athanor.budgets.models import Budget, BudgetPeriod, Meter, Reservation, Transfer, UsageHour
from athanor.clusters.models import Pool
from athanor.jobs import transitions
from athanor.jobs.models import Attempt, Job
from athanor.jobs.reasons import Reason
from athanor.jobs.states import JobStatus
from athanor.quotas import services as quotas
from tests.control_plane import drive

pytestmark = pytest.mark.django_db

NOON = datetime(2026, 3, 10, 12, tzinfo=UTC)
HOUR = 3600


@pytest.fixture
def budget(team: Team) -> Callable[..., Budget]:
    def make(amount: int, **changes: Any) -> Budget:
        facts = {"unit": "slot_hours", "period": "day", "hard": True, "name": f"b{amount}", "created_at": NOON}
        facts |= {"node": quotas.leaf_of(team), "amount": amount}
        return Budget.objects.create(**{**facts, **changes})

    return make


def state(budget: Budget, at: datetime = NOON) -> tuple[int, int, int]:
    """Return what is available, reserved and spent in the period of that time."""
    row = ledger.balances(budget, at)
    assert row is not None
    return row.allowance, row.reserved, row.spent


def admit(job: Job, at: datetime) -> None:
    with transaction.atomic():
        quotas.locked_root()
        ledger.reserve([job], at)
        transitions.move(job, JobStatus.ADMITTED, actor="test")


def launch(job: Job, at: datetime) -> Attempt:
    """Return an attempt of the job that was launched at that time."""
    with transaction.atomic():
        for to in (JobStatus.DISPATCHING, JobStatus.STARTING, JobStatus.RUNNING):
            transitions.move(job, to, actor="test")
    return Attempt.objects.create(job=job, number=1, backend_name=job.id, launched_at=at)


def finish(job: Job, attempt: Attempt, at: datetime) -> None:
    Attempt.objects.filter(pk=attempt.pk).update(status="ended", ended_at=at)
    with transaction.atomic():
        transitions.move(job, JobStatus.FAILED, reason=Reason.USER_ERROR, actor="test")


def sound() -> None:
    assert ledger.check(NOON) == []


def test_a_run_reserves_its_time_is_counted_and_releases_the_rest(submit: Callable, budget: Callable) -> None:
    held = budget(10 * HOUR)
    job = submit(time_limit_seconds=2 * HOUR, resources={"cluster": "fake", "processes_per_node": 2})
    found = reservations.plan_reservations([job], NOON)
    assert found.costs == {job.id: ((held.id, 4 * HOUR),)}
    assert [(row.available, row.hard) for row in found.budgets] == [(10 * HOUR, True)]
    admit(job, NOON)
    assert state(held) == (6 * HOUR, 4 * HOUR, 0)
    attempt = launch(job, NOON)
    assert meter.count_due(NOON + timedelta(seconds=100.7)) == []
    assert state(held) == (6 * HOUR, 4 * HOUR - 200, 200)
    assert meter.count_due(NOON + timedelta(seconds=101)) == [], "it is not due yet"
    assert state(held)[2] == 200
    finish(job, attempt, NOON + timedelta(seconds=1000))
    assert state(held) == (10 * HOUR - 2000, 0, 2000)
    assert not Reservation.objects.exists()
    assert UsageHour.objects.get().slot_seconds == 2000
    sound()


def test_money_is_exact_however_often_it_is_counted(submit: Callable, budget: Callable, pool: Pool) -> None:
    Pool.objects.update(price_per_slot_hour="0.0001")  # 100 millionths an hour: less than one in 35 seconds
    held = budget(1000, unit="money", currency="USD")
    job = submit(time_limit_seconds=HOUR)
    admit(job, NOON)
    attempt = launch(job, NOON)
    for second in range(10, 3000, 130):
        Meter.objects.update(due_at=NOON)
        meter.count_due(NOON + timedelta(seconds=second))
    finish(job, attempt, NOON + timedelta(seconds=3600))
    assert state(held) == (900, 0, 100)
    assert Meter.objects.get().cost == UsageHour.objects.get().cost == 100
    sound()


def test_at_the_end_of_a_period_the_rest_is_released_and_reserved_in_the_next(
    submit: Callable, budget: Callable
) -> None:
    held = budget(20 * HOUR)
    job = submit(time_limit_seconds=24 * HOUR)
    admit(job, NOON)
    assert state(held) == (8 * HOUR, 12 * HOUR, 0), "up to midnight"
    launch(job, NOON)
    meter.count_due(NOON + timedelta(hours=11))
    late = NOON + timedelta(hours=12, seconds=5)
    assert meter.count_due(late) == []
    meter.roll_over(late)
    assert state(held) == (8 * HOUR, 0, 12 * HOUR)
    assert state(held, late) == (8 * HOUR, 12 * HOUR - 5, 5)
    assert not Transfer.objects.filter(kind="overrun").exists()
    sound()


def test_a_job_that_waits_for_its_launch_is_reserved_for_in_the_new_period(submit: Callable, budget: Callable) -> None:
    held = budget(20 * HOUR)
    job = submit(time_limit_seconds=24 * HOUR)
    admit(job, NOON)
    late = NOON + timedelta(hours=13)
    assert reservations.plan_reservations([job], late).budgets[0].available == 0, "what holds slots comes first"
    assert meter.roll_over(late)
    assert state(held) == (20 * HOUR, 0, 0)
    assert state(held, late) == (0, 20 * HOUR, 0), "it asked for 23 hours of that day"
    assert not meter.roll_over(late), "once"
    sound()


def test_a_hard_budget_stops_a_run_in_time_for_its_checkpoint(submit: Callable, budget: Callable) -> None:
    held = budget(2 * HOUR)
    job = submit(time_limit_seconds=HOUR)
    admit(job, NOON)
    launch(job, NOON)
    assert meter.count_due(NOON + timedelta(seconds=100)) == []
    Budget.objects.update(amount=600)
    with transaction.atomic():
        period = BudgetPeriod.objects.get()
        book = ledger.Book([period.pk], [], NOON)
        book.adjust(period.pk, 600 - 2 * HOUR)
        book.write()
    assert meter.roll_over(NOON + timedelta(seconds=110))
    assert state(held) == (0, 500, 100)
    assert meter.count_due(NOON + timedelta(seconds=110)) == []
    assert Meter.objects.get().due_at <= NOON + timedelta(seconds=600 - meter.PREEMPT_LEAD_SECONDS)
    stops = meter.count_due(NOON + timedelta(seconds=540))
    assert [(stop.job_id, stop.funded_until) for stop in stops] == [(job.id, NOON + timedelta(seconds=600))]
    sound()


def test_a_soft_budget_goes_below_zero_and_stops_nobody(submit: Callable, budget: Callable) -> None:
    held = budget(HOUR, hard=False)
    job = submit(time_limit_seconds=2 * HOUR)
    admit(job, NOON)
    assert state(held) == (-HOUR, 2 * HOUR, 0)
    launch(job, NOON)
    assert meter.count_due(NOON + timedelta(hours=2, seconds=30)) == []
    assert state(held) == (-HOUR - 30, 0, 2 * HOUR + 30)
    assert Transfer.objects.get(kind="overrun").amount == 30
    sound()


def test_what_a_fault_lost_is_paid_back_and_recorded_apart(submit: Callable, budget: Callable, pool: Pool) -> None:
    Pool.objects.update(price_per_slot_hour="3.6")  # a thousand millionths a second
    hours, money = budget(10 * HOUR), budget(10**8, unit="money", currency="USD")
    job = submit(time_limit_seconds=2 * HOUR)
    admit(job, NOON)
    attempt = launch(job, NOON)
    meter.count_due(NOON + timedelta(seconds=500))
    end = NOON + timedelta(seconds=1000)
    Attempt.objects.update(status="ended", ended_at=end)
    attempt.refresh_from_db()
    for _ in range(2):  # the second time changes nothing
        with transaction.atomic():
            refunds.refund_lost_work(attempt, job, NOON + timedelta(seconds=700))
    with transaction.atomic():
        transitions.move(job, JobStatus.QUEUED, reason=Reason.NODE_LOST, actor="test")
    assert state(hours) == (10 * HOUR - 700, 0, 700)
    assert state(money)[1:] == (0, 700_000)
    assert {row.lost for row in BudgetPeriod.objects.all()} == {300, 300_000}
    row = UsageHour.objects.get()
    assert (row.slot_seconds, row.fault_slot_seconds, row.fault_cost) == (1000, 300, 300_000)
    sound()


def test_budgets_of_every_node_above_are_charged(submit: Callable, budget: Callable) -> None:
    own, all_, other = budget(HOUR), budget(2 * HOUR, node=quotas.root()), budget(3, accelerator="h100")
    job = submit(time_limit_seconds=60)
    assert dict(reservations.plan_reservations([job], NOON).costs[job.id]) == {own.id: 60, all_.id: 60}
    assert other.id not in dict(reservations.plan_reservations([job], NOON).costs[job.id])


def test_a_budget_that_was_made_while_a_job_runs_is_charged_from_then_on(submit: Callable, budget: Callable) -> None:
    job = submit(time_limit_seconds=2 * HOUR)
    admit(job, NOON - timedelta(minutes=30))
    attempt = launch(job, NOON - timedelta(minutes=30))
    meter.count_due(NOON)
    held = budget(10 * HOUR)
    assert meter.roll_over(NOON)
    assert state(held) == (8.5 * HOUR, 1.5 * HOUR, 0)
    finish(job, attempt, NOON + timedelta(seconds=10))
    assert state(held) == (10 * HOUR - 10, 0, 10)
    sound()


def test_recent_use_fades_by_its_half_life(submit: Callable) -> None:
    job = submit(time_limit_seconds=10 * HOUR)
    admit(job, NOON)
    launch(job, NOON)
    for minutes in range(1, 121):
        Meter.objects.update(due_at=NOON)
        meter.count_due(NOON + timedelta(minutes=minutes))
    half_life = quotas.settings().half_life_seconds
    at = NOON + timedelta(hours=2)
    found = usage.recent(half_life, at)[job.team_id, "cpu"]
    assert found == pytest.approx(1 - 0.5 ** (2 * HOUR / half_life), rel=1e-3), "as if it had always been so"
    later = usage.recent(half_life, at + timedelta(seconds=half_life))[job.team_id, "cpu"]
    assert later == pytest.approx(found / 2)
    assert usage.recent(HOUR, at)[job.team_id, "cpu"] == pytest.approx(0.75, rel=0.05), (
        "another setting: from the hours"
    )


def test_the_ledger_cannot_be_changed(budget: Callable) -> None:
    held = budget(5)
    with transaction.atomic():
        ledger.open_period(held, int(NOON.timestamp()), int(NOON.timestamp()) + 60, timezone.now())
    for change in (lambda: Transfer.objects.update(amount=1), lambda: Transfer.objects.all()._raw_delete("default")):
        with pytest.raises(DatabaseError, match="append-only"), transaction.atomic():
            change()


def test_through_the_real_sweepers(submit: Callable, budget: Callable, world: World) -> None:
    """Follow a job from admission, which reserves, to its end, which releases."""
    held = budget(1000 * HOUR, created_at=timezone.now() - timedelta(minutes=1), period="month")
    job = submit(time_limit_seconds=60)
    attempt = drive.run(job)
    now = timezone.now()
    meter.roll_over(now)
    assert 0 < state(held, now)[1] <= 60
    world.finish(attempt.backend_name, 1)
    drive.settle()
    assert state(held, now)[1] == 0
    assert ledger.check() == []
