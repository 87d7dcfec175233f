"""Every read of jobs by the API, scoped by the teams of whoever asks."""

from datetime import datetime

from django.db.models import Prefetch, Q, QuerySet

from athanor.accounts.selectors import Principal
from athanor.core.errors import NotFound
from athanor.jobs.models import Attempt, Job, JobEvent

# In order, and with what their answers show of their job.
ATTEMPTS = Prefetch("attempts", queryset=Attempt.objects.order_by("number").select_related("job__pool__cluster"))


def plain_jobs_of(principal: Principal) -> QuerySet[Job]:
    """Without what answers show of them."""
    return Job.objects.filter(team_id__in=principal.team_ids)


def jobs_of(principal: Principal) -> QuerySet[Job]:
    return plain_jobs_of(principal).select_related("team", "created_by", "pool__cluster").prefetch_related(ATTEMPTS)


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
    """Empty values do not filter. `query` matches a part of the name, or an id."""
    if statuses:
        jobs = jobs.filter(status__in=statuses)
    if team:
        jobs = jobs.filter(Q(team__name=team) | Q(team_id=team))
    if project:
        jobs = jobs.filter(project=project)
    if query:
        jobs = jobs.filter(Q(name__icontains=query) | Q(id=query))
    for key, value in labels.items():
        jobs = jobs.filter(labels__contains={key: value})
    if created_after:
        jobs = jobs.filter(created_at__gt=created_after)
    return jobs


def events_of(job: Job, after: int, limit: int) -> list[JobEvent]:
    return list(JobEvent.objects.filter(job=job, seq__gt=after).order_by("seq")[:limit])
