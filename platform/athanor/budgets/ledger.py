"""The double-entry ledger of budgets.

Each line moves a positive amount from one account of a period to another, so the accounts of a period always sum to
zero. Lines are immutable (a trigger enforces it).

open, adjust   SOURCE <-> ALLOWANCE    the amount of the period; adjust goes both ways
reserve        ALLOWANCE -> RESERVED   a job starts, or a running one enters a new period
commit         RESERVED -> SPENT       it ran
overrun        ALLOWANCE -> SPENT      it ran for longer or for more than it had reserved
release        RESERVED -> ALLOWANCE   it released its slots, or its period ended
refund         SPENT -> ALLOWANCE      its work was lost to an infrastructure fault
fault          SOURCE -> LOST          the same amount, recorded separately

Locks: first the organisation's row, to reserve or to change amounts (quotas.services.locked_root), then jobs, then
meters, then periods in the order of their ids: a `Book` locks the last.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from django.db import connection, transaction
from django.db.models import Sum
from django.utils import timezone

from athanor.budgets import reservations
from athanor.budgets.charges import Charging
from athanor.budgets.models import Budget, BudgetPeriod, Reservation, SpentHour, Transfer
from athanor.budgets.periods import moment_of, seconds_of
from athanor.jobs.models import Job

Kind, Account = Transfer.Kind, Transfer.Account
ACCOUNTS: dict[str, tuple[str, str]] = {
    Kind.OPEN: (Account.SOURCE, Account.ALLOWANCE),
    Kind.ADJUST: (Account.SOURCE, Account.ALLOWANCE),
    Kind.RESERVE: (Account.ALLOWANCE, Account.RESERVED),
    Kind.COMMIT: (Account.RESERVED, Account.SPENT),
    Kind.OVERRUN: (Account.ALLOWANCE, Account.SPENT),
    Kind.RELEASE: (Account.RESERVED, Account.ALLOWANCE),
    Kind.REFUND: (Account.SPENT, Account.ALLOWANCE),
    Kind.FAULT: (Account.SOURCE, Account.LOST),
}
BALANCES = [account.value for account in Account]
ADD_HOURS = (
    "INSERT INTO budgets_spenthour (period_id, hour, spent) VALUES {rows} "
    "ON CONFLICT (period_id, hour) DO UPDATE SET spent = budgets_spenthour.spent + excluded.spent"
)


class Book:
    """Locked periods and the reservations of these jobs in them; `write` stores all changes."""

    def __init__(self, periods: Iterable[int], jobs: Iterable[str], now: datetime) -> None:
        assert transaction.get_connection().in_atomic_block, "balances change with their transfers"
        self.now = now
        rows = BudgetPeriod.objects.select_for_update(no_key=True, of=("self",)).select_related("budget")
        self.periods = {row.pk: row for row in rows.filter(pk__in=set(periods)).order_by("pk")}
        self.reserved: dict[tuple[int, str], int] = {
            (row.period_id, row.job_id): row.amount
            for row in Reservation.objects.filter(period__in=self.periods, job__in=set(jobs))
        }
        self._before = dict(self.reserved)
        self._lines: list[Transfer] = []
        self._hours: dict[tuple[int, datetime], int] = defaultdict(int)

    def adjust(self, period: int, difference: int, kind: str = Kind.ADJUST) -> None:
        """Change the amount of a period by `difference`, which may be negative."""
        debit, credit = ACCOUNTS[kind] if difference > 0 else reversed(ACCOUNTS[kind])
        self._move(period, kind, abs(difference), debit=debit, credit=credit)

    def reserve(self, period: int, job: Job, amount: int, *, price: int | None = None) -> None:
        """Reserve an amount for a job."""
        key = (period, job.id)
        self.reserved[key] = self.reserved.get(key, 0) + amount
        self._move(period, Kind.RESERVE, amount, team=job.team_id, job=job.id, price=price)

    def commit(self, period: int, job: Job, attempt: str, amount: int, at: datetime, price: int | None = None) -> None:
        """Charge what a run used at `at`. What exceeds the reservation is an overrun."""
        covered = min(amount, self.reserved.get((period, job.id), 0))
        facts: dict[str, Any] = {"team": job.team_id, "job": job.id, "attempt": attempt, "price": price, "at": at}
        if covered:
            self.reserved[period, job.id] -= covered
        self._move(period, Kind.COMMIT, covered, **facts)
        self._move(period, Kind.OVERRUN, amount - covered, **facts)
        self._hours[period, at.replace(minute=0, second=0, microsecond=0)] += amount

    def release(self, period: int, job_id: str, team_id: str, amount: int | None = None) -> None:
        """Release `amount` of a job's reservation, or all of it; without an amount the reservation is removed."""
        left = self.reserved.get((period, job_id), 0)
        back = left if amount is None else min(amount, left)
        self._move(period, Kind.RELEASE, back, team=team_id, job=job_id)
        if amount is None:
            self.reserved.pop((period, job_id), None)
        else:
            self.reserved[period, job_id] = left - back

    def refund(self, period: int, job: Job, attempt: str, amount: int, at: datetime) -> None:
        """Return to the period what an infrastructure fault lost, and record the loss."""
        facts: dict[str, Any] = {"team": job.team_id, "job": job.id, "attempt": attempt, "at": at}
        self._move(period, Kind.REFUND, amount, **facts)
        self._move(period, Kind.FAULT, amount, **facts)
        self._hours[period, at.replace(minute=0, second=0, microsecond=0)] -= amount

    def write(self) -> None:
        """Store the lines, balances, reservations and hourly sums."""
        Transfer.objects.bulk_create(self._lines, batch_size=2000)
        touched = {line.period_id for line in self._lines}
        BudgetPeriod.objects.bulk_update([self.periods[pk] for pk in sorted(touched)], BALANCES)
        gone = [key for key in self._before if key not in self.reserved]
        for period, job_id in gone:
            Reservation.objects.filter(period=period, job=job_id).delete()
        Reservation.objects.bulk_create(
            [
                Reservation(period_id=period, job_id=job_id, amount=amount)
                for (period, job_id), amount in self.reserved.items()
                if self._before.get((period, job_id)) != amount
            ],
            update_conflicts=True,
            unique_fields=["job", "period"],
            update_fields=["amount"],
        )
        _add_hours(self._hours)

    def _move(
        self,
        period: int,
        kind: str,
        amount: int,
        *,
        debit: str = "",
        credit: str = "",
        team: str = "",
        job: str = "",
        attempt: str = "",
        price: int | None = None,
        at: datetime | None = None,
    ) -> None:
        if not amount:
            return
        debit, credit = debit or ACCOUNTS[kind][0], credit or ACCOUNTS[kind][1]
        self._lines.append(
            Transfer(
                period_id=period,
                debit=debit,
                credit=credit,
                amount=amount,
                kind=kind,
                time=at or self.now,
                team_id=team,
                job_id=job,
                attempt_id=attempt,
                price=price,
            )
        )
        row = self.periods[period]
        setattr(row, debit, getattr(row, debit) - amount)
        setattr(row, credit, getattr(row, credit) + amount)


