"""Usage of jobs by the hour, and recent usage for fair share."""

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db import connection, transaction

from athanor.budgets.models import RecentUse, UsageHour

COUNTED = (
    "slot_seconds", "cost", "milligrams", "fault_slot_seconds", "fault_cost", "saved_cost", "saved_milligrams"
)  # fmt: skip
KEY = ("team_id", "project", "pool_id", "accelerator", "job_id", "created_by_id", "hour")
ADD = (
    f"INSERT INTO budgets_usagehour ({', '.join(KEY + COUNTED)}) VALUES {{rows}} "  # noqa: S608 - names of our own columns
    "ON CONFLICT (hour, job_id, accelerator) DO UPDATE SET "
    + ", ".join(f"{name} = budgets_usagehour.{name} + excluded.{name}" for name in COUNTED)
)
NOTE = (
    "INSERT INTO budgets_recentuse (team_id, accelerator, half_life_seconds, as_of, slot_seconds) VALUES {rows} "
    "ON CONFLICT (team_id, accelerator) DO UPDATE SET as_of = greatest(budgets_recentuse.as_of, excluded.as_of), "
    "slot_seconds = excluded.slot_seconds + budgets_recentuse.slot_seconds * power(0.5::float8, greatest(0, "
    "extract(epoch FROM excluded.as_of - budgets_recentuse.as_of)) / budgets_recentuse.half_life_seconds)"
)
HALF_LIVES_KEPT = 10  # after as many, 0.1 % of a use still counts


@dataclass(frozen=True, order=True)
class Where:
    """The key of a usage hour."""

    team_id: str
    project: str
    pool_id: str
    accelerator: str
    job_id: str
    created_by_id: str
    hour: datetime


def add(found: Iterable[tuple[Where, dict[str, int]]]) -> None:
    """Add to the usage hours; omitted values are 0."""
    rows: dict[Where, dict[str, int]] = defaultdict(lambda: dict.fromkeys(COUNTED, 0))
    for where, facts in found:
        for name, value in facts.items():
            rows[where][name] += value
    if not rows:
        return
    places = ", ".join([f"({', '.join(['%s'] * len(KEY + COUNTED))})"] * len(rows))
    values = [
        value
        for where, facts in sorted(rows.items())
        for value in (*(getattr(where, name) for name in KEY), *(facts[name] for name in COUNTED))
    ]
    with connection.cursor() as cursor:
        cursor.execute(ADD.format(rows=places), values)


def recent(half_life_seconds: int, now: datetime) -> dict[tuple[str, str], float]:
    """Return, by team and accelerator, the exponentially weighted average of slots in use.

    The weight of usage halves every `half_life_seconds`.
    """
    rows = list(RecentUse.objects.all())
    if any(row.half_life_seconds != half_life_seconds for row in rows):
        weighed = _weigh(half_life_seconds, now)  # the setting was changed a moment ago
    else:
        weighed = {
            (row.team_id, row.accelerator): row.slot_seconds * _faded(now - row.as_of, half_life_seconds)
            for row in rows
        }
    rate = math.log(2) / half_life_seconds
    return {key: value * rate for key, value in weighed.items()}


def note_recent(used: dict[tuple[str, str], int], half_life_seconds: int, now: datetime) -> None:
    """Add slot-seconds used since the last call, by team and accelerator. Safe with concurrent callers."""
    rows = [(team, accelerator, half_life_seconds, now, value) for (team, accelerator), value in sorted(used.items())]
    if rows:
        with connection.cursor() as cursor:
            places = ", ".join(["(%s, %s, %s, %s, %s)"] * len(rows))
            cursor.execute(NOTE.format(rows=places), [value for row in rows for value in row])


def reweigh(half_life_seconds: int, now: datetime) -> None:
    """Recompute recent usage if the half-life has changed."""
    if not RecentUse.objects.exclude(half_life_seconds=half_life_seconds).exists():
        return
    with transaction.atomic():
        rows = list(RecentUse.objects.select_for_update(no_key=True).order_by("team", "accelerator"))
        weighed = _weigh(half_life_seconds, now)
        for row in rows:
            row.half_life_seconds, row.as_of = half_life_seconds, now
            row.slot_seconds = weighed.get((row.team_id, row.accelerator), 0.0)
        RecentUse.objects.bulk_update(rows, ["half_life_seconds", "as_of", "slot_seconds"])


def _weigh(half_life_seconds: int, now: datetime) -> dict[tuple[str, str], float]:
    """Return recent slot-seconds computed from the stored hours."""
    found: dict[tuple[str, str], float] = defaultdict(float)
    since = now - timedelta(seconds=HALF_LIVES_KEPT * half_life_seconds)
    rows = UsageHour.objects.filter(hour__gte=since).values_list("team_id", "accelerator", "hour", "slot_seconds")
    for team, accelerator, hour, used in rows.iterator():
        found[team, accelerator] += used * _faded(now - hour - timedelta(minutes=30), half_life_seconds)
    return dict(found)


def _faded(age: timedelta, half_life_seconds: int) -> float:
    return math.pow(0.5, max(0.0, age.total_seconds() / half_life_seconds))
