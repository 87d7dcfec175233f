"""Usage and cost by team, project, person, job, accelerator, pool, cluster and day."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db import connection
from django.db.models import Case, CharField, F, Q, QuerySet, Sum, When
from django.db.models.functions import TruncDay

from athanor.budgets.models import Meter, UsageHour
from athanor.budgets.usage import COUNTED
from athanor.jobs.models import Job

GROUPS = {
    "team": "team__name",
    "project": "project",
    "person": "created_by__username",
    "job": "job_id",
    "accelerator": "accelerator",
    "pool": "pool__name",
    "cluster": "pool__cluster__name",
    "day": "day",
}
OF_A_TEAM = ("person", "job")  # only shown to the team, and so many that a report has the largest only
# One row for each group up to `limit`, the most expensive first, and one for each currency with the sums of the others.
LARGEST = """
WITH found AS ({groups}),
placed AS (
    SELECT {names}, currency, {columns},
        least({limit} + 1, row_number() OVER (ORDER BY sum_cost DESC, sum_slot_seconds DESC, {names}, currency)) place
    FROM found
)
SELECT {shown}, currency, {sums}, count(*) AS groups, place > {limit} AS is_rest
FROM placed GROUP BY {grouped_by}, currency, place ORDER BY place, currency
"""
NAME_BATCH = 1000


@dataclass(frozen=True)
class Report:
    """The sums of each group, and by currency those of the groups beyond the limit, whose number is `groups`."""

    items: list[dict[str, Any]]
    rest: list[dict[str, Any]]


def report(
    start: datetime,
    end: datetime,
    by: Sequence[str],
    *,
    own: Collection[str],
    all_teams: bool,
    limit: int,
) -> Report:
    """Return sums over the hours in [start, end), for each combination of `by` and currency.

    Covers the teams in `own`, or all that the database session sees. Jobs and people of teams that are not in `own` are
    None, as are those of usage that was not stored by job. With a job or person at most `limit` groups are returned,
    the most expensive first. `charged` is the cost without what infrastructure faults lost.
    """
    rows = UsageHour.objects.filter(usage_within(start, end, None if all_teams else own))
    keys: dict[str, Any] = {f"by_{name}": F(GROUPS[name]) for name in by if name != "day"}
    for name in set(by) & set(OF_A_TEAM) if all_teams else ():
        is_own = When(team__in=sorted(own), then=keys[f"by_{name}"])
        keys[f"by_{name}"] = Case(is_own, output_field=CharField())
    found = rows.annotate(**keys, currency=F("pool__currency"))
    if "day" in by:
        found = found.annotate(by_day=TruncDay("hour"))
    names = [f"by_{name}" for name in by]
    totals = {f"sum_{name}": Sum(name) for name in COUNTED}
    groups = found.values(*names, "currency").annotate(**totals)
    if not set(by) & set(OF_A_TEAM):
        return Report([_row(row, by) for row in groups.order_by(*names, "currency")], [])
    largest = list(_largest(groups, names, limit))
    items = [_row(row, by) for row in largest if not row["is_rest"]]
    if "job" in by:
        _add_names(items)
    return Report(items, [{**_row(row, ()), "groups": row["groups"]} for row in largest if row["is_rest"]])


def usage_within(start: datetime, end: datetime, team_ids: Collection[str] | None, prefix: str = "") -> Q:
    """Return the condition of the hours that begin in [start, end) of these teams, or of all that the database session
    sees if None. `prefix`: of a relation to them, such as `usage__`."""
    within = Q(**{f"{prefix}hour__gte": start, f"{prefix}hour__lt": end})
    return within if team_ids is None else within & Q(**{f"{prefix}team__in": sorted(team_ids)})


def of_job(job: Job) -> dict[str, int]:
    """Return the sums of all attempts of a job, as metered until now."""
    found = Meter.objects.filter(job=job).aggregate(**{name: Sum(name, default=0) for name in COUNTED})
    return {**found, "charged": found["cost"] - found["fault_cost"]}


def _largest(groups: QuerySet[UsageHour, dict[str, Any]], names: Sequence[str], limit: int) -> Iterable[dict[str, Any]]:
    """Yield the rows of LARGEST. One statement, so that what is metered meanwhile is in all sums or in none."""
    inner, params = groups.order_by().query.sql_with_params()
    sums = [f"sum_{name}" for name in COUNTED]
    statement = LARGEST.format(
        groups=inner,
        names=", ".join(names),
        columns=", ".join(sums),
        shown=", ".join(f"CASE WHEN place <= {limit} THEN {name} END AS {name}" for name in names),
        sums=", ".join(f"sum({name})::bigint AS {name}" for name in sums),
        grouped_by=", ".join(f"CASE WHEN place <= {limit} THEN {name} END" for name in names),
        limit=limit,
    )
    with connection.cursor() as cursor:
        cursor.execute(statement, params)
        columns = [column.name for column in cursor.description]
        for row in cursor:
            yield dict(zip(columns, row, strict=True))


def _row(row: dict[str, Any], by: Sequence[str]) -> dict[str, Any]:
    return {
        **{name: row[f"by_{name}"].strftime("%Y-%m-%d") if name == "day" else row[f"by_{name}"] for name in by},
        "currency": row["currency"],
        **{name: row[f"sum_{name}"] for name in COUNTED},
        "charged": row["sum_cost"] - row["sum_fault_cost"],
    }


def _add_names(items: list[dict[str, Any]]) -> None:
    """Add the name of each job."""
    ids = [row["job"] for row in items if row["job"] is not None]
    names: dict[str, str] = {}
    for start in range(0, len(ids), NAME_BATCH):
        names.update(Job.objects.filter(pk__in=ids[start : start + NAME_BATCH]).values_list("id", "name"))
    for row in items:
        row["job_name"] = names.get(row["job"])