def period_ids(wanted: Iterable[tuple[Budget, int, int]], now: datetime) -> dict[tuple[str, int], int]:
    """Return the ids of periods by (budget id, start), for (budget, start, end) in seconds since 1970.

    Missing ones are opened with the budget's current amount.
    """
    asked = {(budget.id, start): (budget, end) for budget, start, end in wanted}
    starts = {moment_of(start) for _, start in asked}
    found = {}
    for pk, budget_id, began in BudgetPeriod.objects.filter(
        budget__in={budget_id for budget_id, _ in asked}, start__in=starts
    ).values_list("pk", "budget_id", "start"):
        found[budget_id, seconds_of(began)] = pk
    for (budget_id, start), (budget, end) in asked.items():
        if (budget_id, start) not in found:
            found[budget_id, start] = open_period(budget, start, end, now).pk
    return found


def open_period(budget: Budget, start: int, end: int, now: datetime) -> BudgetPeriod:
    """Return the period; the first caller credits its amount."""
    with transaction.atomic():
        row, made = BudgetPeriod.objects.get_or_create(
            budget=budget, start=moment_of(start), defaults={"end": moment_of(end)}
        )
        if made and budget.amount:
            book = Book([row.pk], [], now)
            book.adjust(row.pk, budget.amount, Kind.OPEN)
            book.write()
    return row


