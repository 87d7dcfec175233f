"""Which budgets a job is charged to, and how much: those of its team's leaf and of every node above it."""

from collections import defaultdict
from dataclasses import dataclass
from datetime import datetime

from athanor.budgets import tariff
from athanor.budgets.models import Budget
from athanor.budgets.periods import Every, bounds, seconds_of
from athanor.budgets.tariff import Steps
from athanor.clusters.models import Pool
from athanor.jobs.models import Job
from athanor.quotas.models import QuotaNode


@dataclass(frozen=True)
class Span:
    """A calendar period, in whole seconds since 1970: `start` is included, `end` is not."""

    start: int
    end: int


class Charging:
    """A snapshot of the active budgets and the quota tree."""

    def __init__(self) -> None:
        self.budgets = {row.id: row for row in Budget.objects.filter(active=True).order_by("id")}
        self._at_node: dict[str, list[Budget]] = defaultdict(list)
        for row in self.budgets.values():
            self._at_node[row.node_id].append(row)
        self._parents: dict[str, str | None] = {}
        self._leaves: dict[str, str] = {}
        if self.budgets:
            for node, parent, team in QuotaNode.objects.values_list("id", "parent_id", "team_id"):
                self._parents[node] = parent
                if team:
                    self._leaves[team] = node
        self._found: dict[tuple[str, str, str], tuple[Budget, ...]] = {}
        self._spans: dict[tuple[str, int], Span] = {}

    def of(self, team_id: str, pool: Pool) -> tuple[Budget, ...]:
        """Return the active budgets that a team's jobs in a pool are charged to, from the leaf up."""
        key = (team_id, pool.accelerator, pool.currency)
        if key not in self._found:
            rows: list[Budget] = []
            node = self._leaves.get(team_id)
            while node is not None:
                rows += [row for row in self._at_node[node] if _covers(row, pool)]
                node = self._parents[node]
            self._found[key] = tuple(rows)
        return self._found[key]

    def span(self, budget: Budget, moment: datetime) -> Span:
        """Return the budget's period that contains `moment`."""
        key = (budget.period, int(moment.timestamp()) // 3600)
        if key not in self._spans:
            start, end = bounds(Every(budget.period), moment)
            self._spans[key] = Span(seconds_of(start), seconds_of(end))
        return self._spans[key]


def _covers(budget: Budget, pool: Pool) -> bool:
    if budget.accelerator not in ("", pool.accelerator):
        return False
    return budget.unit == Budget.Unit.SLOT_HOURS or budget.currency == pool.currency


def slots_of(job: Job, pool: Pool) -> int:
    """Return the job's slots, at most those of the pool."""
    return min(job.slots, pool.slots)


def time_limit(job: Job) -> int:
    """Return the job's time limit in seconds."""
    return job.time_limit_seconds


def amount(budget: Budget, prices: Steps, slots: int, start: int, end: int) -> int:
    """Return what [start, end) costs in the budget's unit, rounded up: slot-seconds, or millionths of the currency."""
    if budget.unit == Budget.Unit.SLOT_HOURS:
        return slots * max(0, end - start)
    return tariff.cost(prices, slots, start, end)
