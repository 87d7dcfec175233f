"""Measure the subjects of alert rules. The number of queries does not depend on the number of rules or jobs."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from fnmatch import fnmatchcase
from itertools import chain
from typing import Any

import numpy as np
from django.db.models import F
from django.db.models.functions import Coalesce, Greatest

from athanor.alerts.measures import MEASURES, Measure
from athanor.alerts.models import AlertRule
from athanor.artifacts import usage
from athanor.budgets.models import BudgetPeriod
from athanor.jobs.models import Attempt, Job
from athanor.jobs.states import AttemptStatus, JobStatus
from athanor.quotas.models import QuotaNode
from athanor.telemetry import recent
from athanor.telemetry.codec import Matrix
from athanor.telemetry.rollups import VALUE


@dataclass(frozen=True)
class Sample:
    """What a rule measures of a subject now. `value`: None if there is no data (yet)."""

    subject: str
    name: str
    value: float | None
    job_id: str | None = None


def measure(rules: Iterable[AlertRule], now: datetime) -> dict[str, list[Sample]]:
    """Return the samples of each rule, by its id. A rule without a subject at present has none."""
    rules = list(rules)
    return {
        **_of_running_jobs([rule for rule in rules if _is_of_running_jobs(rule)], now),
        **_of_queued_jobs([rule for rule in rules if rule.measure == Measure.QUEUE_WAIT], now),
        **_of_limits([rule for rule in rules if not MEASURES[Measure(rule.measure)].of_jobs], now),
    }


def covers(rule: AlertRule, job: Job) -> bool:
    """Return whether a rule applies to a job: by its team, the pattern of its name, and its labels."""
    return (
        rule.team_id == job.team_id
        and (not rule.job_name or fnmatchcase(job.name, rule.job_name))
        and all(job.labels.get(key) == value for key, value in rule.labels.items())
    )


def _is_of_running_jobs(rule: AlertRule) -> bool:
    return MEASURES[Measure(rule.measure)].of_jobs and rule.measure != Measure.QUEUE_WAIT


def _jobs(rules: list[AlertRule], status: JobStatus) -> dict[str, list[Job]]:
    rows = Job.objects.filter(team_id__in={rule.team_id for rule in rules}, status=status.value)
    found: dict[str, list[Job]] = defaultdict(list)
    for job in rows.only("id", "team_id", "name", "labels", "queued_at", "started_at"):
        found[job.team_id].append(job)
    return found


def _of_running_jobs(rules: list[AlertRule], now: datetime) -> dict[str, list[Sample]]:
    if not rules:
        return {}
    jobs = _jobs(rules, JobStatus.RUNNING)
    covered = {rule.id: [job for job in jobs[rule.team_id] if covers(rule, job)] for rule in rules}
    ids = {job.id for job in chain.from_iterable(covered.values())}
    names = {rule.series for rule in rules if rule.series}
    points = recent.last_points(ids, names, max(rule.window for rule in rules))
    live = Attempt.objects.filter(job_id__in=ids).exclude(status=AttemptStatus.ENDED.value)
    start = Coalesce("started_at", "launched_at", "created_at")
    progressed = dict(live.values_list("job_id", Greatest(start, "job__progress__progressed_at")))
    return {
        rule.id: [
            Sample(
                job.id,
                job.name,
                _minutes_since(progressed.get(job.id), now)
                if rule.measure == Measure.NO_PROGRESS
                else value_of_series(Measure(rule.measure), points.get((job.id, rule.series)), rule.window),
                job.id,
            )
            for job in covered[rule.id]
        ]
        for rule in rules
    }


def value_of_series(measure: Measure, points: Matrix | None, window: int) -> float | None:
    """Return what a measure of a series finds in its last points. None without enough of them."""
    if points is None or not points.shape[1]:
        return None
    values = points[VALUE][-window:]
    newest = float(values[-1])
    if measure in (Measure.SERIES_BELOW, Measure.SERIES_ABOVE):
        return newest
    median = float(np.median(values))
    if len(values) < window or median <= 0:
        return None  # a share of zero, or of a negative number, says nothing
    extreme = newest if measure is Measure.SERIES_DROP else float(values.max())
    change = 100 * (extreme / median - 1)
    return -change if measure is Measure.SERIES_DROP else change


def _minutes_since(time: datetime | None, now: datetime) -> float | None:
    return None if time is None else max(0.0, (now - time).total_seconds()) / 60


def _of_queued_jobs(rules: list[AlertRule], now: datetime) -> dict[str, list[Sample]]:
    if not rules:
        return {}
    jobs = _jobs(rules, JobStatus.QUEUED)
    return {
        rule.id: [
            Sample(job.id, job.name, _minutes_since(job.queued_at, now), job.id)
            for job in jobs[rule.team_id]
            if covers(rule, job)
        ]
        for rule in rules
    }


def _of_limits(rules: list[AlertRule], now: datetime) -> dict[str, list[Sample]]:
    """Return the used shares of the budgets and of the storage limits on each team's path in the quota tree."""
    if not rules:
        return {}
    nodes = {row.id: row for row in QuotaNode.objects.all()}
    leaves = {row.team_id: row.id for row in nodes.values() if row.team_id}
    wanted = {rule.measure for rule in rules}
    shares: dict[str, dict[str, list[Sample]]] = {
        Measure.BUDGET_USED: _budget_shares(now) if Measure.BUDGET_USED in wanted else {},
        Measure.STORAGE_USED: _storage_shares(nodes) if Measure.STORAGE_USED in wanted else {},
    }
    return {
        rule.id: [
            sample for node in _path(nodes, leaves.get(rule.team_id)) for sample in shares[rule.measure].get(node, [])
        ]
        for rule in rules
    }


def _path(nodes: dict[str, QuotaNode], node: str | None) -> Iterator[str]:
    """Yield a node of the quota tree and those above it."""
    while node is not None:
        yield node
        node = nodes[node].parent_id


def _budget_shares(now: datetime) -> dict[str, list[Sample]]:
    found: dict[str, list[Sample]] = defaultdict(list)
    periods = BudgetPeriod.objects.filter(start__lte=now, end__gt=now, budget__active=True, budget__amount__gt=0)
    columns: Any = periods.values_list("budget__node_id", "budget_id", "budget__name", "spent", F("budget__amount"))
    for node, budget, name, spent, amount in columns.order_by("budget_id"):
        found[node].append(Sample(budget, name, 100 * spent / amount))
    return found


def _storage_shares(nodes: dict[str, QuotaNode]) -> dict[str, list[Sample]]:
    used: dict[str, int] = defaultdict(int)
    stored = usage.stored_bytes()
    for row in nodes.values():
        if row.team_id in stored:
            for node in _path(nodes, row.id):
                used[node] += stored[row.team_id]
    return {
        row.id: [Sample(row.id, row.name, 100 * used[row.id] / row.max_storage_bytes)]
        for row in nodes.values()
        if row.max_storage_bytes
    }
