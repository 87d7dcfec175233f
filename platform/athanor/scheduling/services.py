"""Takes a snapshot under the pools' locks, lets the policy decide, and applies what it says."""

from django.db import transaction
from django.db.models import Count, Q, Sum
from django.db.models.functions import Now

from athanor.accounts.models import Team
from athanor.clusters.models import Pool
from athanor.jobs import transitions
from athanor.jobs.models import Job
from athanor.jobs.reasons import Reason
from athanor.jobs.states import HOLDING, Desired, JobStatus
from athanor.scheduling import policy

BATCH = 1000
_holding = Q(jobs__status__in=[status.value for status in HOLDING])


def admit() -> int:
    """Admit what may start now, and say of the rest why it waits. Returns how many were admitted."""
    _cancel_unwanted()
    with transaction.atomic():
        # One admission at a time: whoever holds these locks sees every admission before it.
        pools = list(Pool.objects.select_for_update(no_key=True, of=("self",)).select_related("cluster").order_by("id"))
        waiting = {
            job.id: job
            for job in Job.objects.select_for_update(no_key=True, skip_locked=True, of=("self",))
            .filter(Q(act_after__isnull=True) | Q(act_after__lte=Now()))
            .filter(status=JobStatus.QUEUED.value, desired=Desired.RUN.value)
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


def _cancel_unwanted() -> None:
    """A job that is not wanted before it holds anything ends at once."""
    with transaction.atomic():
        unwanted = Job.objects.select_for_update(no_key=True, skip_locked=True).filter(
            status=JobStatus.QUEUED.value, desired=Desired.STOP.value
        )
        for job in unwanted[:BATCH]:
            transitions.move(job, JobStatus.CANCELLED, reason=Reason.STOPPED_BY_USER, actor="scheduling")


def _snapshot(pools: list[Pool], waiting: list[Job]) -> policy.Snapshot:
    used = dict(Pool.objects.filter(_holding).annotate(used=Sum("jobs__slots")).values_list("id", "used"))
    teams = Team.objects.filter(id__in={job.team_id for job in waiting}).annotate(
        running=Count("jobs", filter=_holding), slots=Sum("jobs__slots", filter=_holding, default=0)
    )
    return policy.Snapshot(
        pools=[policy.PoolState(p.id, p.slots, used.get(p.id) or 0, p.cluster.enabled) for p in pools],
        teams=[policy.TeamState(t.id, t.running, t.slots, t.max_running_jobs, t.max_slots) for t in teams],
        waiting=[policy.Waiting(job.id, job.team_id, job.pool_id, job.slots, job.priority) for job in waiting],
    )
