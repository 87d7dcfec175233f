"""What was used of the tree day by day, what it had, and what is kept now, summed over each subtree."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta

from django.db.models import Sum
from django.db.models.functions import TruncDate

from athanor.artifacts import usage
from athanor.budgets.models import UsageHour
from athanor.core import tenancy
from athanor.quotas.models import NominalChange
from athanor.quotas.tree import Tree, ancestors_of, nominals

DAY_SECONDS = 86_400


@dataclass(frozen=True)
class Line:
    """A number a day: slots that were held on average (of today until now), and what the subtree had of its own at its
    end (of today now)."""

    accelerator: str
    used: list[float]
    nominal: list[int]


@dataclass(frozen=True)
class History:
    """History and stored bytes of a node's subtree."""

    node_id: str
    storage_bytes: int
    unreferenced_bytes: int
    lines: list[Line]


def days_until(now: datetime, days: int) -> list[date]:
    """In UTC, today last."""
    return [(now - timedelta(days=back)).date() for back in reversed(range(days))]


def history(tree: Tree, now: datetime, days: int) -> dict[str, History]:
    """By node. An accelerator has a line where the tree has a grant of it or its subtree used some."""
    span = days_until(now, days)
    place = {day: number for number, day in enumerate(span)}
    used: dict[str, dict[str, list[float]]] = {node_id: {} for node_id in tree}
    kept, unnamed = dict.fromkeys(tree, 0), dict.fromkeys(tree, 0)
    stored, unreferenced = usage.stored_bytes(), usage.unreferenced_bytes()
    teams = _slots_of_teams(span, now)
    for node in tree.values():
        for above in ancestors_of(tree, node.id) if node.team_id else ():
            kept[above.id] += stored.get(node.team_id, 0)
            unnamed[above.id] += unreferenced.get(node.team_id, 0)
            for (accelerator, day), slots in teams.get(node.team_id, {}).items():
                used[above.id].setdefault(accelerator, [0.0] * days)[place[day]] += slots
    own = nominals(tree)
    past = _past(span, now)
    granted = {accelerator for _, accelerator in {*own, *past}}
    return {
        node_id: History(
            node_id,
            kept[node_id],
            unnamed[node_id],
            [
                Line(
                    accelerator,
                    [round(slots, 3) for slots in used[node_id].get(accelerator, [0.0] * days)],
                    _day_by_day(own.get((node_id, accelerator), 0), past.get((node_id, accelerator), ()), span, now),
                )
                for accelerator in sorted({*granted, *used[node_id]})
            ],
        )
        for node_id in tree
    }


def _past(span: list[date], now: datetime) -> Mapping[tuple[str, str], Sequence[NominalChange]]:
    """By node and accelerator: what was changed in these days, newest last."""
    found: dict[tuple[str, str], list[NominalChange]] = {}
    start = datetime.combine(span[0], datetime.min.time(), now.tzinfo)
    for change in NominalChange.objects.filter(time__gte=start, time__lte=now).order_by("time", "id"):
        found.setdefault((change.node_id, change.accelerator), []).append(change)
    return found


def _day_by_day(present: int, changes: Sequence[NominalChange], span: list[date], now: datetime) -> list[int]:
    """Back from what is: whatever was changed after a day's end was not so yet."""
    days, later = [], list(changes)
    for day in reversed(span):
        end = datetime.combine(day + timedelta(days=1), datetime.min.time(), now.tzinfo)
        while later and later[-1].time >= end:
            present = later.pop().before
        days.append(present)
    return days[::-1]


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
