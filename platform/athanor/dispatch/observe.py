"""The only writer of observed state: asks each backend about its live attempts, and applies the answers."""

import logging
from collections.abc import Mapping
from datetime import timedelta
from itertools import groupby

from django.utils import timezone

from athanor.backends.base import BackendUnavailable, Handle, Observation, Presence
from athanor.core import leases
from athanor.core.leases import Lease
from athanor.dispatch.services import applying_to_attempt, backend_of
from athanor.jobs import transitions
from athanor.jobs.models import Attempt, Job
from athanor.jobs.reasons import Reason
from athanor.jobs.states import ATTEMPT_LIVE, AttemptStatus, Desired, Health, JobStatus
from athanor.telemetry import selectors as telemetry

log = logging.getLogger(__name__)

LEASE_SECONDS = 60.0
BATCH = 500
ABSENCES_TO_BELIEVE = 2
# When a backend denies all of several attempts at once, it has more likely lost its memory than its jobs.
ABSENCES_TO_BELIEVE_OF_ALL = 10
SILENT_AFTER_SECONDS = 60.0
STARTUP_LIMIT = timedelta(minutes=30)
CANCEL_AGAIN_AFTER = timedelta(seconds=30)
CANCELS_BEFORE_FORCE = 3
STOPPABLE = frozenset({JobStatus.DISPATCHING, JobStatus.STARTING, JobStatus.RUNNING, JobStatus.PAUSING})


def observe_due() -> None:
    live = (
        Attempt.objects.filter(status__in=[status.value for status in ATTEMPT_LIVE])
        .exclude(status=AttemptStatus.PREPARED.value, job__status=JobStatus.DISPATCHING.value)
        .order_by("observed_at")
    )
    held = {lease.pk: lease for lease in leases.claim(live, seconds=LEASE_SECONDS, limit=BATCH)}
    attempts = (
        Attempt.objects.filter(pk__in=held).select_related("job__pool__cluster").order_by("job__pool__cluster_id")
    )
    for _, of_cluster in groupby(attempts, key=lambda attempt: attempt.job.pool.cluster_id):
        with leases.isolated("observing a cluster"):
            _observe_cluster(list(of_cluster), held)


def stop_due() -> None:
    """Jobs that are no longer wanted start to stop or pause; their attempts are asked to end, then made to."""
    _begin(Desired.STOP, JobStatus.STOPPING, Reason.STOPPED_BY_USER, STOPPABLE)
    _begin(Desired.PAUSE, JobStatus.PAUSING, Reason.PAUSED_BY_USER, frozenset({JobStatus.RUNNING}))
    stopping = Attempt.objects.filter(
        status__in=[status.value for status in ATTEMPT_LIVE],
        job__status__in=[JobStatus.STOPPING.value, JobStatus.PAUSING.value],
    )
    for lease in leases.claim(stopping, seconds=LEASE_SECONDS, limit=BATCH):
        with leases.isolated(f"stopping attempt {lease.pk}"):
            _stop(lease)


def _stop(lease: Lease) -> None:
    attempt = Attempt.objects.select_related("job__pool__cluster").get(pk=lease.pk)
    now = timezone.now()
    if attempt.cancel_sent_at and now - attempt.cancel_sent_at < CANCEL_AGAIN_AFTER:
        leases.release(Attempt, lease)
        return
    force = attempt.cancels_sent >= CANCELS_BEFORE_FORCE
    try:
        backend_of(attempt.job.pool.cluster).cancel(_handle(attempt), force=force)
    except BackendUnavailable as error:
        log.warning("attempt %s is cancelled later: %s", attempt.id, error)
        leases.release(Attempt, lease)
        return
    with applying_to_attempt(lease) as rows:
        if rows:
            rows[1].cancel_sent_at = now
            rows[1].cancels_sent += 1
            rows[1].save(update_fields=["cancel_sent_at", "cancels_sent"])