def reserve(jobs: Sequence[Job], now: datetime) -> None:
    """Reserve for jobs that were just admitted, in the transaction of their admission and under its lock."""
    charging = Charging()
    if not jobs or not charging.budgets:
        return
    costs = reservations.planned_amounts(jobs, now, charging)
    spans = {budget_id: charging.span(charging.budgets[budget_id], now) for budget_id in charging.budgets}
    wanted = [
        (charging.budgets[budget_id], spans[budget_id].start, spans[budget_id].end)
        for budget_id in {budget_id for found in costs.values() for budget_id, _ in found}
    ]
    periods = period_ids(wanted, now)
    book = Book(periods.values(), [job.id for job in jobs], now)
    for job in jobs:
        for budget_id, amount in costs[job.id]:
            period = periods[budget_id, spans[budget_id].start]
            if (period, job.id) not in book.reserved:
                book.reserve(period, job, amount)
    book.write()


def _add_hours(hours: dict[tuple[int, datetime], int]) -> None:
    rows = sorted((period, hour, amount) for (period, hour), amount in hours.items() if amount)
    if not rows:
        return
    with connection.cursor() as cursor:
        places = ", ".join(["(%s, %s, %s)"] * len(rows))
        cursor.execute(ADD_HOURS.format(rows=places), [value for row in rows for value in row])


def check(now: datetime | None = None) -> list[str]:
    """Return a sentence for each stored balance that differs from the sum of its lines; empty if all agree."""
    now = now or timezone.now()
    problems = []
    sums: dict[int, dict[str, int]] = defaultdict(lambda: dict.fromkeys(BALANCES, 0))
    for side, sign in (("debit", -1), ("credit", 1)):
        for period, account, total in (
            Transfer.objects.values_list("period", side).annotate(total=Sum("amount")).order_by()
        ):
            sums[period][account] += sign * total
    reserved = dict(Reservation.objects.values_list("period").annotate(total=Sum("amount")).order_by())
    hours = dict(SpentHour.objects.values_list("period").annotate(total=Sum("spent")).order_by())
    for row in BudgetPeriod.objects.select_related("budget"):
        stored = {name: getattr(row, name) for name in BALANCES}
        if stored != sums[row.pk]:
            problems.append(f"{row}: balances {stored}, but its transfers make {sums[row.pk]}")
        if sum(stored.values()):
            problems.append(f"{row}: its accounts sum to {sum(stored.values())}, not to zero")
        if row.reserved != reserved.get(row.pk, 0):
            problems.append(f"{row}: {row.reserved} reserved, but jobs have {reserved.get(row.pk, 0)}")
        if row.spent != hours.get(row.pk, 0):
            problems.append(f"{row}: {row.spent} spent, but {hours.get(row.pk, 0)} by the hour")
        current = row.start <= now < row.end and row.budget.active
        if current and row.amount != row.budget.amount:
            problems.append(f"{row}: {row.amount} to spend, but its budget says {row.budget.amount}")
    return problems


def balances(budget: Budget, now: datetime) -> BudgetPeriod | None:
    """Return the budget's current period; None if it is not open."""
    return BudgetPeriod.objects.filter(budget=budget, start__lte=now, end__gt=now).first()


def spent_by_day(budget: Budget, since: datetime) -> dict[datetime, int]:
    """Return what was spent since then, by day (UTC)."""
    found: dict[datetime, int] = defaultdict(int)
    for hour, spent in SpentHour.objects.filter(period__budget=budget, hour__gte=since).values_list("hour", "spent"):
        found[hour.replace(hour=0)] += spent
    return dict(found)
