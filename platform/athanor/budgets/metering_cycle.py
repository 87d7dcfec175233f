"""The metering cycle: count usage, roll periods over, and preempt runs at a checkpoint whose budget or schedule
window has ended."""

from collections import Counter
from datetime import datetime
from functools import partial

from django.db import transaction
from django.db.models import F, Q, QuerySet
from django.utils import timezone

from athanor.accounts import audit
from athanor.accounts.failures import run_isolated
from athanor.budgets import meter, usage
from athanor.budgets.charges import Charging
from athanor.budgets.meter import UnfundedRun
from athanor.budgets.models import Budget, BudgetPeriod, Meter, Reservation
from athanor.budgets.periods import seconds_of
from athanor.budgets.prices import Tariffs
from athanor.budgets.schedule_windows import ScheduleWindows
from athanor.budgets.tariff import MICRO
from athanor.clusters.models import Pool
from athanor.core import task_triggers
from athanor.jobs import events, transitions
from athanor.jobs.models import Job
from athanor.jobs.reasons import Reason
from athanor.jobs.states import STOPPABLE_AT_CHECKPOINT, Desired
from athanor.quotas import services as quotas

ACTOR = "budgets"


def run() -> None:
    """Run one metering cycle.

    Preemptions, deferrals and warnings are isolated per row; an error while charging or rolling over ends the cycle.
    """
    now = timezone.now()
    usage.reweigh(quotas.settings().half_life_seconds, now)
    unfunded = meter.count_due(now)
    if meter.roll_over(now):
        unfunded += meter.count_due(now)
    for run in unfunded:
        run_isolated(task_triggers.METER, f"preempting job {run.job_id}", partial(_preempt_unfunded, run))
    for job in _deferrable():
        run_isolated(task_triggers.METER, f"deferring job {job.id}", partial(_defer, job, now))
    _store_burn_rates(now)
    for period in _periods_to_warn(now):
        run_isolated(task_triggers.METER, f"warning of budget {period.budget_id}", partial(_warn, period))


def _format_amount(budget: Budget, amount: int) -> str:
    """Format an amount of the budget for people, with its unit."""
    if budget.unit == Budget.Unit.SLOT_HOURS:
        return f"{amount / 3600:,.2f} slot-hours"
    return f"{amount / MICRO:,.2f} {budget.currency}"


def _preempt_unfunded(run: UnfundedRun) -> None:
    budget = run.budget
    detail = (
        f"Budget {budget.name!r} carries it only until {run.funded_until:%Y-%m-%d %H:%M:%S} UTC; "
        f"it is filled again at {run.period_end:%Y-%m-%d %H:%M} UTC."
    )
    with transaction.atomic():
        job = Job.objects.select_for_update(no_key=True).get(pk=run.job_id)
        data = {"budget": budget.id}
        transitions.preempt_at_checkpoint(job, Reason.BUDGET_EXHAUSTED, detail, actor=ACTOR, data=data)


def _deferrable() -> QuerySet[Job]:
    running = [status.value for status in STOPPABLE_AT_CHECKPOINT]
    rows = Job.objects.filter(status__in=running, desired=Desired.RUN.value)
    return rows.filter(resolved_spec__schedule__deferrable=True).select_related("pool__cluster").order_by("id")


def _defer(job: Job, now: datetime) -> None:
    closed = ScheduleWindows([job.pool], now).pause_reason(job)
    if closed:
        with transaction.atomic():
            locked = Job.objects.select_for_update(no_key=True).get(pk=job.pk)
            transitions.preempt_at_checkpoint(locked, Reason.WINDOW_CLOSED, closed, actor=ACTOR)


def _store_burn_rates(now: datetime) -> None:
    """Store, for each current period, the usage per day of what runs now."""
    periods = {
        row.budget_id: row for row in BudgetPeriod.objects.filter(start__lte=now, end__gt=now, budget__active=True)
    }
    if not periods:
        return
    rates: dict[str, int] = dict.fromkeys(periods, 0)
    charging, second = Charging(), seconds_of(now)
    rows = Meter.objects.filter(closed=False).values_list("job__team_id", "job__pool_id", "slots")
    running: Counter[tuple[str, str]] = Counter()
    for team, pool, slots in rows:
        running[team, pool] += slots
    pools = Pool.objects.in_bulk({pool for _, pool in running})
    tariffs = Tariffs(pools.values(), second, second + 1)
    for (team, pool), slots in running.items():
        for budget in charging.of(team, pools[pool]):
            if budget.id in rates:
                by_money = tariffs.price(pool).at(second) or 0
                hourly = slots * (3600 if budget.unit == Budget.Unit.SLOT_HOURS else by_money)
                rates[budget.id] += 24 * hourly
    for budget_id, row in periods.items():
        if row.rate_per_day != rates[budget_id]:
            BudgetPeriod.objects.filter(pk=row.pk).update(rate_per_day=rates[budget_id])


def _periods_to_warn(now: datetime) -> QuerySet[BudgetPeriod]:
    """Return current periods beyond their soft limit whose teams were not notified."""
    rows = BudgetPeriod.objects.filter(Q(start__lte=now, end__gt=now, warned_at=None, budget__active=True))
    return rows.filter(spent__gt=0, spent__gte=F("budget__amount") * F("budget__soft_percent") / 100).select_related(
        "budget"
    )


def _warn(period: BudgetPeriod) -> None:
    """Record once that the soft limit is passed, in the audit trail and the event feed of the teams.

    The teams are those with a job that holds a reservation in the period; the event is appended to the newest such job.
    """
    budget = period.budget
    message = (
        f"Budget {budget.name!r}: {_format_amount(budget, period.spent)} of "
        f"{_format_amount(budget, period.amount)} are spent; the period ends at {period.end:%Y-%m-%d %H:%M} UTC."
    )
    holders = Reservation.objects.filter(period=period).order_by("job__team_id", "-job_id").distinct("job__team_id")
    with transaction.atomic():
        newest = Job.objects.filter(pk__in=list(holders.values_list("job_id", flat=True)))
        jobs = list(newest.select_for_update(no_key=True).order_by("pk"))  # jobs are locked before budgets
        if BudgetPeriod.objects.select_for_update(no_key=True).get(pk=period.pk).warned_at is not None:
            return  # another cycle has warned
        BudgetPeriod.objects.filter(pk=period.pk).update(warned_at=timezone.now())
        facts = {"budget": budget.id, "name": budget.name, "spent": period.spent, "amount": period.amount}
        for job in jobs:
            events.append(job, "job.budget_warning", actor=ACTOR, message=message, data=facts)
            job.save(update_fields=["event_seq", "updated_at"])
        after = {"period": period.start.isoformat(), "spent": period.spent, "amount": period.amount}
        audit.record("budget.warn", actor=ACTOR, target=("budget", budget.id), after=after)
