"""Metering: every attempt is counted from its launch on, in whole seconds, each second exactly once.

A `Meter` records until when its attempt is counted; it is updated in the transaction that writes what was counted, so a
worker that is killed in between has done neither. Young runs are counted in every cycle, old ones every five minutes,
all when a period ends or a budget is nearly exhausted.

A run that its hard budget can no longer pay for is preempted at a checkpoint, `PREEMPT_LEAD_SECONDS` before the budget
is exhausted.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

from django.db import transaction
from django.db.models import Exists, OuterRef, Q, QuerySet
from django.utils import timezone

from athanor.budgets import charges, ledger, tariff, usage
from athanor.budgets.charges import Charging, Span
from athanor.budgets.ledger import Book
from athanor.budgets.models import Budget, BudgetPeriod, JobGoodput, Meter, Reservation
from athanor.budgets.periods import moment_of, pieces, seconds_of
from athanor.budgets.prices import Tariffs
from athanor.budgets.schedule_windows import has_ceiling
from athanor.clusters.models import Pool
from athanor.jobs.models import Attempt, Job
from athanor.jobs.states import HOLDING, AttemptStatus
from athanor.quotas import services as quotas

PREEMPT_LEAD_SECONDS = 60  # time for a run to save its checkpoint before its budget is exhausted
CYCLE_SECONDS = 10  # interval of metering cycles
# A run is metered again after a twentieth of its age, within these bounds.
MIN_INTERVAL_SECONDS, MAX_INTERVAL_SECONDS = 10, 300
BATCH = 50  # meters per transaction: admission waits meanwhile
_holding = Q(status__in=[status.value for status in HOLDING])


@dataclass(frozen=True)
class UnfundedRun:
    """A running job, and the hard budget that pays for it only until `funded_until`."""

    job_id: str
    budget: Budget
    funded_until: datetime
    period_end: datetime


@dataclass
class _CycleResult:
    """What counting some meters found: runs to preempt, and the usage to store."""

    unfunded: list[UnfundedRun] = field(default_factory=list)
    used: dict[tuple[str, str], int] = field(default_factory=lambda: defaultdict(int))
    hours: list[tuple[usage.Where, dict[str, int]]] = field(default_factory=list)


def due(now: datetime) -> QuerySet[Meter]:
    """Return the open meters that are due."""
    return Meter.objects.filter(closed=False, due_at__lte=now)


def unmetered() -> QuerySet[Attempt]:
    """Return the launched attempts without a meter."""
    return Attempt.objects.filter(~Q(status=AttemptStatus.ENDED.value), launched_at__isnull=False, meter__isnull=True)


def count_due(now: datetime) -> list[UnfundedRun]:
    """Count all due meters. Return the runs that must be preempted."""
    _begin(unmetered().select_related("job__pool"))
    unfunded: list[UnfundedRun] = []
    seen: set[str] = set()
    while ids := list(due(now).exclude(pk__in=seen).order_by("due_at").values_list("pk", flat=True)[:BATCH]):
        seen.update(ids)
        with transaction.atomic():
            quotas.locked_root()
            meters = [meter for meter in _locked(ids) if not meter.closed]  # another worker may have closed it since
            unfunded += _count(meters, now, closing=False)
    return unfunded


def release(job: Job) -> None:
    """Count the rest of a job that no longer holds slots, and release its reservations.

    The caller has locked the job's row.
    """
    now = timezone.now()
    _begin(job.attempts.filter(launched_at__isnull=False, meter__isnull=True).select_related("job__pool"))
    open_ = list(Meter.objects.filter(job=job, closed=False).values_list("pk", flat=True))
    _count(_locked(open_), now, closing=True)
    held = list(Reservation.objects.filter(job=job).values_list("period", flat=True))
    if held:
        book = Book(held, [job.id], now)
        for period, job_id in list(book.reserved):
            book.release(period, job_id, job.team_id)
        book.write()


def close(attempt: Attempt) -> Meter | None:
    """Return the attempt's meter, counted to its end; None if it was never launched.

    The caller has locked the job's row.
    """
    _begin(
        Attempt.objects.filter(pk=attempt.pk, launched_at__isnull=False, meter__isnull=True).select_related("job__pool")
    )
    meters = _locked([attempt.pk])
    _count([meter for meter in meters if not meter.closed], timezone.now(), closing=True)
    return meters[0] if meters else None


def _begin(attempts: QuerySet[Attempt]) -> None:
    rows = []
    for attempt in attempts:
        assert attempt.launched_at is not None
        began = attempt.launched_at.replace(microsecond=0)
        slots = charges.slots_of(attempt.job, attempt.job.pool)
        rows.append(
            Meter(attempt=attempt, job=attempt.job, slots=slots, began_at=began, metered_until=began, due_at=began)
        )
    Meter.objects.bulk_create(rows, ignore_conflicts=True)
    jobs = {row.job_id: JobGoodput(job=row.job, due_at=row.began_at) for row in rows}
    JobGoodput.objects.bulk_create(jobs.values(), ignore_conflicts=True)


def _locked(ids: Sequence[str]) -> list[Meter]:
    rows = Meter.objects.select_for_update(no_key=True, of=("self",)).select_related("attempt", "job__pool__cluster")
    return list(rows.filter(pk__in=ids).order_by("pk")) if ids else []


def _count(meters: list[Meter], now: datetime, *, closing: bool) -> list[UnfundedRun]:
    """Count meters that the caller has locked. Return the runs that must be preempted.

    Unless `closing`, the caller also holds the lock of admission, because missing amounts are reserved.
    """
    if not meters:
        return []
    charging, found = Charging(), _CycleResult()
    until = {meter.pk: max(meter.metered_until, min(now, meter.attempt.ended_at or now)) for meter in meters}
    ends = {meter.pk: _latest_end(meter) for meter in meters}
    tariffs = Tariffs(
        [meter.job.pool for meter in meters],
        min(seconds_of(meter.metered_until) for meter in meters),
        max(seconds_of(now) + 1, *(_horizon(meter, ends[meter.pk], charging, now) for meter in meters)),
    )
    touched = _touched(meters, until, charging)
    periods = ledger.period_ids(set().union(*touched.values()), now)
    held = Reservation.objects.filter(job__in=[meter.job_id for meter in meters]).values_list("period", flat=True)
    book = Book([*periods.values(), *held], [meter.job_id for meter in meters], now)
    for meter in meters:
        update = _MeterUpdate(meter, tariffs, charging, book, periods, found)
        if not closing:
            update.reserve_first(touched[meter.pk], ends[meter.pk])
        update.count(seconds_of(until[meter.pk]))
        ended = meter.attempt.ended_at is not None
        if closing or ended:
            meter.closed = True
            update.save_baseline()
        update.release_ended(until[meter.pk])
        if not (closing or ended):
            update.plan_next(now, ends[meter.pk])
    book.write()
    Meter.objects.bulk_update(
        meters,
        ["metered_until", "due_at", "rest", "slot_seconds", "cost", "milligrams", "closed"]
        + ["saved_cost", "saved_milligrams"],
    )
    usage.add(found.hours)
    usage.note_recent(found.used, quotas.settings().half_life_seconds, now)
    return found.unfunded


def _latest_end(meter: Meter) -> int:
    return seconds_of(meter.began_at) + charges.time_limit(meter.job)


def _horizon(meter: Meter, end: int, charging: Charging, now: datetime) -> int:
    """Return until when prices are needed: the end of the run, or of its last current period if that is earlier."""
    ends = [charging.span(budget, now).end for budget in charging.of(meter.job.team_id, meter.job.pool)]
    return min(end, max(ends)) if ends else 0


def _touched(
    meters: list[Meter], until: dict[str, datetime], charging: Charging
) -> dict[str, set[tuple[Budget, int, int]]]:
    """Return, for each meter, (budget, start, end) of the current period and those that the counted time is in."""
    found: dict[str, set[tuple[Budget, int, int]]] = {}
    for meter in meters:
        start, end = seconds_of(meter.metered_until), seconds_of(until[meter.pk])
        moments = [moment_of(begins) for begins, _ in pieces(start, end)] + [until[meter.pk]]
        found[meter.pk] = set()
        for budget in charging.of(meter.job.team_id, meter.job.pool):
            for moment in moments:
                if moment >= budget.created_at.replace(microsecond=0):
                    span = charging.span(budget, moment)
                    found[meter.pk].add((budget, span.start, span.end))
    return found


@dataclass
class _MeterUpdate:
    """The update of one meter in a metering cycle."""

    meter: Meter
    tariffs: Tariffs
    charging: Charging
    book: Book
    periods: dict[tuple[str, int], int]
    found: _CycleResult

    def __post_init__(self) -> None:
        self.job = self.meter.job
        self.prices = self.tariffs.price(self.job.pool_id)
        self.budgets = self.charging.of(self.job.team_id, self.job.pool)

    def reserve_first(self, touched: set[tuple[Budget, int, int]], latest: int) -> None:
        """Reserve in periods that the run has entered since the last count, before it is counted there."""
        began = seconds_of(self.meter.metered_until)
        for budget, start, end in sorted(touched, key=lambda found: (found[1], found[0].id)):
            period = self.periods[budget.id, start]
            if (period, self.job.id) not in self.book.reserved and moment_of(end) > self.book.now:
                self._reserve(budget, period, max(began, start), min(latest, end))

    def count(self, end: int) -> None:
        """Charge the time until `end`, in seconds since 1970."""
        meter = self.meter
        carbon, watts = self.tariffs.carbon(self.job.pool_id), self.tariffs.watts(self.job.pool_id) * meter.slots
        for begins, ends in pieces(seconds_of(meter.metered_until), end):
            slot_seconds = meter.slots * (ends - begins)
            cost, meter.rest = tariff.cost_with_rest(self.prices, meter.slots, begins, ends, meter.rest)
            milligrams = tariff.milligrams(carbon, watts, begins, ends)
            meter.slot_seconds += slot_seconds
            meter.cost += cost
            meter.milligrams += milligrams
            self._charge(moment_of(begins), slot_seconds, cost)
            facts = {"slot_seconds": slot_seconds, "cost": cost, "milligrams": milligrams}
            self.found.hours.append((where(self.job, moment_of(begins)), facts))
            self.found.used[self.job.team_id, self.job.pool.accelerator] += slot_seconds
        meter.metered_until = moment_of(max(end, seconds_of(meter.metered_until)))

    def release_ended(self, until: datetime) -> None:
        """Release the job's reservations in periods that ended by `until`."""
        for period, job_id in [key for key in self.book.reserved if key[1] == self.job.id]:
            if self.book.periods[period].end <= until:
                self.book.release(period, job_id, self.job.team_id)

    def plan_next(self, now: datetime, latest: int) -> None:
        """Set when to count next, and report the run if a hard budget will be exhausted before it ends."""
        second = seconds_of(now)
        wait = min(MAX_INTERVAL_SECONDS, max(MIN_INTERVAL_SECONDS, (second - seconds_of(self.meter.began_at)) // 20))
        next_at = second + wait
        for budget in self.budgets:
            span = self.charging.span(budget, now)
            period = self.periods.get((budget.id, span.start))
            if period is None:
                continue
            next_at = min(next_at, span.end)
            needed_until = min(latest, span.end)
            self._reserve(budget, period, second, needed_until)
            funded_until = self._funded_until(budget, period, second, needed_until)
            if funded_until < needed_until:
                last = funded_until - PREEMPT_LEAD_SECONDS
                next_at = min(next_at, max(last, second))
                if last <= second + CYCLE_SECONDS:
                    self.found.unfunded.append(
                        UnfundedRun(self.job.id, budget, moment_of(funded_until), moment_of(span.end))
                    )
        self.meter.due_at = moment_of(max(next_at, second + 1))

    def save_baseline(self) -> None:
        """Store the difference to the cost if the job had started when it was submitted."""
        if not has_ceiling(self.job):
            return
        meter, job = self.meter, self.job
        before = sum(
            other.slot_seconds // other.slots
            for other in Meter.objects.filter(job=job, closed=True).exclude(pk=meter.pk)
        )
        start = seconds_of(job.created_at) + before
        end = start + meter.slot_seconds // meter.slots
        tariffs = Tariffs([job.pool], start, end)
        cost = tariff.cost_with_rest(tariffs.price(job.pool_id), meter.slots, start, end, 0)[0]
        watts = tariffs.watts(job.pool_id) * meter.slots
        milligrams = tariff.milligrams(tariffs.carbon(job.pool_id), watts, start, end)
        meter.saved_cost, meter.saved_milligrams = cost - meter.cost, milligrams - meter.milligrams
        facts = {"saved_cost": meter.saved_cost, "saved_milligrams": meter.saved_milligrams}
        self.found.hours.append((where(job, meter.metered_until), facts))

    def _charge(self, moment: datetime, slot_seconds: int, cost: int) -> None:
        price = self.prices.at(seconds_of(moment))
        for budget in self.budgets:
            period = self.periods.get((budget.id, self.charging.span(budget, moment).start))
            if period is not None and moment >= budget.created_at.replace(microsecond=0):
                amount = slot_seconds if budget.unit == Budget.Unit.SLOT_HOURS else cost
                self.book.commit(period, self.job, self.meter.attempt_id, amount, moment, price)

    def _reserve(self, budget: Budget, period: int, start: int, end: int) -> None:
        """Reserve what [start, end) lacks; of a hard budget at most what is available."""
        reserve_for(self.book, self.job, budget, period, self.prices, self.meter.slots, Span(start, end))

    def _funded_until(self, budget: Budget, period: int, start: int, end: int) -> int:
        left = self.book.reserved.get((period, self.job.id), 0)
        if not budget.hard:
            return end
        if budget.unit == Budget.Unit.SLOT_HOURS:
            return min(end, start + left // self.meter.slots)
        return self.prices.lasts_until(start, end, left * 3600 // self.meter.slots)


def reserve_for(
    book: Book, job: Job, budget: Budget, period: int, prices: tariff.Steps, slots: int, span: Span
) -> None:
    """Reserve what a job lacks in `span`; of a hard budget at most what is available."""
    needed = charges.amount(budget, prices, slots, span.start, span.end)
    lacking = needed - book.reserved.get((period, job.id), 0)
    if budget.hard:
        lacking = min(lacking, max(0, book.periods[period].allowance))
    if lacking > 0 or (period, job.id) not in book.reserved:
        book.reserve(period, job, max(0, lacking), price=prices.at(span.start))


def where(job: Job, moment: datetime) -> usage.Where:
    """Return the key of the usage hour that contains `moment`."""
    hour = moment.replace(minute=0, second=0, microsecond=0)
    return usage.Where(job.team_id, job.project, job.pool_id, job.pool.accelerator, job.id, job.created_by_id, hour)


def roll_over(now: datetime) -> bool:
    """Open the periods that have begun, reserve in them for running jobs, and release ended reservations.

    Return whether anything changed.
    """
    if not _needs_roll_over(now, Charging()):
        return False
    with transaction.atomic():
        quotas.locked_root()
        charging = Charging()
        present = [(budget, *_bounds(charging, budget, now)) for budget in charging.budgets.values()]
        periods = ledger.period_ids(present, now)
        missing = _still_holding(_missing(charging, now))
        overdrawn = list(_overdrawn(now).values_list("pk", flat=True))
        _count_soon(missing, overdrawn, now)
        _release_stale(now)
        _reclaim(overdrawn, now)
        _reserve_missing(missing, periods, charging, now)
    return True


def _still_holding(missing: list[tuple[str, Budget]]) -> list[tuple[str, Budget]]:
    """Lock the jobs and return the pairs of those that still hold slots. Skip jobs that others have locked."""
    rows = Job.objects.select_for_update(no_key=True, skip_locked=True).filter(
        _holding, pk__in={job for job, _ in missing}
    )
    jobs = set(rows.order_by("pk").values_list("pk", flat=True))
    return [(job, budget) for job, budget in missing if job in jobs]


def _count_soon(missing: list[tuple[str, Budget]], overdrawn: list[int], now: datetime) -> None:
    """Make the runs due whose reservations change, before any period is locked."""
    holders = Reservation.objects.filter(period__in=overdrawn).values_list("job", flat=True)
    jobs = {job for job, _ in missing}.union(holders)
    meters = Meter.objects.select_for_update(no_key=True).filter(job__in=jobs, closed=False).order_by("pk")
    Meter.objects.filter(pk__in=[meter.pk for meter in meters]).update(due_at=now)


def _bounds(charging: Charging, budget: Budget, now: datetime) -> tuple[int, int]:
    span = charging.span(budget, now)
    return span.start, span.end


def _needs_roll_over(now: datetime, charging: Charging) -> bool:
    """Return whether a budget has no current period, or reservations must be made, released or reduced."""
    current = set(
        BudgetPeriod.objects.filter(start__lte=now, end__gt=now, budget__active=True).values_list("budget", flat=True)
    )
    return bool(
        set(charging.budgets) - current or _stale(now).exists() or _overdrawn(now).exists() or _missing(charging, now)
    )


def _stale(now: datetime) -> QuerySet[Reservation]:
    """Return reservations in ended periods, of runs counted to the period's end, and of inactive budgets."""
    behind = Meter.objects.filter(job=OuterRef("job"), closed=False, metered_until__lt=OuterRef("period__end"))
    return Reservation.objects.filter(Q(period__budget__active=False) | (Q(period__end__lte=now) & ~Exists(behind)))


def _overdrawn(now: datetime) -> QuerySet[BudgetPeriod]:
    """Return current periods of hard budgets that are overdrawn and have reservations.

    This happens when an amount is lowered.
    """
    return BudgetPeriod.objects.filter(
        start__lte=now, end__gt=now, budget__active=True, budget__hard=True, allowance__lt=0, reserved__gt=0
    )


def _release_stale(now: datetime) -> None:
    rows = list(_stale(now).select_related("job"))
    book = Book([row.period_id for row in rows], [row.job_id for row in rows], now)
    for row in rows:
        book.release(row.period_id, row.job_id, row.job.team_id)
    book.write()


def _reclaim(overdrawn: list[int], now: datetime) -> None:
    """Release reservations of overdrawn periods, the newest jobs' first; those jobs are counted next, and stop."""
    if not overdrawn:
        return
    holders = list(Reservation.objects.filter(period__in=overdrawn, amount__gt=0).order_by("-job_id"))
    teams = dict(Job.objects.filter(pk__in=[row.job_id for row in holders]).values_list("id", "team_id"))
    book = Book(overdrawn, list(teams), now)
    for row in holders:
        short = -book.periods[row.period_id].allowance
        if short > 0 and (row.period_id, row.job_id) in book.reserved:
            book.release(row.period_id, row.job_id, teams[row.job_id], short)
    book.write()


def _missing(charging: Charging, now: datetime) -> list[tuple[str, Budget]]:
    """Return jobs that hold slots without a reservation in a budget they are charged to, oldest first."""
    if not charging.budgets:
        return []
    have = set(
        Reservation.objects.filter(period__start__lte=now, period__end__gt=now).values_list("job", "period__budget")
    )
    jobs = list(Job.objects.filter(_holding).order_by("id").values_list("id", "team_id", "pool_id"))
    pools = {pool.id: pool for pool in Pool.objects.filter(id__in={row[2] for row in jobs})}
    return [
        (job, budget)
        for job, team, pool in jobs
        for budget in charging.of(team, pools[pool])
        if (job, budget.id) not in have
    ]


def _reserve_missing(
    missing: list[tuple[str, Budget]], periods: dict[tuple[str, int], int], charging: Charging, now: datetime
) -> None:
    if not missing:
        return
    second = seconds_of(now)
    jobs = Job.objects.select_related("pool").in_bulk([job for job, _ in missing])
    began = dict(Meter.objects.filter(job__in=jobs, closed=False).values_list("job", "began_at"))
    spans = {budget.id: charging.span(budget, now) for _, budget in missing}
    tariffs = Tariffs({job.pool for job in jobs.values()}, second, max(span.end for span in spans.values()))
    book = Book([periods[budget.id, spans[budget.id].start] for _, budget in missing], jobs, now)
    for job_id, budget in missing:
        job, span = jobs[job_id], spans[budget.id]
        latest = seconds_of(began.get(job_id, now)) + charges.time_limit(job)
        period = periods[budget.id, span.start]
        reserve_for(
            book,
            job,
            budget,
            period,
            tariffs.price(job.pool_id),
            charges.slots_of(job, job.pool),
            Span(second, max(second, min(latest, span.end))),
        )
    book.write()
