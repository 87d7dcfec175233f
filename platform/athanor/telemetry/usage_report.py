"""The report of a month by team: what was used, not productive, and lost to faults, with its energy and carbon.

The totals are those of `athanor.budgets.costs`, and their parts those of `athanor.budgets.goodput_statement`: both
read the same stored hours. Months are of UTC.
"""

import re
from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from django.db.models import F, Sum

from athanor.budgets.costs import usage_within
from athanor.budgets.goodput_statement import Amount
from athanor.budgets.models import UsageHour, UsagePart
from athanor.clusters.models import Pool
from athanor.jobs.goodput import PRODUCTIVE
from athanor.jobs.timeline import Activity
from athanor.telemetry.energy import Energy, by_job

_MONTH = re.compile(r"(20\d\d)-(0[1-9]|1[0-2])")


@dataclass
class TeamMonth:
    """The usage of a team in one currency. `productive`, `unproductive` and `uncounted` sum to `total`.

    `unproductive`: by activity, and by the reason of the interruption that caused it, empty if that is not known, None
    if none did. `faults`: what infrastructure faults lost, which is not charged. `uncounted`: not divided yet.
    """

    team: str
    currency: str
    total: Amount
    faults: Amount
    uncounted: Amount
    productive: Amount = field(default_factory=Amount)
    unproductive: dict[tuple[Activity, str | None], Amount] = field(default_factory=dict)
    energy: Energy = field(default_factory=Energy)

    def unproductive_in(self, activity: Activity) -> Amount:
        """Return what was not productive in an activity, whatever its cause."""
        found = Amount()
        for (each, _), amount in self.unproductive.items():
            if each is activity:
                found.slot_seconds += amount.slot_seconds
                found.cost += amount.cost
        return found


def bounds_of_month(month: str) -> tuple[datetime, datetime]:
    """Return the begin and end of a month YYYY-MM. Raise ValueError for another text."""
    found = _MONTH.fullmatch(month)
    if found is None:
        raise ValueError(f"{month!r} is not a month of the form YYYY-MM")
    start = datetime(int(found[1]), int(found[2]), 1, tzinfo=UTC)
    return start, (start + timedelta(days=31)).replace(day=1)


def report(month: str, team_ids: Collection[str] | None) -> list[TeamMonth]:
    """Return the months of these teams, of all that the database session sees if None, by name and currency."""
    start, end = bounds_of_month(month)
    parts = list(_parts(start, end, team_ids))
    energies = by_job(usage_within(start, end, team_ids), start, end)
    found: dict[tuple[str, str], TeamMonth] = {}
    # The totals last: usage only grows, so they have at least what the parts have.
    for row in _totals(start, end, team_ids):
        found[row["team_id"], row["currency"]] = TeamMonth(
            row["name"], row["currency"], Amount(row["slots"], row["costs"]),
            Amount(row["fault_slots"], row["fault_costs"]), Amount(row["slots"], row["costs"]),
        )  # fmt: skip
    for row in parts:
        month_of_team, activity = found[row["team_id"], row["currency"]], Activity(row["activity"])
        if activity in PRODUCTIVE:
            month_of_team.productive.add(row)
        else:
            month_of_team.unproductive.setdefault((activity, row["cause"]), Amount()).add(row)
        month_of_team.uncounted.slot_seconds -= row["slots"]
        month_of_team.uncounted.cost -= row["costs"]
    currencies = dict(Pool.objects.filter(pk__in={key.pool for key in energies}).values_list("id", "currency"))
    for key, energy in energies.items():
        found[key.team, currencies[key.pool]].energy.add(energy)
    return list(found.values())


def _totals(start: datetime, end: datetime, team_ids: Collection[str] | None) -> Any:
    groups = UsageHour.objects.filter(usage_within(start, end, team_ids)).values(
        "team_id", name=F("team__name"), currency=F("pool__currency")
    )
    return groups.annotate(
        slots=Sum("slot_seconds"), costs=Sum("cost"), fault_slots=Sum("fault_slot_seconds"),
        fault_costs=Sum("fault_cost"),
    ).order_by("name", "team_id", "currency")  # fmt: skip


def _parts(start: datetime, end: datetime, team_ids: Collection[str] | None) -> Any:
    rows = UsagePart.objects.filter(usage_within(start, end, team_ids, "usage__"))
    groups = rows.values("team_id", "activity", "cause", currency=F("usage__pool__currency"))
    return groups.annotate(slots=Sum("slot_seconds"), costs=Sum("cost")).order_by("activity", "cause")
