"""The only code that assigns `status`, of jobs and of attempts. Each change carries its reason, actor and event."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db import connection, transaction
from django.db.models import F
from django.utils import timezone

from athanor.core import task_triggers
from athanor.jobs import events, signals, traces
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
    JobStatus.QUEUED: task_triggers.ADMIT,
    JobStatus.ADMITTED: task_triggers.DISPATCH,
    JobStatus.DISPATCHING: task_triggers.DISPATCH,
    JobStatus.STARTING: task_triggers.OBSERVE,
    JobStatus.PAUSING: task_triggers.DISPATCH,
    JobStatus.STOPPING: task_triggers.OBSERVE,
}


class IllegalTransition(AssertionError):
    """A bug: the caller did not check the status under the row lock."""


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
    now = timezone.now()
    source = JobStatus(job.status)
    _assign(job, _changes(job, to, reason, detail, now))
    job.version += 1
    facts = {"from": source.value, "to": to.value, **({"reason": reason.value} if reason else {}), **(data or {})}
    events.append(job, "job.status", actor=actor, message=detail, data=facts, time=now)
    job.save()
    _announce([(job, source)], to)


def _changes(job: Job, to: JobStatus, reason: Reason | None, detail: str, now: datetime) -> dict[str, Any]:
    """Return the fields that change when `job` moves to `to`. Raises IllegalTransition for a move that is not in the
    table."""
    assert transaction.get_connection().in_atomic_block, "a status changes under the job's row lock"
    source = JobStatus(job.status)
    if to not in ALLOWED[source]:
        raise IllegalTransition(f"{job.id}: {source} -> {to} is not in the table")
    if to in FINAL:
        assert reason is not None and MEANINGS[reason].final is not None, f"{to} needs an ending reason"
    changes: dict[str, Any] = {
        "status": to.value, "reason": reason.value if reason else "", "reason_detail": detail, "waiting": None,
        "act_after": None, "expires_at": None,
    }  # fmt: skip
    if to in (JobStatus.QUEUED, JobStatus.PAUSED):
        changes |= {"queued_at": now, "expires_at": expiry(job, now)}
    elif to is JobStatus.ADMITTED:
        changes["admitted_at"] = now
    elif to is JobStatus.RUNNING and job.started_at is None:
        changes["started_at"] = now
    elif to in FINAL:
        changes["finished_at"] = now
    return changes


def _assign(job: Job, changes: Mapping[str, Any]) -> None:
    for name, value in changes.items():
        setattr(job, name, value)


def _announce(moved: Sequence[tuple[Job, JobStatus]], to: JobStatus) -> None:
    """Send the signal of each saved job with the status it left, and trigger the tasks that follow."""
    for job, source in moved:
        signals.moved.send(sender=Job, job=job, source=source, to=to)
        if to in FINAL:
            traces.export_after_commit(job)
    if to in HINTS:
        task_triggers.trigger_after_commit(HINTS[to])
    if to in FINAL:
        task_triggers.trigger_after_commit(task_triggers.ADMIT)  # slots are free again


def preempt_at_checkpoint(
    job: Job, reason: Reason, detail: str, *, actor: str, data: dict[str, Any] | None = None
) -> bool:
    """Preempt a job because of `reason`: it saves a checkpoint, releases its slots and is queued again.

    The caller has locked the job's row. Return False if the job has not started yet or is already stopping.
    """
    assert MEANINGS[reason].final is None
    if JobStatus(job.status) not in STOPPABLE_AT_CHECKPOINT or job.desired != Desired.RUN.value:
        return False
    if reason is Reason.RECLAIMED:
        job.preemptions += 1
    move(job, JobStatus.PAUSING, reason=reason, actor=actor, detail=detail, data=data)
    return True


def expiry(job: Job, since: datetime) -> datetime | None:
    """Return until when a job queued at `since` may wait, None without a limit."""
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
        task_triggers.trigger_after_commit(task_triggers.FINALISE)
    attempt.save()


def admit_all(jobs: Sequence[Job], *, actor: str, data: dict[str, Any]) -> None:
    """Move many jobs, whose rows the caller has locked in this transaction, from QUEUED to ADMITTED: what `move` does,
    in one statement for all rows and one for all events."""
    if not jobs:
        return
    now = timezone.now()
    moved = [(job, JobStatus(job.status)) for job in jobs]
    for job in jobs:
        changes = {**_changes(job, JobStatus.ADMITTED, None, "", now), "updated_at": now}  # the same for all
        _assign(job, changes)
        job.event_seq += 1
        job.version += 1
    counted = {"version": F("version") + 1, "event_seq": F("event_seq") + 1}
    Job.objects.filter(pk__in=[job.pk for job in jobs]).update(**changes, **counted)
    facts = {"from": JobStatus.QUEUED.value, "to": JobStatus.ADMITTED.value, **data}
    events.append_same(jobs, "job.status", actor=actor, data=facts, time=now)
    _announce(moved, JobStatus.ADMITTED)


@dataclass(frozen=True)
class WaitingFor:
    """Why a queued job waits. `facts`: the content of Job.waiting (scheduling/explain.py)."""

    job_id: str
    reason: Reason
    detail: str
    facts: dict[str, Any] | None = None


def set_waiting_reasons(reasons: Sequence[WaitingFor]) -> None:
    """Set why queued jobs wait; an event only where the reason changes. Those that a user's request
    holds just now are left for the next time. The caller's transaction."""
    by_id = {each.job_id: each for each in reasons}
    rows = Job.objects.select_for_update(no_key=True, skip_locked=True).filter(
        pk__in=by_id, status=JobStatus.QUEUED.value
    )
    jobs = list(rows.only("id", "team_id", "reason", "event_seq", "version").order_by("id"))
    now = timezone.now()
    changed: dict[Reason, list[Job]] = {}
    for job in jobs:
        each = by_id[job.id]
        assert MEANINGS[each.reason].final is None
        if job.reason != each.reason.value:
            job.version += 1
            job.event_seq += 1
            changed.setdefault(each.reason, []).append(job)
        job.reason, job.reason_detail, job.waiting = each.reason.value, each.detail, each.facts
        job.updated_at = now
    for reason, those in changed.items():
        messages = [job.reason_detail for job in those]
        events.append_same(
            those, "job.waiting", actor="scheduling", data={"reason": reason.value}, time=now, messages=messages
        )
    _write_waiting(jobs)


