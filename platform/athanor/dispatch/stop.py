"""Jobs that are no longer wanted start to stop or pause; their attempts are asked to end, then made to."""

import logging
from datetime import timedelta
from functools import partial

from django.db import transaction
from django.db.models import Q, QuerySet
from django.db.models.functions import Now
from django.utils import timezone

from athanor.accounts.failures import run_isolated
from athanor.backends.base import BackendUnavailable, Phase
from athanor.core import leases, task_triggers
from athanor.core.leases import Lease
from athanor.core.logging import bind
from athanor.dispatch import output
from athanor.dispatch.abandon import abandon_job_of
from athanor.dispatch.services import applying_to_attempt, backend_of, handle_of
from athanor.jobs import transitions
from athanor.jobs.models import Attempt, Job
from athanor.jobs.reasons import Reason
from athanor.jobs.states import ATTEMPT_LIVE, Desired, JobStatus
from athanor.telemetry.models import Heartbeat

log = logging.getLogger(__name__)

LEASE_SECONDS = 20.0  # of one request: longer than a backend takes
BATCH = 500
CANCEL_AGAIN_AFTER = timedelta(seconds=30)
CANCELS_BEFORE_FORCE = 3
STOPPABLE = frozenset({JobStatus.DISPATCHING, JobStatus.STARTING, JobStatus.RUNNING, JobStatus.PAUSING})


def stop_due() -> None:
    """Apply requested stops and pauses, and ask clusters to end attempts that should not run."""
    _begin(Desired.STOP, JobStatus.STOPPING, Reason.STOPPED_BY_USER, STOPPABLE)
    _begin(Desired.PAUSE, JobStatus.PAUSING, Reason.PAUSED_BY_USER, frozenset({JobStatus.RUNNING}))
    stopping = Attempt.objects.filter(
        Q(cancel_sent_at__isnull=True) | Q(cancel_sent_at__lte=Now() - CANCEL_AGAIN_AFTER),
        Q(job__status__in=[JobStatus.STOPPING.value, JobStatus.PAUSING.value]) | _not_to_begin(),
        status__in=[status.value for status in ATTEMPT_LIVE],
    ).order_by("id")
    for lease in leases.claim_each(stopping, seconds=LEASE_SECONDS, limit=BATCH):
        run_isolated(
            task_triggers.DISPATCH, f"stopping attempt {lease.pk}", partial(_stop, lease), held=(Attempt, lease),
            give_up=partial(abandon_job_of, lease.pk),
        )  # fmt: skip


def _not_to_begin() -> Q:
    """To be paused while they wait in their cluster's own queue: they leave it, and their job is held in ours."""
    waits = Q(phase=Phase.PENDING.value, job__status=JobStatus.STARTING.value)
    return waits & Q(job__desired=Desired.PAUSE.value)


def to_stop() -> QuerySet[Job]:
    """Jobs whose end or pause is wanted and not under way."""
    stop = Q(desired=Desired.STOP.value, status__in=[status.value for status in STOPPABLE])
    return Job.objects.filter(stop | Q(desired=Desired.PAUSE.value, status=JobStatus.RUNNING.value))


def _begin(desired: Desired, to: JobStatus, reason: Reason, sources: frozenset[JobStatus]) -> None:
    with transaction.atomic():
        unwanted = Job.objects.select_for_update(no_key=True, skip_locked=True).filter(
            desired=desired.value, status__in=[status.value for status in sources]
        )
        for job in unwanted.order_by("id")[:BATCH]:
            transitions.move(job, to, reason=reason, actor="dispatch")


def _stop(lease: Lease) -> None:
    attempt = Attempt.objects.select_related("job__pool__cluster").get(pk=lease.pk)
    bind(job=attempt.job_id)
    force = attempt.cancels_sent >= CANCELS_BEFORE_FORCE
    try:
        backend = backend_of(attempt.job.pool.cluster)
    except ValueError as error:  # its operator must act; the job is not to blame
        log.warning("attempt %s is cancelled later, its cluster cannot be used: %s", attempt.id, error)
        return
    if attempt.phase != Phase.PENDING.value and not attempt.cancels_sent:
        _keep_output(attempt)
        if not leases.renew(Attempt, lease, seconds=LEASE_SECONDS):
            return  # it took so long that another worker continues
    try:
        backend.cancel(handle_of(attempt), force=force)
    except BackendUnavailable as error:
        log.warning("attempt %s is cancelled later: %s", attempt.id, error)
        leases.release(Attempt, lease)
        return
    with applying_to_attempt(lease) as rows:
        if rows:
            rows[1].cancel_sent_at = timezone.now()
            rows[1].cancels_sent += 1
            rows[1].save(update_fields=["cancel_sent_at", "cancels_sent"])


def _keep_output(attempt: Attempt) -> None:
    """Copy what an agent has written that never connected: a cluster may forget it with the processes that it ends."""
    if not Heartbeat.objects.filter(attempt=attempt).exists():
        output.keep_last_words(attempt)
