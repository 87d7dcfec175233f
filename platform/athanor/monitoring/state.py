"""The state of the platform as Prometheus gauges, read from the database with a fixed number of queries.

Series of jobs and nodes exist while the attempt lives, so that a scrape grows with what runs and not with history.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta

from django.db.models import Count, Min, Q, Sum
from django.db.models.functions import Now
from django.utils import timezone
from prometheus_client.core import GaugeMetricFamily

from athanor.budgets.models import Budget, UsagePart
from athanor.budgets.statements import current_periods
from athanor.clusters.models import Cluster, ClusterHealthCheck, Node, Pool
from athanor.core import clock
from athanor.jobs.goodput import PRODUCTIVE
from athanor.jobs.models import Attempt, Job
from athanor.jobs.states import FINAL, HOLDING, AttemptStatus, JobStatus
from athanor.quotas.models import QuotaNode
from athanor.reconcilers import backlog
from athanor.telemetry.models import NodeSample, Progress
from athanor.webhooks.models import Delivery, Webhook
from trainer.contract.system import SYSTEM_SERIES

GOODPUT_WINDOW = timedelta(hours=24)
STALE_AFTER = timedelta(minutes=5)  # a node's sample that is older says nothing about now
MILLIONTHS = 1_000_000
SECONDS_PER_HOUR = 3600

UNITS = {"fraction": "ratio", "bytes": "bytes", "celsius": "celsius", "watts": "watts", "megahertz": "megahertz"}
PROGRESS = {
    "throughput/tokens_per_second": ("tokens_per_second", "Tokens per second of all ranks, in the newest step."),
    "throughput/mfu_causal": ("mfu_ratio", "Model FLOPs utilisation of the newest step (causal attention), 0 to 1."),
    "time/step_seconds": ("step_seconds", "Duration of the newest step."),
    "train/loss": ("loss", "Training loss of the newest step."),
}


@dataclass
class Family:
    """A gauge with its samples. `labels`: their names, in the order in which `add` takes the values."""

    name: str
    documentation: str
    labels: tuple[str, ...] = ()
    samples: list[tuple[list[str], float]] = field(default_factory=list)

    def add(self, *values: object, value: float) -> None:
        """Add a sample with these values of the labels."""
        self.samples.append(([str(each) for each in values], value))

    def metric(self) -> GaugeMetricFamily:
        """Return it as the library's."""
        metric = GaugeMetricFamily(f"athanor_{self.name}", self.documentation, labels=self.labels)
        for labels, value in self.samples:
            metric.add_metric(labels, value)
        return metric


def read() -> Iterator[Family]:
    """Read the state of all teams. The session must see all of them (core/tenancy.py)."""
    parts = (_jobs, _pools, _clusters, _reconcilers, _webhooks, _budgets, _goodput, _progress, _node_samples)
    for part in parts:
        yield from part()


def _jobs() -> Iterable[Family]:
    jobs = Family("jobs", "Jobs that have not ended.", ("team", "status"))
    rows = Job.objects.exclude(status__in=[status.value for status in FINAL]).order_by()
    for team, status, count in rows.values_list("team__name", "status").annotate(Count("id")):
        jobs.add(team, status, value=count)

    labels = ("team", "cluster", "pool", "reason")
    depth = Family("queue_jobs", "Queued jobs, by the reason why they wait.", labels)
    slots = Family("queue_slots", "Slots of the queued jobs.", labels)
    oldest = Family("queue_oldest_seconds", "Time for which the oldest of the queued jobs has waited.", labels)
    waiting = Job.objects.filter(status=JobStatus.QUEUED.value).order_by()
    keys = ("team__name", "pool__cluster__name", "pool__name", "reason")
    now = clock.database_now()
    for *key, count, total, since in waiting.values_list(*keys).annotate(Count("id"), Sum("slots"), Min("queued_at")):
        depth.add(*key, value=count)
        slots.add(*key, value=total)
        oldest.add(*key, value=max(0.0, (now - since).total_seconds()))

    attempts = Family("attempts", "Attempts that have not ended.", ("cluster", "status"))
    live = Attempt.objects.exclude(status=AttemptStatus.ENDED.value).order_by()
    for cluster, status, count in live.values_list("job__pool__cluster__name", "status").annotate(Count("id")):
        attempts.add(cluster, status, value=count)
    return jobs, depth, slots, oldest, attempts


