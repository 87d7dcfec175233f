"""System series: what the nodes' agents sample of their machines, aggregated over the nodes as it arrives.

A run on a thousand nodes has the same number of series as one on a single node: for each interval the mean, the lowest
and the highest value of all GPUs (or nodes), and where the extremes were. The newest sample of each node is stored
beside them, by which nodes are compared. The whole history of each node is not: a thousand nodes would write 100 rows
a second, and nobody looks at a thousand curves.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from django.db import transaction
from django.db.models import QuerySet
from django.utils import timezone

from athanor.jobs.models import Attempt, Job
from athanor.telemetry.clock import Clock
from athanor.telemetry.models import NodeSample, SystemInterval
from trainer.contract.system import SYSTEM_SERIES, SystemSample

SECONDS = 60
COARSE_SECONDS = 3600
FINE_FOR = timedelta(days=2)  # after which intervals are merged into coarse ones
MERGED_ROWS = 2000  # in one transaction
MAX_NODES = 10_000  # nodes of an answer

Aggregate = Sequence[Any]
"""Number of values, their sum, the lowest, its place, the highest, its place: a list in JSON."""


@dataclass(frozen=True)
class Point:
    """Values of a series in the interval from `time` on. `low_at`, `high_at`: NODE, or NODE:NUMBER of a GPU or zone."""

    time: datetime
    mean: float
    low: float
    low_at: str
    high: float
    high_at: str


def aggregate(samples: Iterable[SystemSample]) -> dict[str, Aggregate]:
    """Aggregate samples by series. Names that are not in the contract are dropped. Pure."""
    found: dict[str, Aggregate] = {}
    for sample in samples:
        for name, values in sample.values.items():
            if name not in SYSTEM_SERIES:
                continue
            for index, value in enumerate(values):
                if value is not None:
                    place = f"{sample.node}:{index}" if SYSTEM_SERIES[name].of else sample.node
                    one = (1, value, value, place, value, place)
                    found[name] = merge_two(found[name], one) if name in found else one
    return found


def merge_two(one: Aggregate, other: Aggregate) -> Aggregate:
    """Return the aggregate of two disjoint sets of values; of equal extremes, the place of the first. Pure."""
    count, total, low, low_at, high, high_at = one
    count2, total2, low2, low_at2, high2, high_at2 = other
    if low2 < low:
        low, low_at = low2, low_at2
    if high2 > high:
        high, high_at = high2, high_at2
    return count + count2, total + total2, low, low_at, high, high_at


def merge(one: Mapping[str, Aggregate], other: Mapping[str, Aggregate]) -> dict[str, Aggregate]:
    """Return the aggregates of both, by series. Pure."""
    return {**one, **{name: merge_two(one[name], row) if name in one else row for name, row in other.items()}}


def store(attempt: Attempt, samples: Sequence[SystemSample]) -> None:
    """Store the samples of a batch, within the transaction that counts it. Those of other nodes than the attempt's are
    dropped."""
    clock = Clock(attempt)
    by_time: dict[datetime, list[SystemSample]] = {}
    newest: dict[str, tuple[datetime, SystemSample]] = {}
    own = [sample.model_copy(update={"node": node}) for sample in samples if (node := attempt.own_node(sample.node))]
    for sample in own:
        at = clock.bounded(sample.time)
        by_time.setdefault(_start(at, SECONDS), []).append(sample)
        if sample.node not in newest or newest[sample.node][0] <= at:
            newest[sample.node] = (at, sample)
    times = sorted(by_time)
    new = [SystemInterval(attempt=attempt, time=time, seconds=SECONDS, values={}) for time in times]
    SystemInterval.objects.bulk_create(new, ignore_conflicts=True)
    rows = SystemInterval.objects.select_for_update(no_key=True).filter(attempt=attempt, seconds=SECONDS)
    changed = list(rows.filter(time__in=times).order_by("time"))  # one order of locks for all nodes
    for row in changed:
        row.values = merge(row.values, aggregate(by_time[row.time]))
    SystemInterval.objects.bulk_update(changed, ["values"])
    NodeSample.objects.bulk_create(
        [
            NodeSample(attempt=attempt, node=node, time=at, values=_known(sample))
            for node, (at, sample) in sorted(newest.items())
        ],
        update_conflicts=True, unique_fields=["attempt", "node"], update_fields=["time", "values"],
    )  # fmt: skip


def series_of(job: Job, points: int) -> tuple[int, dict[str, list[Point]]]:
    """Return the length of an interval in seconds, and the series of all attempts of a job, of at most about `points`
    intervals."""
    rows = SystemInterval.objects.filter(attempt__job=job).order_by("time")
    ends = [rows.values_list("time", flat=True).first(), rows.values_list("time", flat=True).last()]
    if ends[0] is None or ends[1] is None:
        return SECONDS, {}
    total = (ends[1] - ends[0]).total_seconds()
    finest = SECONDS if rows.filter(seconds=SECONDS).exists() else COARSE_SECONDS
    seconds = finest
    while total / seconds > points:
        seconds *= 2
    merged: dict[datetime, dict[str, Aggregate]] = {}
    for time, values in rows.values_list("time", "values").iterator():
        start = _start(time, seconds)
        merged[start] = merge(merged.get(start, {}), values)
    found: dict[str, list[Point]] = {}
    for time, values in sorted(merged.items()):
        for name, row in values.items():
            count, sum_, low, low_at, high, high_at = row
            point = Point(time, sum_ / count, low, low_at, high, high_at)
            found.setdefault(name, []).append(point)
    return seconds, {name: found[name] for name in SYSTEM_SERIES if name in found}


def nodes_of(job: Job) -> list[NodeSample]:
    """Return the newest sample of each node of the job's newest attempt that has any, by name."""
    newest = NodeSample.objects.filter(attempt__job=job).order_by("-attempt__number").first()
    if newest is None:
        return []
    return list(NodeSample.objects.filter(attempt=newest.attempt_id).order_by("node")[:MAX_NODES])


def coarsen(limit: int = MERGED_ROWS) -> int:
    """Merge up to `limit` intervals that are older than FINE_FOR into hours. Return how many there were."""
    with transaction.atomic():
        fine = overdue().order_by("attempt_id", "time").select_for_update(skip_locked=True, no_key=True)[:limit]
        merged: dict[tuple[str, datetime], dict[str, Aggregate]] = {}
        rows = list(fine)
        for row in rows:
            place = row.attempt_id, _start(row.time, COARSE_SECONDS)
            merged[place] = merge(merged.get(place, {}), row.values)
        for (attempt, time), values in merged.items():
            row, created = SystemInterval.objects.select_for_update(no_key=True).get_or_create(
                attempt_id=attempt, seconds=COARSE_SECONDS, time=time, defaults={"values": values}
            )
            if not created:
                row.values = merge(row.values, values)
                row.save(update_fields=["values"])
        SystemInterval.objects.filter(pk__in=[row.pk for row in rows]).delete()
    return len(rows)


def overdue() -> QuerySet[SystemInterval]:
    """Return the intervals that are due to be merged into hours."""
    return SystemInterval.objects.filter(seconds=SECONDS, time__lt=timezone.now() - FINE_FOR)


def _start(time: datetime, seconds: int) -> datetime:
    stamp = int(time.timestamp())
    return datetime.fromtimestamp(stamp - stamp % seconds, UTC)


def _known(sample: SystemSample) -> dict[str, list[float | None]]:
    return {name: values for name, values in sample.values.items() if name in SYSTEM_SERIES}