def _begin(desired: Desired, to: JobStatus, reason: Reason, sources: frozenset[JobStatus]) -> None:
    unwanted = Job.objects.filter(desired=desired.value, status__in=[status.value for status in sources])
    for lease in leases.claim(unwanted, seconds=LEASE_SECONDS, limit=BATCH):
        with leases.applying(Job, lease) as job:
            if job is not None and job.desired == desired.value and JobStatus(job.status) in sources:
                transitions.move(job, to, reason=reason, actor="dispatch")


def _observe_cluster(attempts: list[Attempt], held: Mapping[str, Lease]) -> None:
    handles = {attempt.pk: _handle(attempt) for attempt in attempts}
    try:
        answers = backend_of(attempts[0].job.pool.cluster).observe(list(handles.values()))
    except BackendUnavailable as error:
        log.warning("cluster %s is observed later: %s", attempts[0].job.pool.cluster, error)
        answers = {handle: Observation(Presence.UNKNOWN, native_reason=str(error)) for handle in handles.values()}
    all_denied = len(attempts) > 1 and all(answer.presence is Presence.ABSENT for answer in answers.values())
    needed = ABSENCES_TO_BELIEVE_OF_ALL if all_denied else ABSENCES_TO_BELIEVE
    for attempt in attempts:
        with leases.isolated(f"observing attempt {attempt.pk}"), applying_to_attempt(held[attempt.pk]) as rows:
            if rows is not None:
                _apply(*rows, answers[handles[attempt.pk]], needed)


def _apply(job: Job, attempt: Attempt, seen: Observation, absences_needed: int) -> None:
    attempt.observed_at = timezone.now()
    if seen.presence is Presence.UNKNOWN:
        attempt.save(update_fields=["observed_at"])
        return
    if seen.native_state:
        attempt.native_state, attempt.native_reason = seen.native_state, seen.native_reason
    if seen.presence is Presence.ABSENT:
        attempt.absent_count += 1
        if attempt.absent_count >= absences_needed:
            transitions.move_attempt(attempt, AttemptStatus.ENDED)
    elif seen.presence is Presence.FINISHED:
        attempt.exit_status = seen.exit_status
        transitions.move_attempt(attempt, AttemptStatus.ENDED)
    else:
        attempt.absent_count = 0
        _apply_present(job, attempt)
    attempt.save()


def _apply_present(job: Job, attempt: Attempt) -> None:
    if attempt.status == AttemptStatus.PREPARED.value:  # submitted by a worker that was killed before it could say so
        transitions.move_attempt(attempt, AttemptStatus.SUBMITTED)
    if attempt.status == AttemptStatus.SUBMITTED.value and telemetry.has_trained(attempt):
        transitions.move_attempt(attempt, AttemptStatus.RUNNING)
    if job.status == JobStatus.STARTING.value and attempt.status == AttemptStatus.RUNNING.value:
        transitions.move(job, JobStatus.RUNNING, actor="dispatch", data={"attempt": attempt.id})
    health = Health.UNKNOWN if telemetry.is_silent(attempt, SILENT_AFTER_SECONDS) else Health.OK
    if job.health != health.value:
        job.health = health.value
        job.save(update_fields=["health", "updated_at"])
    overdue = _overdue(job, attempt)
    if overdue is not None and job.status in (JobStatus.STARTING.value, JobStatus.RUNNING.value):
        reason, limit = overdue
        detail = f"{int(limit.total_seconds())} seconds."
        transitions.move(job, JobStatus.STOPPING, reason=reason, actor="dispatch", detail=detail)


def _overdue(job: Job, attempt: Attempt) -> tuple[Reason, timedelta] | None:
    """Which limit the attempt has passed, if any."""
    taken = timezone.now() - (attempt.submitted_at or attempt.created_at)
    limit = timedelta(seconds=job.resolved_spec["time_limit_seconds"])
    if taken > limit:
        return Reason.DEADLINE, limit
    if attempt.status != AttemptStatus.RUNNING.value and taken > STARTUP_LIMIT:
        return Reason.STARTUP_TIMEOUT, STARTUP_LIMIT
    return None


def _handle(attempt: Attempt) -> Handle:
    return Handle(attempt.backend_name, attempt.backend_id)
