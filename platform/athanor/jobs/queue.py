"""Which jobs wait for which pool, in the order in which admission last considered them."""

from dataclasses import dataclass

from django.db.models import Count, F, QuerySet, Sum

from athanor.accounts.selectors import Principal
from athanor.clusters.models import Pool
from athanor.core import tenancy
from athanor.jobs.models import Job
from athanor.jobs.states import HOLDING, JobStatus


@dataclass(frozen=True)
class Queue:
    """Of a pool. `jobs`: those whom the reader sees, at most as many as were asked for; sums are of all jobs."""

    pool: Pool
    slots_used: int
    waiting_jobs: int
    waiting_slots: int
    waiting_teams: int
    jobs: list[Job]


def queues(principal: Principal, *, whole: bool, max_jobs: int, pool: str = "") -> list[Queue]:
    """Of every pool that has jobs or could: by cluster and name. `whole`: with the jobs of all teams."""
    rows = Pool.objects.select_related("cluster").order_by("cluster__name", "name")
    pools = [row for row in rows if pool in ("", str(row), row.cluster.name)]
    waiting = Job.objects.filter(status=JobStatus.QUEUED.value, pool__in=pools)
    with tenancy.unrestricted():  # sums over all teams, which name none
        held = Job.objects.filter(pool__in=pools, status__in=[status.value for status in HOLDING])
        used = dict(held.values_list("pool_id").order_by().annotate(slots=Sum("slots")))
        sums = waiting.values_list("pool_id").order_by()
        counted = {
            pool_id: (jobs, slots, teams)
            for pool_id, jobs, slots, teams in sums.annotate(
                jobs=Count("id"), slots=Sum("slots"), teams=Count("team", distinct=True)
            )
        }
        seen = waiting if whole else waiting.filter(team_id__in=principal.team_ids)
        jobs = {row.id: list(_ordered(seen.filter(pool=row))[:max_jobs]) for row in pools if row.id in counted}
    return [
        Queue(row, used.get(row.id, 0), *counted.get(row.id, (0, 0, 0)), jobs.get(row.id, []))
        for row in pools
        if row.cluster.enabled or row.id in counted
    ]


def _ordered(jobs: QuerySet[Job]) -> QuerySet[Job]:
    """Those that no decision has placed yet are last."""
    place = F("waiting__position").asc(nulls_last=True)
    return jobs.select_related("team").order_by(place, "-priority", "id")
