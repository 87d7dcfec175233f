"""A finished job as a trace: its attempts, and what its time was spent on, from its events (core/tracing.py)."""

from functools import partial

from django.db import transaction

from athanor.core import tracing
from athanor.core.tracing import JobSpan
from athanor.jobs.models import Attempt, Job
from athanor.jobs.selectors import timeline_of
from athanor.jobs.states import JobStatus
from athanor.jobs.timeline import Span, simplified

MAX_SPANS = 1000  # short ones are merged into their neighbours


def export_after_commit(job: Job) -> None:
    """Export the trace of a job that ends in this transaction."""
    if tracing.is_on():
        transaction.on_commit(partial(export, job.id), robust=True)


def export(job_id: str) -> None:
    """Export the trace of a finished job."""
    job = Job.objects.get(id=job_id)
    assert job.finished_at is not None, f"{job_id} has not ended"
    spans = simplified(timeline_of(job), MAX_SPANS)
    ids = dict(Attempt.objects.filter(job=job).values_list("number", "id"))
    error = job.reason if job.status == JobStatus.FAILED else ""
    root = JobSpan(
        "job", job.created_at, job.finished_at, None, job.id,
        {"athanor.job_id": job.id, "athanor.team_id": job.team_id, "athanor.status": job.status,
         "athanor.reason": job.reason}, error,
    )  # fmt: skip
    attempts = [_attempt(job, number, ids[number], spans) for number in sorted(ids) if _of(number, spans)]
    activities = [_activity(job, span, ids) for span in spans]
    tracing.export_job(job.id, [root, *attempts, *activities])


def _of(number: int, spans: list[Span]) -> list[Span]:
    return [span for span in spans if span.attempt == number]


def _attempt(job: Job, number: int, attempt_id: str, spans: list[Span]) -> JobSpan:
    own = _of(number, spans)
    return JobSpan(
        f"attempt {number}", min(span.start for span in own), max(span.end for span in own), job.id, attempt_id,
        {"athanor.job_id": job.id, "athanor.attempt_id": attempt_id},
    )  # fmt: skip


def _activity(job: Job, span: Span, attempts: dict[int, str]) -> JobSpan:
    name = f"{span.activity.value}: {span.phase}" if span.phase else span.activity.value
    parent = job.id if span.attempt is None else attempts.get(span.attempt, job.id)
    return JobSpan(name, span.start, span.end, parent, attributes={"athanor.job_id": job.id})