def add_facts_of_waiting(facts: Mapping[str, Mapping[str, Any]]) -> None:
    """Add facts to Job.waiting of jobs that still wait, by id, without an event or a new version."""
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE jobs_job SET waiting = waiting || new.facts FROM jsonb_to_recordset(%s::jsonb)"
            " AS new(id text, facts jsonb) WHERE jobs_job.id = new.id AND status = %s AND waiting IS NOT NULL",
            [json.dumps([{"id": job_id, "facts": each} for job_id, each in facts.items()]), JobStatus.QUEUED.value],
        )


def _write_waiting(jobs: Sequence[Job]) -> None:
    """One statement for all: Django's bulk_update makes a CASE of every row and column."""
    if not jobs:
        return
    rows = [
        {
            "id": job.id, "reason": job.reason, "detail": job.reason_detail, "waiting": job.waiting,
            "version": job.version, "event_seq": job.event_seq,
        }
        for job in jobs
    ]  # fmt: skip
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE jobs_job SET reason = new.reason, reason_detail = new.detail, waiting = new.waiting,"
            " version = new.version, event_seq = new.event_seq, updated_at = now()"
            " FROM jsonb_to_recordset(%s::jsonb) AS new(id text, reason text, detail text, waiting jsonb, version int,"
            " event_seq int) WHERE jobs_job.id = new.id",
            [json.dumps(rows)],
        )


def set_waiting_reason(job: Job, reason: Reason, detail: str) -> None:
    """Set why a queued job waits; an event only when the reason changes. The caller has locked its row."""
    assert job.status == JobStatus.QUEUED.value
    set_waiting_reasons([WaitingFor(job.id, reason, detail)])
