"""Usage and cost by team, project, accelerator, pool, cluster and day."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from django.db.models import F, Sum
from django.db.models.functions import TruncDay

from athanor.budgets.models import Meter, UsageHour
from athanor.budgets.usage import COUNTED
from athanor.jobs.models import Job

GROUPS = {
    "team": "team__name",
    "project": "project",
    "accelerator": "accelerator",
    "pool": "pool__name",
    "cluster": "pool__cluster__name",
    "day": "day",
}


def report(
    start: datetime, end: datetime, by: Sequence[str], teams: Sequence[str] | None = None
) -> list[dict[str, Any]]:
    """Return sums over the hours in [start, end), one row for each combination of `by` and currency.

    `charged` is the cost without what infrastructure faults lost. Only teams visible to the database session are
    included, and only `teams` if given.
    """
    rows = UsageHour.objects.filter(hour__gte=start, hour__lt=end)
    if teams is not None:
        rows = rows.filter(team__in=teams)
    keys = {f"by_{name}": F(GROUPS[name]) for name in by if name != "day"}
    found = rows.annotate(**keys, currency=F("pool__currency"))
    if "day" in by:
        found = found.annotate(by_day=TruncDay("hour"))
    names = [f"by_{name}" for name in by]
    totals = {f"sum_{name}": Sum(name) for name in COUNTED}
    return [
        {
            **{name: row[f"by_{name}"].strftime("%Y-%m-%d") if name == "day" else row[f"by_{name}"] for name in by},
            "currency": row["currency"],
            **{name: row[f"sum_{name}"] for name in COUNTED},
            "charged": row["sum_cost"] - row["sum_fault_cost"],
        }
        for row in found.values(*names, "currency").annotate(**totals).order_by(*names, "currency")
    ]


def of_job(job: Job) -> dict[str, int]:
    """Return the sums of all attempts of a job, as metered until now."""
    found = Meter.objects.filter(job=job).aggregate(**{name: Sum(name, default=0) for name in COUNTED})
    return {**found, "charged": found["cost"] - found["fault_cost"]}
