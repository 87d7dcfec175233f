"""Takes a snapshot under the pools' locks, lets the policy decide, and applies what it says."""

from django.db import transaction
from django.db.models import Exists, OuterRef, Q, QuerySet
from django.db.models.functions import Now
from django.utils import timezone

from athanor.clusters.models import Pool
from athanor.jobs import transitions
from athanor.jobs.models import Dependency, Job
from athanor.jobs.reasons import MEANINGS, Reason
from athanor.jobs.states import FINAL, HOLDING, Desired, JobStatus
from athanor.quotas.models import QuotaNode
from athanor.scheduling import policy, snapshot
from athanor.scheduling.snapshot import Grant, Holding, Settings, Snapshot, Waiting

BATCH = 1000


def admit() -> int:
    """Admit what may start now, and say of the rest why it waits. Returns how many were admitted."""
    _settle_waiting()
    with transaction.atomic():
        # One admission at a time: whoever holds these locks sees every admission before it.
        pools = list(Pool.objects.select_for_update(no_key=True, of=("self",)).select_related("cluster").order_by("id"))
        waiting = {
            job.id: job
            for job in Job.objects.select_for_update(no_key=True, skip_locked=True, of=("self",))
            .filter(Q(act_after__isnull=True) | Q(act_after__lte=Now()))
            .filter(~Exists(_unfinished_upstream()), status=JobStatus.QUEUED.value, desired=Desired.RUN.value)
            .order_by("-priority", "id")[:BATCH]
        }
        admitted = 0
        for decision in policy.decide(_snapshot(pools, list(waiting.values()))):
            job = waiting[decision.job_id]
            if decision.reason is None:
                transitions.move(job, JobStatus.ADMITTED, actor="scheduling")
                admitted += 1
            elif (job.reason, job.reason_detail) != (decision.reason.value, decision.detail):
                transitions.set_waiting_reason(job, decision.reason, decision.detail)
    return admitted


def _settle_waiting() -> None:
    """What needs no slots: jobs that wait end, are held, come back or expire as their users and limits say."""
    with transaction.atomic():
        waiting = Job.objects.select_for_update(no_key=True, skip_locked=True).filter(
            _needs_settling(), status__in=[JobStatus.QUEUED.value, JobStatus.PAUSED.value]
        )
        for job in waiting.order_by("id")[:BATCH]:
            _settle(job)


def _needs_settling() -> Q:
    """A cheap superset of the waiting jobs that `_settle` would change."""
    queued, paused = Q(status=JobStatus.QUEUED.value), Q(status=JobStatus.PAUSED.value)
    return (
        Q(desired=Desired.STOP.value)
        | (queued & Q(desired=Desired.PAUSE.value) & ~Q(reason=Reason.HELD.value))
        | (queued & Exists(Dependency.objects.filter(job=OuterRef("pk"))))
        | (paused & Q(desired=Desired.RUN.value))
        | Q(expires_at__lte=Now())
    )


def undecided() -> QuerySet[Job]:
    """Jobs that wait for a decision, and not for what a decision has named."""
    queued, paused = Q(status=JobStatus.QUEUED.value), Q(status=JobStatus.PAUSED.value)
    named = [reason.value for reason, meaning in MEANINGS.items() if meaning.final is None]
    due = Q(act_after__isnull=True) | Q(act_after__lte=Now())
    return Job.objects.filter(
        ((queued | paused) & (Q(desired=Desired.STOP.value) | Q(expires_at__lte=Now())))
        | (queued & Q(desired=Desired.PAUSE.value) & ~Q(reason=Reason.HELD.value))
        | (queued & Q(desired=Desired.RUN.value) & due & ~Q(reason__in=named))
        | (paused & Q(desired=Desired.RUN.value))
    )


def _settle(job: Job) -> None:
    paused = job.status == JobStatus.PAUSED.value
    if job.desired == Desired.STOP.value:
        transitions.move(job, JobStatus.CANCELLED, reason=Reason.STOPPED_BY_USER, actor="scheduling")
    elif job.expires_at is not None and job.expires_at <= timezone.now():
        missed = job.deadline is not None and job.deadline <= timezone.now()
        reason = Reason.DEADLINE_MISSED if missed else Reason.WAITED_TOO_LONG
        transitions.move(job, JobStatus.EXPIRED, reason=reason, actor="scheduling")
    elif paused and job.desired == Desired.RUN.value:
        transitions.move(job, JobStatus.QUEUED, actor="scheduling")
    elif not paused and job.desired == Desired.PAUSE.value:
        transitions.set_waiting_reason(job, Reason.HELD, "")
    elif not paused:
        _settle_dependencies(job)


def _settle_dependencies(job: Job) -> None:
    upstream = list(Job.objects.filter(dependents__job=job).order_by("id").values_list("id", "status"))
    lost = [job_id for job_id, status in upstream if JobStatus(status) in FINAL - {JobStatus.SUCCEEDED}]
    open_ = [job_id for job_id, status in upstream if JobStatus(status) not in FINAL]
    if lost:
        detail = f"{', '.join(lost)}."
        transitions.move(job, JobStatus.FAILED, reason=Reason.DEPENDENCY_FAILED, actor="scheduling", detail=detail)
    elif open_ and (job.reason, job.reason_detail) != (Reason.DEPENDENCY.value, f"{', '.join(open_)}."):
        transitions.set_waiting_reason(job, Reason.DEPENDENCY, f"{', '.join(open_)}.")


def _unfinished_upstream() -> QuerySet[Dependency]:
    return Dependency.objects.filter(job=OuterRef("pk")).exclude(upstream__status=JobStatus.SUCCEEDED.value)


def _snapshot(pools: list[Pool], waiting: list[Job]) -> Snapshot:
    running = Job.objects.filter(status__in=[status.value for status in HOLDING]).select_related("team__quota_node")
    holdings = [
        Holding(
            job.id,
            job.team.quota_node.id,
            job.pool_id,
            job.slots,
            job.priority,
            leaving=job.status in (JobStatus.PAUSING.value, JobStatus.STOPPING.value),
            stoppable=False,
            preemptions=job.preemptions,
        )
        for job in running
    ]
    leaves = dict(QuotaNode.objects.filter(team__isnull=False).values_list("team_id", "id"))
    return Snapshot(
        nodes=_nodes(),
        pools=[_pool(pool) for pool in pools],
        holdings=holdings,
        waiting=[
            Waiting(
                job.id,
                leaves[job.team_id],
                job.pool_id,
                job.slots,
                job.priority,
                nodes=job.resolved_spec.get("resources", {}).get("nodes", 1),
            )
            for job in waiting
        ],
        settings=Settings(preempt=False),
    )


def _nodes() -> list[snapshot.QuotaNode]:
    return [
        snapshot.QuotaNode(
            node.id,
            node.name,
            node.parent_id,
            node.weight,
            {
                grant.accelerator: Grant(grant.nominal, grant.borrow_limit, grant.lend_limit)
                for grant in node.grants.all()
            },
            node.max_running_jobs,
            node.max_slots,
        )
        for node in QuotaNode.objects.prefetch_related("grants").order_by("id")
    ]


def _pool(pool: Pool) -> snapshot.Pool:
    return snapshot.Pool(pool.id, pool.name, pool.accelerator, pool.slots, pool.slots, pool.cluster.enabled)
