"""What was used of the tree day by day, and what is kept now, summed over each subtree."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, datetime, timedelta

from django.db.models import Sum
from django.db.models.functions import TruncDate

from athanor.artifacts import usage
from athanor.budgets.models import UsageHour
from athanor.core import tenancy
from athanor.quotas.tree import Tree, children_of, nominal_of_subtree, way_up

DAY_SECONDS = 86_400


@dataclass(frozen=True)
class Line:
    """Slots that were held on average, a number a day; of today until now. `nominal` is what the subtree has now."""

    accelerator: str
    nominal: int
    used: list[float]


@dataclass(frozen=True)
class History:
    node_id: str
    storage_bytes: int
    lines: list[Line]


def days_until(now: datetime, days: int) -> list[date]:
    """In UTC, today last."""
    return [(now - timedelta(days=back)).date() for back in reversed(range(days))]


def history(tree: Tree, now: datetime, days: int) -> dict[str, History]:
    """By node. An accelerator has a line where the tree has a grant of it or its subtree used some."""
    span = days_until(now, days)
    place = {day: number for number, day in enumerate(span)}
    used: dict[str, dict[str, list[float]]] = {node_id: {} for node_id in tree}
    kept = dict.fromkeys(tree, 0)
    stored = usage.stored_bytes()
    teams = _slots_of_teams(span, now)
    for node in tree.values():
        for above in way_up(tree, node.id) if node.team_id else ():
            kept[above.id] += stored.get(node.team_id, 0)
            for (accelerator, day), slots in teams.get(node.team_id, {}).items():
                used[above.id].setdefault(accelerator, [0.0] * days)[place[day]] += slots
    granted = sorted({accelerator for node in tree.values() for accelerator in node.grants})
    below = children_of(tree)
    return {
        node_id: History(
            node_id,
            kept[node_id],
            [
                Line(
                    accelerator,
                    nominal_of_subtree(tree, below, node_id, accelerator),
                    [round(slots, 3) for slots in used[node_id].get(accelerator, [0.0] * days)],
                )
                for accelerator in sorted({*granted, *used[node_id]})
            ],
        )
        for node_id in tree
    }


def _slots_of_teams(span: list[date], now: datetime) -> Mapping[str, Mapping[tuple[str, date], float]]:
    """By team: slots held on average, by accelerator and day."""
    today = max((now - datetime.combine(span[-1], datetime.min.time(), now.tzinfo)).total_seconds(), 1.0)
    start = datetime.combine(span[0], datetime.min.time(), now.tzinfo)
    found: dict[str, dict[tuple[str, date], float]] = {}
    with tenancy.unrestricted():
        hours = UsageHour.objects.filter(hour__gte=start).annotate(day=TruncDate("hour", tzinfo=now.tzinfo))
        sums = hours.values_list("team_id", "accelerator", "day").order_by().annotate(seconds=Sum("slot_seconds"))
        rows = list(sums)
    for team_id, accelerator, day, seconds in rows:
        if day in span:
            length = today if day == span[-1] else DAY_SECONDS
            found.setdefault(team_id, {})[accelerator, day] = seconds / length
    return found
