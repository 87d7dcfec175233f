"""End a job whose background work failed with an unexpected error and whose retries are used up."""

from django.db import transaction

from athanor.accounts import audit
from athanor.jobs import transitions
from athanor.jobs.models import Attempt, Job
from athanor.jobs.reasons import Reason
from athanor.jobs.states import ATTEMPT_LIVE, FINAL, AttemptStatus, JobStatus

ACTOR = "dispatch"


def abandon_job(job_id: str, detail: str) -> None:
    """Fail a job with `platform_error`, end its live attempt, and record it in the audit trail.

    Its slots and budget are released as by any other end. What may still run on the cluster learns from its next
    heartbeat that its attempt is over; until then it is listed among the orphans.
    """
    with transaction.atomic():
        job = Job.objects.select_for_update(no_key=True).get(pk=job_id)
        if JobStatus(job.status) in FINAL:
            return
        attempts = Attempt.objects.select_for_update(no_key=True).filter(job=job).order_by("number")
        for attempt in attempts.filter(status__in=[status.value for status in ATTEMPT_LIVE]):
            transitions.move_attempt(attempt, AttemptStatus.ENDED, reason=Reason.PLATFORM_ERROR, detail=detail)
        attempts.filter(reason="").update(reason=Reason.PLATFORM_ERROR.value, reason_detail=detail)
        before = {"status": job.status}
        transitions.move(job, JobStatus.FAILED, reason=Reason.PLATFORM_ERROR, actor=ACTOR, detail=detail)
        after = {"status": job.status, "reason": job.reason, "detail": detail}
        audit.record(
            "job.abandon", actor=ACTOR, target=("job", job.id), team_id=job.team_id, before=before, after=after
        )


def abandon_job_of(attempt_id: str, detail: str) -> None:
    """Abandon the job of an attempt."""
    abandon_job(Attempt.objects.values_list("job_id", flat=True).get(pk=attempt_id), detail)
