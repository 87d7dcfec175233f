"""The only code that assigns `status`, of jobs and of attempts. Each change carries its reason, actor and event."""

from datetime import datetime, timedelta
from typing import Any

from django.db import transaction
from django.utils import timezone

from athanor.core import wakeups
from athanor.jobs import events, signals
from athanor.jobs.models import Attempt, Job
from athanor.jobs.reasons import MEANINGS, Reason
from athanor.jobs.states import (
    ALLOWED,
    ATTEMPT_ALLOWED,
    FINAL,
    STOPPABLE_AT_CHECKPOINT,
    AttemptStatus,
    Desired,
    JobStatus,
)

HINTS: dict[JobStatus, str] = {
    JobStatus.QUEUED: wakeups.ADMIT,
    JobStatus.ADMITTED: wakeups.DISPATCH,
    JobStatus.DISPATCHING: wakeups.DISPATCH,
    JobStatus.STARTING: wakeups.OBSERVE,
    JobStatus.PAUSING: wakeups.DISPATCH,
    JobStatus.STOPPING: wakeups.OBSERVE,
}


class IllegalTransition(AssertionError):
    """A bug: the caller did not look at the status under the row lock."""


def move(
    job: Job,
    to: JobStatus,
    *,
    reason: Reason | None = None,
    actor: str,
    detail: str = "",
    data: dict[str, Any] | None = None,
) -> None:
    """Move `job`, whose row the caller has locked in this transaction, and save it."""
    assert transaction.get_connection().in_atomic_block, "a status changes under the job's row lock"
    source = JobStatus(job.status)
    if to not in ALLOWED[source]:
        raise IllegalTransition(f"{job.id}: {source} -> {to} is not in the table")
    if to in FINAL:
        assert reason is not None and MEANINGS[reason].final is not None, f"{to} needs an ending reason"
    now = timezone.now()
    job.status = to.value
    job.reason = reason.value if reason else ""
    job.reason_detail = detail
    job.act_after = None
    job.expires_at = None
    if to in (JobStatus.QUEUED, JobStatus.PAUSED):
        job.queued_at = now
        job.expires_at = expiry(job, now)
    elif to is JobStatus.ADMITTED:
        job.admitted_at = now
    elif to is JobStatus.RUNNING and job.started_at is None:
        job.started_at = now
    elif to in FINAL:
        job.finished_at = now
    job.version += 1
    facts = {"from": source.value, "to": to.value, **({"reason": reason.value} if reason else {}), **(data or {})}
    events.append(job, "job.status", actor=actor, message=detail, data=facts, time=now)
    job.save()
    signals.moved.send(sender=Job, job=job, source=source, to=to)
    if to in HINTS:
        wakeups.hint_after_commit(HINTS[to])
    if to in FINAL:
        wakeups.hint_after_commit(wakeups.ADMIT)  # slots are free again


def give_back(job: Job, reason: Reason, detail: str, *, actor: str, data: dict[str, Any] | None = None) -> bool:
    """Let `job`, whose row the caller has locked, save a checkpoint, give its slots back and wait again because of
    `reason`. False when it is not so far, or is ending already."""
    assert MEANINGS[reason].final is None
    if JobStatus(job.status) not in STOPPABLE_AT_CHECKPOINT or job.desired != Desired.RUN.value:
        return False
    if reason is Reason.RECLAIMED:
        job.preemptions += 1
    move(job, JobStatus.PAUSING, reason=reason, actor=actor, detail=detail, data=data)
    return True


def expiry(job: Job, since: datetime) -> datetime | None:
    """Until when a job that waits since then may wait."""
    limit = job.resolved_spec.get("wait_limit_seconds")  # absent in jobs from before there was one
    ends = [since + timedelta(seconds=limit)] if limit else []
    return min([*ends, *([job.deadline] if job.deadline else [])], default=None)


def move_attempt(attempt: Attempt, to: AttemptStatus, *, reason: Reason | None = None, detail: str = "") -> None:
    """Move `attempt`, whose job's row the caller has locked in this transaction, and save it."""
    assert transaction.get_connection().in_atomic_block, "a status changes under the job's row lock"
    source = AttemptStatus(attempt.status)
    if to not in ATTEMPT_ALLOWED[source]:
        raise IllegalTransition(f"{attempt.id}: {source} -> {to} is not in the table")
    now = timezone.now()
    attempt.status = to.value
    if reason:
        attempt.reason = reason.value
        attempt.reason_detail = detail
    if to is AttemptStatus.SUBMITTED:
        attempt.submitted_at = now
    elif to is AttemptStatus.RUNNING:
        attempt.started_at = now
    elif to is AttemptStatus.ENDED:
        attempt.ended_at = now
        wakeups.hint_after_commit(wakeups.FINALISE)
    attempt.save()


def set_waiting_reason(job: Job, reason: Reason, detail: str) -> None:
    """Say why a queued job waits; an event only when the reason is another one."""
    assert job.status == JobStatus.QUEUED.value and MEANINGS[reason].final is None
    changed = job.reason != reason.value
    job.reason = reason.value
    job.reason_detail = detail
    if changed:
        job.version += 1
        events.append(job, "job.waiting", actor="scheduling", message=detail, data={"reason": reason.value})
    job.save(update_fields=["reason", "reason_detail", "version", "event_seq", "updated_at"])
