"""Queries of jobs for the API, scoped by the teams of the caller."""

from datetime import datetime, timedelta

from django.db.models import Prefetch, Q, QuerySet

from athanor.accounts.models import Team
from athanor.accounts.selectors import Principal
from athanor.core import ids
from athanor.core.errors import NotFound
from athanor.jobs.models import Attempt, Job, JobEvent, Label

# In order, and with what their answers show of their job.
ATTEMPTS = Prefetch("attempts", queryset=Attempt.objects.order_by("number").select_related("job__pool__cluster"))


COUNTED_ATTEMPTS = Prefetch("attempts", queryset=Attempt.objects.only("id", "job_id"))
# Between the making of an id and of `created_at`.
LONGEST_SUBMIT = timedelta(minutes=5)


def plain_jobs_of(principal: Principal) -> QuerySet[Job]:
    """Without what answers show of them."""
    return Job.objects.filter(team_id__in=principal.team_ids)


def jobs_of(principal: Principal) -> QuerySet[Job]:
    return plain_jobs_of(principal).select_related("team", "created_by", "pool__cluster").prefetch_related(ATTEMPTS)


def summaries_of(principal: Principal) -> QuerySet[Job]:
    """With what lists show of them, and without the rest."""
    jobs = plain_jobs_of(principal).select_related("team", "created_by", "pool__cluster", "progress")
    return jobs.defer("spec").prefetch_related(COUNTED_ATTEMPTS)


def job_of(principal: Principal, job_id: str) -> Job:
    job = jobs_of(principal).filter(pk=job_id).first()
    if job is None:
        raise NotFound("job", job_id)
    return job


def filtered(
    jobs: QuerySet[Job],
    *,
    statuses: list[str],
    team: str = "",
    project: str = "",
    query: str = "",
    labels: dict[str, str],
    created_after: datetime | None = None,
) -> QuerySet[Job]:
    """Empty values do not filter. `query` matches a part of the name, or an id.

    Each filter is one that an index answers, under row security too (jobs/models.py).
    """
    if statuses:
        jobs = jobs.filter(status__in=statuses)
    if team:
        jobs = jobs.filter(
            team_id__in=list(Team.objects.filter(Q(name=team) | Q(id=team)).values_list("id", flat=True))
        )
    if project:
        jobs = jobs.filter(project=project)
    if query:
        jobs = jobs.filter(Q(name__icontains=query) | Q(id=query))
    for key, value in labels.items():
        jobs = jobs.filter(id__in=Label.objects.filter(key=key, value=value).values("job_id"))
    if created_after:
        # Ids sort by the time they were made, so the index that gives the order gives the range as well.
        earliest = ids.earliest_id("job", max(created_after, ids.EPOCH + LONGEST_SUBMIT) - LONGEST_SUBMIT)
        jobs = jobs.filter(created_at__gt=created_after, id__gte=earliest)
    return jobs


def events_of(job: Job, after: int, limit: int) -> list[JobEvent]:
    return list(JobEvent.objects.filter(job=job, seq__gt=after).order_by("seq")[:limit])