def _pools() -> Iterable[Family]:
    labels = ("cluster", "pool", "accelerator")
    total = Family("pool_slots", "Slots of a pool.", labels)
    spare = Family(
        "pool_spare_slots", "Slots of the spare nodes of a pool, which are part of `athanor_pool_slots`.", labels
    )
    used = Family("pool_slots_used", "Slots of a pool that jobs hold.", labels)
    held = Sum("jobs__slots", filter=Q(jobs__status__in=[status.value for status in HOLDING]), default=0)
    pools = Pool.objects.filter(cluster__enabled=True).select_related("cluster").annotate(held=held)
    for pool in pools.order_by("cluster__name", "name"):
        key = (pool.cluster.name, pool.name, pool.accelerator)
        total.add(*key, value=pool.slots)
        spare.add(*key, value=pool.spare_slots)
        used.add(*key, value=vars(pool)["held"])
    return total, spare, used


def _clusters() -> Iterable[Family]:
    age = Family(
        "cluster_observed_age_seconds",
        "Time since the attempts of a cluster were last observed; without a sample when it has none.",
        ("cluster",),
    )
    usable = Family("cluster_usable", "1 if the last health check has found no error.", ("cluster",))
    findings = Family("cluster_findings", "Findings of the last health check.", ("cluster", "level"))
    nodes = Family("nodes", "Nodes of the last inventory.", ("cluster", "state"))
    quarantined = Family("nodes_quarantined", "Quarantined nodes.", ("cluster",))
    now = clock.database_now()
    newest = ClusterHealthCheck.objects.order_by("cluster", "-id").distinct("cluster")
    checks = {check.cluster_id: check for check in newest}
    busy = set(
        Attempt.objects.exclude(status=AttemptStatus.ENDED.value)
        .exclude(submitted_at=None)
        .values_list("job__pool__cluster_id", flat=True)
    )
    for cluster in Cluster.objects.filter(enabled=True).order_by("name"):
        if cluster.observed_at is not None and cluster.id in busy:
            age.add(cluster.name, value=max(0.0, (now - cluster.observed_at).total_seconds()))
        if (check := checks.get(cluster.id)) is not None:
            usable.add(cluster.name, value=float(check.usable))
            for level in ("warning", "error"):
                count = sum(finding["level"] == level for finding in check.findings)
                findings.add(cluster.name, level, value=count)
    listed = Node.objects.filter(cluster__enabled=True).order_by()
    states = listed.filter(listed=True).values_list("cluster__name", "state").annotate(Count("id"))
    for name, node_state, count in states:
        nodes.add(name, node_state, value=count)
    apart = listed.filter(quarantined_at__isnull=False).values_list("cluster__name").annotate(Count("id"))
    for name, count in apart:
        quarantined.add(name, value=count)
    return age, usable, findings, nodes, quarantined


def _reconcilers() -> Iterable[Family]:
    due = Family("reconciler_rows_due", "Rows that wait for a reconciler.", ("task",))
    lag = Family(
        "reconciler_lag_seconds",
        "Time for which the oldest row has waited for a reconciler; 0 if none waits.",
        ("task",),
    )
    age = Family(
        "reconciler_last_run_age_seconds", "Time since the last run of a reconciler that succeeded.", ("task",)
    )
    late = Family("reconciler_late", "1 if a reconciler has missed several runs.", ("task",))
    failing = Family("reconciler_rows_failing", "Rows whose work failed lately and is tried again.", ("task",))
    given_up = Family(
        "reconciler_rows_given_up", "Rows whose work was given up after repeated errors, in the last 7 days.", ("task",)
    )
    now = clock.database_now()
    for each in backlog.states():
        task = each.reconciler.task
        due.add(task, value=each.rows_due)
        lag.add(task, value=each.oldest_due_seconds or 0.0)
        if each.ran_at is not None:
            age.add(task, value=max(0.0, (now - each.ran_at).total_seconds()))
        late.add(task, value=float(each.late))
        failing.add(task, value=each.rows_failing)
        given_up.add(task, value=each.rows_given_up)
    return due, lag, age, late, failing, given_up


def _webhooks() -> Iterable[Family]:
    pending = Family(
        "webhook_deliveries_pending", "Deliveries to enabled webhooks that are not accepted yet.", ("team",)
    )
    oldest = Family("webhook_oldest_pending_seconds", "Age of the oldest delivery that is not accepted yet.", ("team",))
    failing = Family("webhooks_failing", "Enabled webhooks whose last delivery failed.", ("team",))
    now = clock.database_now()
    rows = Delivery.objects.filter(state=Delivery.State.PENDING, webhook__enabled=True).order_by()
    for team, count, since in rows.values_list("team__name").annotate(Count("id"), Min("created_at")):
        pending.add(team, value=count)
        oldest.add(team, value=max(0.0, (now - since).total_seconds()))
    broken = Webhook.objects.filter(enabled=True, failing_since__isnull=False).order_by()
    for team, count in broken.values_list("team__name").annotate(Count("id")):
        failing.add(team, value=count)
    return pending, oldest, failing


