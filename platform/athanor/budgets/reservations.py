"""What starting jobs would reserve of which budgets, and what those have available.

The number of queries does not depend on the number of jobs. A job reserves what it may use of the current period: until
its time limit, or the period's end if that is earlier. At the end of a period the meter releases the rest and reserves
in the new one (meter.py).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

from athanor.budgets import charges, tariff
from athanor.budgets.charges import Charging
from athanor.budgets.models import BudgetPeriod
from athanor.budgets.periods import moment_of, seconds_of
from athanor.budgets.prices import Tariffs
from athanor.clusters.models import Pool
from athanor.jobs.models import Job


@dataclass(frozen=True)
class BudgetState:
    """What a budget has available, which may be negative. `unit`: `slot-seconds`, or a currency in millionths."""

    id: str
    name: str
    available: int
    hard: bool
    unit: str


@dataclass(frozen=True)
class PlannedReservations:
    """The budgets concerned, and by job id (budget id, amount) for each budget that it is charged to."""

    budgets: list[BudgetState] = field(default_factory=list)
    costs: dict[str, tuple[tuple[str, int], ...]] = field(default_factory=dict)


def plan_reservations(jobs: Sequence[Job], now: datetime) -> PlannedReservations:
    """Return what jobs would reserve if they started now. The jobs need not be saved."""
    charging = Charging()
    if not charging.budgets or not jobs:
        return PlannedReservations()
    costs = planned_amounts(jobs, now, charging)
    charged = {budget for found in costs.values() for budget, _ in found}
    current = {
        row.budget_id: row for row in BudgetPeriod.objects.filter(budget__in=charged, start__lte=now, end__gt=now)
    }
    opened = set(BudgetPeriod.objects.filter(budget__in=charged - set(current)).values_list("budget_id", flat=True))
    states = []
    for budget_id in sorted(charged):
        budget = charging.budgets[budget_id]
        if budget_id in current:
            available = current[budget_id].allowance
        else:  # what runs is reserved for first, by the meter, when it opens the new period
            available = 0 if budget_id in opened else budget.amount
        states.append(BudgetState(budget.id, budget.name, available, budget.hard, budget.currency or "slot-seconds"))
    return PlannedReservations(states, costs)


def planned_amounts(jobs: Sequence[Job], now: datetime, charging: Charging) -> dict[str, tuple[tuple[str, int], ...]]:
    """Return, by job id, (budget id, amount) for each budget that the job is charged to."""
    second = seconds_of(now)
    pools = Pool.objects.in_bulk({job.pool_id for job in jobs})
    longest = max(charges.time_limit(job) for job in jobs)
    ends = [charging.span(budget, now).end for budget in charging.budgets.values()]
    tariffs = Tariffs(pools.values(), second, min(second + longest, max(ends)))
    made: dict[tuple[str, str, int, int], tuple[tuple[str, int], ...]] = {}
    found = {}
    for job in jobs:
        pool = pools[job.pool_id]
        slots, limit = charges.slots_of(job, pool), charges.time_limit(job)
        key = (job.team_id, pool.id, slots, limit)
        if key not in made:
            prices = tariffs.price(pool.id)
            made[key] = tuple(
                (
                    budget.id,
                    charges.amount(budget, prices, slots, second, min(second + limit, charging.span(budget, now).end)),
                )
                for budget in charging.of(job.team_id, pool)
            )
        found[job.id] = made[key]
    return found


def cost_at_time_limit(job: Job, now: datetime) -> tuple[int, str]:
    """Return the cost of running to the time limit from now on, in millionths, and the currency."""
    return cost_of(job, now, charges.time_limit(job)), job.pool.currency


def cost_of(job: Job, now: datetime, seconds: int) -> int:
    """Return the cost of running this long from now on, in millionths of the pool's currency."""
    pool, second = job.pool, seconds_of(now)
    end = second + seconds
    prices = Tariffs([pool], second, end).price(pool.id)
    return tariff.cost(prices, charges.slots_of(job, pool), second, end)


def period_end(budget_id: str, now: datetime) -> datetime:
    """Return when the current period of a budget ends."""
    charging = Charging()
    return moment_of(charging.span(charging.budgets[budget_id], now).end)
