"""Statements: a period's ledger lines summed by team and job, and its forecast."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db.models import Q, QuerySet, Sum

from athanor.budgets.cost_forecast import Forecast, forecast
from athanor.budgets.ledger import spent_by_day
from athanor.budgets.models import Budget, BudgetPeriod, SpentHour, Transfer
from athanor.core.errors import FieldProblem, Invalid

DAYS_LEARNT_FROM = 28
Kind = Transfer.Kind
COLUMNS = ("time", "kind", "debit", "credit", "amount", "team_id", "job_id", "attempt_id", "price")


@dataclass(frozen=True)
class Line:
    """The sums of one job. `spent` is commits and overruns less refunds; `reserved` is what it has reserved."""

    team_id: str
    job_id: str
    spent: int
    reserved: int
    refunded: int


def period_of(budget: Budget, moment: datetime) -> BudgetPeriod | None:
    """Return the budget's period that contains `moment`; None without one."""
    return BudgetPeriod.objects.filter(budget=budget, start__lte=moment, end__gt=moment).first()


def period_or_refuse(budget: Budget, moment: datetime) -> BudgetPeriod:
    """Return the budget's period that contains `moment`, or raise Invalid."""
    found = period_of(budget, moment)
    if found is None:
        detail = f"at={moment.isoformat()}: the budget has no period there"
        problem = FieldProblem("/at", "period", detail)
        raise Invalid("invalid_parameter", detail, remedy="name a time since it was made", problems=(problem,))
    return found


def lines(period: BudgetPeriod, team_id: str = "") -> list[Line]:
    """Return the lines visible to the database session, the most expensive first."""
    rows = Transfer.objects.filter(period=period).exclude(team_id="")
    if team_id:
        rows = rows.filter(team_id=team_id)
    totals = {kind: Sum("amount", filter=Q(kind=kind), default=0) for kind in Kind.values if kind != Kind.OPEN}
    sums: Any = rows.values("team_id", "job_id").annotate(**{f"{kind}_": total for kind, total in totals.items()})
    found = []
    for row in sums:
        paid, back = row["commit_"] + row["overrun_"], row["refund_"]
        held = row["reserve_"] - row["commit_"] - row["release_"]
        found.append(Line(row["team_id"], row["job_id"], paid - back, held, back))
    return sorted(found, key=lambda line: (-line.spent, line.job_id))


def transfers(period: BudgetPeriod) -> QuerySet[Transfer]:
    """Return every ledger line visible to the database session, in order."""
    return Transfer.objects.filter(period=period).order_by("pk")


def rows_of(found: QuerySet[Transfer]) -> Iterator[list[Any]]:
    """Yield a row of COLUMNS for each transfer."""
    for row in found.iterator(chunk_size=1000):
        yield [row.time.isoformat(), *(getattr(row, name) for name in COLUMNS[1:])]


def burn_down(period: BudgetPeriod) -> list[tuple[datetime, int]]:
    """Return what was spent by the end of each hour with spending."""
    found, spent = [], 0
    for hour, amount in SpentHour.objects.filter(period=period).order_by("hour").values_list("hour", "spent"):
        spent += amount
        found.append((hour + timedelta(hours=1), spent))
    return found


def forecast_of(budget: Budget, period: BudgetPeriod, now: datetime) -> Forecast:
    """Return the forecast of the current period, from the last DAYS_LEARNT_FROM complete days."""
    today = now.replace(hour=0, minute=0, second=0, microsecond=0)
    first = max(today - timedelta(days=DAYS_LEARNT_FROM), _midnight_after(budget.created_at))
    by_day = spent_by_day(budget, first)
    whole_days = [by_day.get(first + timedelta(days=index), 0) for index in range((today - first).days)]
    return forecast(
        amount=budget.amount,
        spent=period.spent,
        seconds_left=max(0, int((period.end - now).total_seconds())),
        rate_per_day=period.rate_per_day,
        days=whole_days,
    )


def _midnight_after(moment: datetime) -> datetime:
    return (moment + timedelta(days=1)).replace(hour=0, minute=0, second=0, microsecond=0)


def current_periods(budgets: Collection[Budget], now: datetime) -> dict[str, BudgetPeriod]:
    """Return the period of each budget that contains `now`, by id of the budget."""
    rows = BudgetPeriod.objects.filter(budget__in=budgets, start__lte=now, end__gt=now)
    return {period.budget_id: period for period in rows}
