"""The state of the platform as samples of its gauges, read from the database with a fixed number of queries.

Series of jobs and nodes exist while the attempt lives, so that a scrape grows with what runs and not with history.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from datetime import timedelta

from django.db.models import Count, Min, Q, Sum
from django.db.models.functions import Now
from django.utils import timezone

from athanor.budgets.models import Budget, UsagePart
from athanor.budgets.statements import current_periods
from athanor.clusters.models import Cluster, ClusterHealthCheck, Node, Pool
from athanor.core import clock
from athanor.jobs.goodput import PRODUCTIVE
from athanor.jobs.models import Attempt, Job
from athanor.jobs.states import FINAL, HOLDING, AttemptStatus, JobStatus
from athanor.monitoring import gauges
from athanor.monitoring.gauges import Gauge
from athanor.quotas.models import QuotaNode
from athanor.reconcilers import backlog
from athanor.telemetry.models import NodeSample, Progress
from athanor.webhooks.models import Delivery, Webhook
from trainer.contract.system import SYSTEM_SERIES

GOODPUT_WINDOW = timedelta(hours=24)
STALE_AFTER = timedelta(minutes=5)  # a node's sample that is older says nothing about now
MILLIONTHS = 1_000_000
SECONDS_PER_HOUR = 3600

Sample = tuple[Gauge, tuple[object, ...], float]
"""A gauge, the values of its labels, and its value."""


def read() -> Iterator[Sample]:
    """Read the state of all teams. The session must see all of them (core/tenancy.py)."""
    parts = (_jobs, _queue, _pools, _clusters, _nodes, _reconcilers, _webhooks, _budgets, _goodput, _progress, _samples)
    for part in parts:
        yield from part()


def _jobs() -> Iterator[Sample]:
    rows = Job.objects.exclude(status__in=[status.value for status in FINAL]).order_by()
    for team, status, count in rows.values_list("team__name", "status").annotate(Count("id")):
        yield gauges.JOBS, (team, status), count
    live = Attempt.objects.exclude(status=AttemptStatus.ENDED.value).order_by()
    for cluster, status, count in live.values_list("job__pool__cluster__name", "status").annotate(Count("id")):
        yield gauges.ATTEMPTS, (cluster, status), count


def _queue() -> Iterator[Sample]:
    waiting = Job.objects.filter(status=JobStatus.QUEUED.value).order_by()
    keys = ("team__name", "pool__cluster__name", "pool__name", "reason")
    now = clock.database_now()
    for *key, count, slots, since in waiting.values_list(*keys).annotate(Count("id"), Sum("slots"), Min("queued_at")):
        yield gauges.QUEUE_JOBS, (*key,), count
        yield gauges.QUEUE_SLOTS, (*key,), slots
        yield gauges.QUEUE_OLDEST, (*key,), max(0.0, (now - since).total_seconds())


def _pools() -> Iterator[Sample]:
    held = Sum("jobs__slots", filter=Q(jobs__status__in=[status.value for status in HOLDING]), default=0)
    pools = Pool.objects.filter(cluster__enabled=True).select_related("cluster").annotate(held=held)
    for pool in pools.order_by("cluster__name", "name"):
        key = (pool.cluster.name, pool.name, pool.accelerator)
        yield gauges.POOL_SLOTS, key, pool.slots
        yield gauges.POOL_SPARE, key, pool.spare_slots
        yield gauges.POOL_USED, key, vars(pool)["held"]


def _clusters() -> Iterator[Sample]:
    now = clock.database_now()
    newest = ClusterHealthCheck.objects.order_by("cluster", "-id").distinct("cluster")
    checks = {check.cluster_id: check for check in newest}
    live = Attempt.objects.exclude(status=AttemptStatus.ENDED.value).exclude(submitted_at=None)
    busy = set(live.values_list("job__pool__cluster_id", flat=True))
    for cluster in Cluster.objects.filter(enabled=True).order_by("name"):
        if cluster.observed_at is not None and cluster.id in busy:
            yield gauges.CLUSTER_AGE, (cluster.name,), max(0.0, (now - cluster.observed_at).total_seconds())
        if (check := checks.get(cluster.id)) is not None:
            yield gauges.CLUSTER_USABLE, (cluster.name,), float(check.usable)
            for level in ("warning", "error"):
                count = sum(finding["level"] == level for finding in check.findings)
                yield gauges.CLUSTER_FINDINGS, (cluster.name, level), count


def _nodes() -> Iterator[Sample]:
    nodes = Node.objects.filter(cluster__enabled=True).order_by()
    states = nodes.filter(listed=True).values_list("cluster__name", "state").annotate(Count("id"))
    for cluster, state, count in states:
        yield gauges.NODES, (cluster, state), count
    apart = nodes.filter(quarantined_at__isnull=False).values_list("cluster__name").annotate(Count("id"))
    for cluster, count in apart:
        yield gauges.NODES_QUARANTINED, (cluster,), count


def _reconcilers() -> Iterator[Sample]:
    now = clock.database_now()
    for each in backlog.states():
        task = (each.reconciler.task,)
        yield gauges.ROWS_DUE, task, each.rows_due
        yield gauges.LAG, task, each.oldest_due_seconds or 0.0
        if each.ran_at is not None:
            yield gauges.RUN_AGE, task, max(0.0, (now - each.ran_at).total_seconds())
        yield gauges.LATE, task, float(each.late)
        yield gauges.ROWS_FAILING, task, each.rows_failing
        yield gauges.ROWS_GIVEN_UP, task, each.rows_given_up


def _webhooks() -> Iterator[Sample]:
    now = clock.database_now()
    rows = Delivery.objects.filter(state=Delivery.State.PENDING, webhook__enabled=True).order_by()
    for team, count, since in rows.values_list("team__name").annotate(Count("id"), Min("created_at")):
        yield gauges.DELIVERIES_PENDING, (team,), count
        yield gauges.DELIVERIES_OLDEST, (team,), max(0.0, (now - since).total_seconds())
    failing = Webhook.objects.filter(enabled=True, failing_since__isnull=False).order_by()
    for team, count in failing.values_list("team__name").annotate(Count("id")):
        yield gauges.WEBHOOKS_FAILING, (team,), count


def _budgets() -> Iterator[Sample]:
    budgets = list(Budget.objects.filter(active=True).order_by("node_id", "name"))
    periods = current_periods(budgets, timezone.now())
    names = _paths() if budgets else {}
    for budget in budgets:
        is_money = budget.unit == Budget.Unit.MONEY
        key = (names[budget.node_id], budget.name, budget.currency if is_money else budget.unit)
        scale = MILLIONTHS if is_money else SECONDS_PER_HOUR
        period = periods.get(budget.id)  # none before the first job of the period
        yield gauges.BUDGET_AMOUNT, key, (period.amount if period else budget.amount) / scale
        yield gauges.BUDGET_SPENT, key, (period.spent if period else 0) / scale
        yield gauges.BUDGET_RESERVED, key, (period.reserved if period else 0) / scale
        yield gauges.BUDGET_SOFT, key, budget.soft_percent / 100


def _paths() -> Mapping[str, str]:
    """Return the path of each node of the quota tree, such as organisation/research/vision."""
    rows = {pk: (parent, name) for pk, parent, name in QuotaNode.objects.values_list("id", "parent_id", "name")}

    def path_of(node: str) -> str:
        parent, name = rows[node]
        return name if parent is None else f"{path_of(parent)}/{name}"

    return {node: path_of(node) for node in rows}


def _goodput() -> Iterator[Sample]:
    rows = UsagePart.objects.filter(usage__hour__gte=Now() - GOODPUT_WINDOW).order_by()
    by_team: dict[str, dict[str, int]] = defaultdict(dict)
    for team, activity, seconds in rows.values_list("team__name", "activity").annotate(Sum("slot_seconds")):
        by_team[team][activity] = seconds
        yield gauges.USAGE, (team, activity), seconds / SECONDS_PER_HOUR
    for team, parts in by_team.items():
        if total := sum(parts.values()):
            productive = sum(seconds for activity, seconds in parts.items() if activity in PRODUCTIVE)
            yield gauges.GOODPUT, (team,), productive / total


def _progress() -> Iterator[Sample]:
    now = clock.database_now()
    rows = Progress.objects.filter(job__status=JobStatus.RUNNING.value).order_by()
    columns = ("job__team__name", "job_id", "job__name", "step", "updated_at", "values")
    for *key, step, updated_at, values in rows.values_list(*columns):
        if step >= 0:
            yield gauges.JOB_STEP, (*key,), step
        yield gauges.JOB_REPORT_AGE, (*key,), max(0.0, (now - updated_at).total_seconds())
        for series in values.keys() & gauges.PROGRESS.keys():
            yield gauges.PROGRESS[series], (*key,), values[series]


def _samples() -> Iterator[Sample]:
    newest = Now() - STALE_AFTER
    rows = NodeSample.objects.filter(~Q(attempt__status=AttemptStatus.ENDED.value), time__gte=newest).order_by()
    columns = ("attempt__job__pool__cluster__name", "node", "attempt__job_id", "values")
    for *key, values in rows.values_list(*columns):
        for series in values.keys() & gauges.SYSTEM.keys():
            for number, value in enumerate(values[series]):
                if value is not None:
                    device = (number,) if SYSTEM_SERIES[series].of else ()
                    yield gauges.SYSTEM[series], (*key, *device), value