def _budgets() -> Iterable[Family]:
    labels = ("node", "budget", "unit")
    amount = Family(
        "budget_amount", "Amount of a budget in its current period, in slot-hours or in the currency.", labels
    )
    spent = Family("budget_spent", "Spent part of a budget.", labels)
    reserved = Family("budget_reserved", "Part of a budget that is reserved for running jobs.", labels)
    warn = Family("budget_soft_ratio", "Share of a budget at which its teams are warned.", labels)
    budgets = list(Budget.objects.filter(active=True).order_by("node_id", "name"))
    periods = current_periods(budgets, timezone.now())
    names = _paths() if budgets else {}
    for budget in budgets:
        is_money = budget.unit == Budget.Unit.MONEY
        key = (names[budget.node_id], budget.name, budget.currency if is_money else budget.unit)
        scale = MILLIONTHS if is_money else SECONDS_PER_HOUR
        period = periods.get(budget.id)  # none before the first job of the period
        amount.add(*key, value=(period.amount if period else budget.amount) / scale)
        spent.add(*key, value=(period.spent if period else 0) / scale)
        reserved.add(*key, value=(period.reserved if period else 0) / scale)
        warn.add(*key, value=budget.soft_percent / 100)
    return amount, spent, reserved, warn


def _paths() -> Mapping[str, str]:
    """Return the path of each node of the quota tree, such as organisation/research/vision."""
    rows = {pk: (parent, name) for pk, parent, name in QuotaNode.objects.values_list("id", "parent_id", "name")}

    def path_of(node: str) -> str:
        parent, name = rows[node]
        return name if parent is None else f"{path_of(parent)}/{name}"

    return {node: path_of(node) for node in rows}


def _goodput() -> Iterable[Family]:
    ratio = Family("goodput_ratio", "Productive share of a team's slot time in the last 24 hours.", ("team",))
    held = Family("usage_slot_hours", "A team's slot time in the last 24 hours, by activity.", ("team", "activity"))
    rows = UsagePart.objects.filter(usage__hour__gte=Now() - GOODPUT_WINDOW).order_by()
    by_team: dict[str, dict[str, int]] = defaultdict(dict)
    for team, activity, seconds in rows.values_list("team__name", "activity").annotate(Sum("slot_seconds")):
        by_team[team][activity] = seconds
        held.add(team, activity, value=seconds / SECONDS_PER_HOUR)
    for team, parts in by_team.items():
        if total := sum(parts.values()):
            productive = sum(seconds for activity, seconds in parts.items() if activity in PRODUCTIVE)
            ratio.add(team, value=productive / total)
    return ratio, held


def _progress() -> Iterable[Family]:
    labels = ("team", "job", "name")
    step = Family("job_step", "Newest step of a running job.", labels)
    age = Family("job_last_report_age_seconds", "Time since the agents of a running job last reported.", labels)
    values = {series: Family(f"job_{name}", text, labels) for series, (name, text) in PROGRESS.items()}
    now = clock.database_now()
    rows = Progress.objects.filter(job__status=JobStatus.RUNNING.value).order_by()
    columns = ("job__team__name", "job_id", "job__name", "step", "updated_at", "values")
    for *key, newest, updated_at, found in rows.values_list(*columns):
        if newest >= 0:
            step.add(*key, value=newest)
        age.add(*key, value=max(0.0, (now - updated_at).total_seconds()))
        for series, family in values.items():
            if series in found:
                family.add(*key, value=found[series])
    return step, age, *values.values()


def _node_samples() -> Iterable[Family]:
    families = {}
    for name, series in SYSTEM_SERIES.items():
        unit = UNITS.get(series.unit, "")
        short = name.removeprefix("system/").removesuffix("_bytes")
        suffix = f"_{unit}" if unit else ""
        labels = ("cluster", "node", "job", *([series.of] if series.of else []))
        families[name] = Family(f"node_{short}{suffix}", f"{series.title}, as a running job sampled it last.", labels)
    newest = Now() - STALE_AFTER
    rows = NodeSample.objects.filter(~Q(attempt__status=AttemptStatus.ENDED.value), time__gte=newest).order_by()
    columns = ("attempt__job__pool__cluster__name", "node", "attempt__job_id", "values")
    for *key, values in rows.values_list(*columns):
        for name, found in values.items():
            if name not in families:
                continue
            for number, value in enumerate(found):
                if value is not None:
                    device = [number] if SYSTEM_SERIES[name].of else []
                    families[name].add(*key, *device, value=value)
    return families.values()
