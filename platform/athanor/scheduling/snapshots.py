"""Read the snapshot for an admission cycle from the database. Usage is counted from the rows of live jobs."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db.models import Count, Exists, IntegerField, Max, OuterRef, Q, QuerySet, Window
from django.db.models.fields.json import KeyTextTransform
from django.db.models.functions import Cast, RowNumber
from django.utils import timezone

from athanor.accounts.models import Team
from athanor.artifacts.models import Checkpoint
from athanor.backends.base import Phase
from athanor.backends.facts import NodeState
from athanor.budgets import usage
from athanor.budgets.reservations import PlannedReservations, plan_reservations
from athanor.budgets.schedule_windows import ScheduleWindows
from athanor.clusters.models import Node, Pool
from athanor.jobs.models import Attempt, Dependency, Job
from athanor.jobs.states import (
    ATTEMPT_LIVE,
    HOLDING,
    STOPPABLE_AT_CHECKPOINT,
    Desired,
    JobStatus,
)
from athanor.quotas import services as quotas
from athanor.quotas.capacity import CapacityGrant, CapacityNode
from athanor.quotas.models import AdmissionSettings, QuotaGrant, QuotaNode
from athanor.scheduling.policy import snapshot as pure

MAX_CONSIDERED_JOBS = 1000
MIN_JOBS_PER_QUEUE = 8
LEAVING = frozenset({JobStatus.PAUSING.value, JobStatus.STOPPING.value})


# Columns of a queued job that a decision needs, and those that hold its last reported reason.
COLUMNS = (
    "id", "team", "pool", "slots", "priority", "queued_at", "time_limit_seconds", "nodes", "schedule", "not_before",
    "deadline", "reason", "reason_detail", "updated_at",
)  # fmt: skip


@dataclass(frozen=True)
class TakenSnapshot:
    """A snapshot with the rows of its queued jobs, which have COLUMNS only.

    `lengths`: number of jobs that wait for each pool, including those left out. `reported_positions`: the positions
    that the jobs show now.
    """

    snapshot: pure.Snapshot
    rows: Mapping[str, Job]
    lengths: Mapping[str, int]
    reported_positions: Mapping[str, int | None]

    @property
    def complete(self) -> bool:
        """Return whether every queued job is in the snapshot."""
        return len(self.rows) == sum(self.lengths.values())


def take(now: datetime, max_jobs: int = MAX_CONSIDERED_JOBS) -> TakenSnapshot:
    """Take a snapshot with at most about `max_jobs` queued jobs: the first of each queue (team, pool and priority)."""
    leaf_of = leaves()
    found = list(Pool.objects.select_related("cluster").order_by("id"))
    rows, lengths, reported = _first_of_queues(max_jobs)
    holds = _holds(rows, found, now)
    quoted = plan_reservations(rows, now)
    settings = _settings(quotas.settings())
    return TakenSnapshot(
        pure.Snapshot(
            nodes=_nodes(leaf_of, settings.half_life_seconds, now),
            pools=tuple(_pools(found)),
            holdings=_holdings(leaf_of, now),
            waiting=tuple(_waiting(row, leaf_of[row.team_id], now, quoted, holds.get(row.id)) for row in rows),
            budgets=budgets_of(quoted),
            settings=settings,
        ),
        {row.id: row for row in rows},
        lengths,
        reported,
    )


def candidate(job: Job, leaf: str, now: datetime) -> tuple[pure.Waiting, PlannedReservations]:
    """Return a job that is not submitted yet as if it were queued now, and what its start would reserve."""
    quoted = plan_reservations([job], now)
    holds = _holds([job], [job.pool], now)
    return _waiting(job, leaf, now, quoted, holds.get(job.id)), quoted


def budgets_of(quoted: PlannedReservations) -> tuple[pure.Budget, ...]:
    """Return the budgets of planned reservations as input of the policy."""
    return tuple(pure.Budget(each.id, each.name, each.available, each.hard, each.unit) for each in quoted.budgets)


def _waiting(job: Job, leaf: str, now: datetime, quoted: PlannedReservations, hold: pure.Hold | None) -> pure.Waiting:
    return pure.Waiting(
        job_id=job.id,
        node=leaf,
        pool=job.pool_id,
        slots=job.slots,
        priority=job.priority,
        waited_seconds=_seconds(now - job.queued_at) if job.queued_at else 0,
        lasts_seconds=job.time_limit_seconds,
        nodes=job.nodes,
        costs=quoted.costs.get(job.id, ()),
        hold=hold,
    )


def eligible() -> QuerySet[Job]:
    """Return queued jobs that wait for nothing but admission."""
    now = timezone.now()
    return Job.objects.filter(
        ~Exists(Dependency.objects.filter(job=OuterRef("pk")).exclude(upstream__status=JobStatus.SUCCEEDED.value)),
        Q(act_after__isnull=True) | Q(act_after__lte=now),
        Q(not_before__isnull=True) | Q(not_before__lte=now),
        status=JobStatus.QUEUED.value,
        desired=Desired.RUN.value,
    )


def _first_of_queues(max_jobs: int) -> tuple[list[Job], dict[str, int], dict[str, int | None]]:
    queues = eligible().values("team", "pool", "priority").annotate(jobs=Count("pk")).order_by()
    lengths: dict[str, int] = defaultdict(int)
    for queue in queues:
        lengths[queue["pool"]] += queue["jobs"]
    jobs = eligible().order_by("-priority", "id")
    if sum(lengths.values()) > max_jobs:
        of_each = max(MIN_JOBS_PER_QUEUE, max_jobs // len(queues))
        place = Window(RowNumber(), partition_by=["team_id", "pool_id", "priority"], order_by="id")
        jobs = jobs.annotate(place=place).filter(place__lte=of_each)
    reported = Cast(KeyTextTransform("position", "waiting"), IntegerField())
    rows = list(jobs.annotate(reported_position=reported).only(*COLUMNS))
    for pool_id, here in Counter(row.pool_id for row in rows).items():
        lengths[pool_id] = max(lengths[pool_id], here)  # some were submitted since they were counted
    return [*rows], lengths, {row.id: row.reported_position for row in rows}


def _holds(jobs: Sequence[Job], pools: Sequence[Pool], now: datetime) -> dict[str, pure.Hold]:
    """Return the holds of jobs whose schedule does not allow a start now."""
    windows, found = ScheduleWindows(pools, now), {}
    for job in jobs:
        if job.schedule and (closed := windows.waiting_reason(job)):
            opens = windows.opens_at(job)
            known = f" It is expected to be allowed to start at {opens:%Y-%m-%d %H:%M} UTC." if opens else ""
            found[job.id] = pure.Hold(closed[0], closed[1] + known)
    return found


def _holdings(leaves: Mapping[str, str], now: datetime) -> tuple[pure.Holding, ...]:
    live = {
        attempt["job_id"]: attempt
        for attempt in Attempt.objects.filter(status__in=[status.value for status in ATTEMPT_LIVE]).values(
            "job_id", "launched_at", "phase", "expected_start_at"
        )
    }
    jobs = Job.objects.filter(status__in=[status.value for status in HOLDING]).order_by("id")
    rows = list(
        jobs.values_list(
            "id", "team_id", "pool_id", "slots", "priority", "status", "admitted_at", "time_limit_seconds",
            "preemptions", "desired",
        )
    )  # fmt: skip
    saved = _saved([row[0] for row in rows if row[5] == JobStatus.RUNNING.value])
    found = []
    for job_id, team_id, pool_id, slots, priority, status, admitted_at, limit, preemptions, desired in rows:
        attempt = live.get(job_id)
        began = attempt["launched_at"] if attempt else None
        ran = _seconds(now - began) if began else 0
        leaving = status in LEAVING or desired != Desired.RUN.value
        # The end is unknown for a job that waits in its cluster's own queue, and for one beyond its time limit.
        queued_there = attempt is not None and attempt["phase"] == Phase.PENDING.value
        left = None if queued_there or ran > limit else limit - ran
        found.append(
            pure.Holding(
                job_id=job_id,
                node=leaves[team_id],
                pool=pool_id,
                slots=slots,
                priority=priority,
                ran_seconds=_seconds(now - admitted_at) if admitted_at else ran,
                ends_in_seconds=0 if leaving else left,
                unsaved_seconds=min(ran, _seconds(now - saved[job_id])) if job_id in saved else ran,
                leaving=leaving,
                stoppable=JobStatus(status) in STOPPABLE_AT_CHECKPOINT,
                preemptions=preemptions,
            )
        )
    return tuple(found)


def _saved(job_ids: Sequence[str]) -> dict[str, datetime]:
    checkpoints = Checkpoint.objects.filter(job_id__in=job_ids, retired_at__isnull=True)
    return dict(checkpoints.values("job_id").annotate(at=Max("created_at")).values_list("job_id", "at"))


def _pools(pools: Sequence[Pool]) -> list[pure.Pool]:
    lost = _slots_out_of_service(pools)
    return [
        pure.Pool(
            id=pool.id,
            name=str(pool),
            accelerator=pool.accelerator,
            slots=max(pool.slots - lost.get(pool.id, 0), 0),
            size=pool.slots,
            enabled=pool.cluster.enabled,
            note=f"{lost[pool.id]} slots are on nodes that are out of service." if lost.get(pool.id) else "",
            spare=pool.spare_slots,
        )
        for pool in pools
    ]


def _slots_out_of_service(pools: Sequence[Pool]) -> dict[str, int]:
    """Return, by pool, the slots of nodes that are down, drained or quarantined.

    A node without groups counts for every pool of its cluster with its accelerator.
    """
    off = Node.objects.filter(
        Q(quarantined_at__isnull=False) | ~Q(state__in=[NodeState.READY.value, NodeState.UNKNOWN.value]), listed=True
    ).values("cluster_id", "pools", "accelerator")
    lost: dict[str, int] = defaultdict(int)
    for node in off:
        for pool in pools:
            here = node["cluster_id"] == pool.cluster_id and node["accelerator"] in (pool.accelerator, "")
            if here and (not node["pools"] or pool.name in node["pools"]):
                lost[pool.id] += pool.slots_per_node
    return lost


def leaves() -> dict[str, str]:
    """Return quota leaves by team, and create the leaf of a team that has none."""
    for team in Team.objects.filter(quota_node__isnull=True, deleted_at=None):
        quotas.leaf_of(team)
    return dict(QuotaNode.objects.filter(team__isnull=False).values_list("team_id", "id"))


def _nodes(leaf_of: Mapping[str, str], half_life_seconds: int, now: datetime) -> tuple[CapacityNode, ...]:
    recent: dict[str, dict[str, float]] = defaultdict(dict)
    for (team_id, accelerator), slots in usage.recent(half_life_seconds, now).items():
        recent[leaf_of[team_id]][accelerator] = slots
    grants: dict[str, dict[str, CapacityGrant]] = defaultdict(dict)
    for grant in QuotaGrant.objects.order_by("id"):
        grants[grant.node_id][grant.accelerator] = CapacityGrant(grant.nominal, grant.borrow_limit, grant.lend_limit)
    return tuple(
        CapacityNode(
            id=node.id,
            name=node.name if node.parent_id else "the organisation",
            parent=node.parent_id,
            weight=node.weight,
            grants=grants.get(node.id, {}),
            max_running_jobs=node.max_running_jobs,
            max_slots=node.max_slots,
            recent=recent.get(node.id, {}),
        )
        for node in QuotaNode.objects.order_by("id")
    )


def _settings(row: AdmissionSettings) -> pure.Settings:
    return pure.Settings(
        fair_share=row.fair_share,
        half_life_seconds=row.half_life_seconds,
        age_step_seconds=row.age_step_seconds,
        backfill=row.backfill,
        preempt=row.preempt,
        protected_seconds=row.protected_seconds,
    )


def _seconds(span: Any) -> int:
    return max(int(span.total_seconds()), 0)
