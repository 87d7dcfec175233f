"""The goodput of teams over a time range: their usage hours by what the slots were held for (goodput_hours.py).

The totals are those of the usage hours, as in `athanor.budgets.costs`. What is not divided yet is apart, so that the
parts always sum to the totals.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from django.db.models import F, Q, Sum

from athanor.accounts.models import Team
from athanor.budgets.costs import usage_within
from athanor.budgets.models import UsageHour, UsageInterruption, UsagePart
from athanor.core.errors import FieldProblem, Invalid
from athanor.jobs.goodput import PRODUCTIVE
from athanor.jobs.models import Job
from athanor.jobs.timeline import Activity

MAX_JOBS = 20


@dataclass
class Amount:
    """Slot-seconds, and their cost in millionths of the currency."""

    slot_seconds: int = 0
    cost: int = 0

    def add(self, row: Any) -> None:
        """Add the sums of a row."""
        self.slot_seconds += row["slots"]
        self.cost += row["costs"]


@dataclass
class Category(Amount):
    """An activity, of start-ups by phase too."""

    phases: dict[str, Amount] = field(default_factory=dict)


@dataclass
class Cause:
    """Interruptions for one reason, empty if it is not known, and what they cost.

    `attempts`: ends of attempts; `restarts`: in place. `amounts`: of the activities that they caused, by activity, also
    those within the time range of an interruption before it.
    """

    reason: str
    attempts: int = 0
    restarts: int = 0
    steps_lost: int = 0
    refunded: int = 0
    amounts: dict[Activity, Amount] = field(default_factory=dict)

    @property
    def cost(self) -> int:
        """Return the cost of what it caused."""
        return sum(each.cost for each in self.amounts.values())


@dataclass(frozen=True)
class JobRow:
    """A job with much time that was not productive. `id` and `name`: None for one of a team that is not in `own`."""

    id: str | None
    name: str | None
    total: Amount
    unproductive: Amount


@dataclass
class Statement:
    """The statement in one currency. The categories and `uncounted` sum to `total`."""

    currency: str
    total: Amount
    refunded: int
    uncounted: Amount
    categories: dict[Activity, Category] = field(default_factory=dict)
    causes: dict[str, Cause] = field(default_factory=dict)
    jobs: list[JobRow] = field(default_factory=list)

    @property
    def goodput(self) -> float | None:
        """Return the productive share of the slot time that is divided, None if there is none."""
        counted = self.total.slot_seconds - self.uncounted.slot_seconds
        productive = sum(self.categories[each].slot_seconds for each in PRODUCTIVE & self.categories.keys())
        return productive / counted if counted else None


def statements(
    start: datetime, end: datetime, *, team_ids: Collection[str] | None, own: Collection[str], project: str = ""
) -> list[Statement]:
    """Return a statement for each currency, over the hours that begin in [start, end).

    Covers `team_ids`, or all teams that the database session sees if it is None. Jobs of teams that are not in `own`
    are listed without their ids and names.
    """

    def within(prefix: str = "") -> Q:
        condition = usage_within(start, end, team_ids, prefix)
        return condition & Q(**{f"{prefix}project": project}) if project else condition

    of_usage = within("usage__")
    parts, interruptions = list(_parts(of_usage)), list(_interruptions(of_usage))
    jobs = {currency: _worst(of_usage, currency, own) for currency in {row["currency"] for row in parts}}
    found = {}
    # The totals last: usage only grows, so they have at least what the parts have.
    for row in _totals(within()):
        total = Amount(row["slots"], row["costs"])
        found[row["currency"]] = Statement(
            row["currency"], total, row["refunds"], replace(total), jobs=jobs.get(row["currency"], [])
        )
    for row in parts:
        _add_part(found[row["currency"]], row)
    for row in interruptions:
        _add_interruptions(found[row["currency"]], row)
    return list(found.values())


def teams_named(name: str, team_ids: Collection[str] | None) -> Collection[str] | None:
    """Return those of the teams, of all teams if None, whose name or id is `name`; without a name `team_ids`.

    Raise Invalid if there is none.
    """
    if not name:
        return team_ids
    rows = Team.objects.filter(Q(name=name) | Q(id=name))
    found = list((rows if team_ids is None else rows.filter(pk__in=team_ids)).values_list("id", flat=True))
    if not found:
        detail = f"team={name[:100]!r}: you see no such team"
        problem = FieldProblem("/team", "unknown_team", detail)
        raise Invalid("invalid_parameter", detail, remedy="name a team of GET /teams", problems=(problem,))
    return found


def _totals(within: Q) -> Iterable[Any]:
    sums = {"slots": Sum("slot_seconds"), "costs": Sum("cost"), "refunds": Sum("fault_cost")}
    groups = UsageHour.objects.filter(within).values(currency=F("pool__currency"))
    return groups.annotate(**sums).order_by("currency")


def _parts(of_usage: Q) -> Iterable[Any]:
    rows = UsagePart.objects.filter(of_usage)
    groups = rows.values("activity", "phase", "cause", currency=F("usage__pool__currency"))
    sums = {"slots": Sum("slot_seconds"), "costs": Sum("cost")}
    return groups.annotate(**sums).order_by("activity", "phase", "cause")


def _interruptions(of_usage: Q) -> Iterable[Any]:
    rows = UsageInterruption.objects.filter(of_usage)
    sums = {"number": Sum("count"), "steps": Sum("steps_lost"), "refunds": Sum("refunded")}
    return rows.values("reason", "in_place", currency=F("usage__pool__currency")).annotate(**sums).order_by("reason")


def _add_part(statement: Statement, row: Any) -> None:
    activity = Activity(row["activity"])
    category = statement.categories.setdefault(activity, Category())
    category.add(row)
    if activity is Activity.STARTUP:
        category.phases.setdefault(row["phase"], Amount()).add(row)
    if row["cause"] is not None:
        cause = statement.causes.setdefault(row["cause"], Cause(row["cause"]))
        cause.amounts.setdefault(activity, Amount()).add(row)
    statement.uncounted.slot_seconds -= row["slots"]
    statement.uncounted.cost -= row["costs"]


def _add_interruptions(statement: Statement, row: Any) -> None:
    cause = statement.causes.setdefault(row["reason"], Cause(row["reason"]))
    if row["in_place"]:
        cause.restarts += row["number"]
    else:
        cause.attempts += row["number"]
    cause.steps_lost += row["steps"]
    cause.refunded += row["refunds"]


def _worst(of_usage: Q, currency: str, own: Collection[str]) -> list[JobRow]:
    """Return the jobs with the most slot time that was not productive."""
    lost = ~Q(activity__in=[each.value for each in PRODUCTIVE])
    rows = list(
        UsagePart.objects.filter(of_usage, usage__pool__currency=currency)
        .values("usage__job_id", "usage__team_id")
        .annotate(
            slots=Sum("slot_seconds"), costs=Sum("cost"),
            bad_slots=Sum("slot_seconds", filter=lost, default=0), bad_costs=Sum("cost", filter=lost, default=0),
        )
        .filter(bad_slots__gt=0)
        .order_by("-bad_slots", "usage__job_id")[:MAX_JOBS]
    )  # fmt: skip
    shown = [row["usage__job_id"] for row in rows if row["usage__team_id"] in own]
    names = dict(Job.objects.filter(pk__in=shown).values_list("id", "name"))
    return [
        JobRow(
            row["usage__job_id"] if row["usage__job_id"] in names else None, names.get(row["usage__job_id"]),
            Amount(row["slots"], row["costs"]), Amount(row["bad_slots"], row["bad_costs"]),
        )
        for row in rows
    ]  # fmt: skip
