"""Admitted jobs get an attempt; prepared attempts are submitted. Any worker can go on where another was killed."""

import logging
from functools import partial

from django.db import transaction
from django.db.models import QuerySet

from athanor.accounts.failures import run_isolated
from athanor.artifacts import data_policy
from athanor.backends.base import BackendRejected, BackendUnavailable, Handle, Submission
from athanor.backends.plan import backend_name
from athanor.core import ids, leases, task_triggers
from athanor.core.leases import Lease
from athanor.core.logging import bind
from athanor.dispatch import node_preflights
from athanor.dispatch.abandon import abandon_job, abandon_job_of
from athanor.dispatch.services import applying_to_attempt, backend_of, launch_plan_of, nodes_to_avoid
from athanor.jobs import transitions
from athanor.jobs.models import Attempt, Job
from athanor.jobs.reasons import Reason
from athanor.jobs.states import AttemptStatus, Desired, JobStatus

log = logging.getLogger(__name__)

LEASE_SECONDS = 20.0  # of one submission: longer than a backend takes
BATCH = 20


def to_prepare() -> QuerySet[Job]:
    """Return the admitted jobs; each gets an attempt next."""
    return Job.objects.filter(status=JobStatus.ADMITTED.value)


def to_submit() -> QuerySet[Attempt]:
    """Return the attempts that are not on their cluster yet."""
    return Attempt.objects.filter(status=AttemptStatus.PREPARED.value, job__status=JobStatus.DISPATCHING.value)


def prepare_due() -> None:
    """ADMITTED -> DISPATCHING with a new attempt, or CANCELLED when it is no longer wanted."""
    for job_id in list(to_prepare().order_by("admitted_at").values_list("id", flat=True)[:BATCH]):
        # One at a time: several in one transaction would lock their budgets in an order of its own.
        run_isolated(
            task_triggers.DISPATCH, f"preparing job {job_id}", partial(_prepare_one, job_id),
            give_up=partial(abandon_job, job_id),
        )  # fmt: skip


def _prepare_one(job_id: str) -> None:
    bind(job=job_id)
    with transaction.atomic():
        job = to_prepare().select_for_update(no_key=True, skip_locked=True).filter(pk=job_id).first()
        if job is not None:
            _prepare(job)


def _prepare(job: Job) -> None:
    if job.desired == Desired.STOP.value:
        transitions.move(job, JobStatus.CANCELLED, reason=Reason.STOPPED_BY_USER, actor="dispatch")
    elif job.desired == Desired.PAUSE.value:
        transitions.move(job, JobStatus.QUEUED, actor="dispatch")
    elif refusal := data_policy.refusal_before_start(job):
        transitions.move(job, JobStatus.FAILED, reason=Reason.DATA_ERROR, actor="dispatch", detail=refusal)
    else:
        attempt = _new_attempt(job)
        facts = {"attempt": attempt.id, "number": attempt.number}
        transitions.move(job, JobStatus.DISPATCHING, actor="dispatch", data=facts)


def submit_due() -> None:
    """Submit prepared attempts to their backends."""
    for lease in leases.claim_each(to_submit().order_by("created_at"), seconds=LEASE_SECONDS, limit=BATCH):
        run_isolated(
            task_triggers.DISPATCH, f"submitting attempt {lease.pk}", partial(_submit, lease), held=(Attempt, lease),
            give_up=partial(abandon_job_of, lease.pk),
        )  # fmt: skip


def _new_attempt(job: Job) -> Attempt:
    identifier = ids.attempt_id()
    return Attempt.objects.create(
        id=identifier,
        job=job,
        number=job.attempts.count() + 1,
        backend_name=backend_name(identifier),
    )


def _submit(lease: Lease) -> None:
    attempt = Attempt.objects.select_related("job__pool__cluster", "job__team").get(pk=lease.pk)
    job, cluster = attempt.job, attempt.job.pool.cluster
    bind(job=job.id)
    try:
        backend = backend_of(cluster)
    except ValueError as error:  # its operator must act; the job is not to blame
        log.warning("attempt %s is submitted later, its cluster cannot be used: %s", attempt.id, error)
        return
    try:
        submission = backend.render(launch_plan_of(attempt, nodes_to_avoid(job)))
    except BackendRejected as error:
        _reject(lease, "", str(error))
        return
    node_preflights.stop_all(cluster, backend)  # before the job is there, so that it finds the slots free
    try:
        handle = backend.submit(submission)
    except BackendUnavailable as error:
        log.warning("attempt %s is submitted later: %s", attempt.id, error)
        leases.release(Attempt, lease)
    except BackendRejected as error:
        _reject(lease, submission.text, str(error))
    else:
        _accept(lease, submission, handle)


def _accept(lease: Lease, submission: Submission, handle: Handle) -> None:
    with applying_to_attempt(lease) as rows:
        if rows is None:
            return
        job, attempt = rows
        attempt.backend_id = handle.backend_id
        attempt.submission_text = submission.text
        transitions.move_attempt(attempt, AttemptStatus.SUBMITTED)
        if job.status == JobStatus.DISPATCHING.value:
            transitions.move(job, JobStatus.STARTING, actor="dispatch", data={"attempt": attempt.id})


def _reject(lease: Lease, text: str, message: str) -> None:
    with applying_to_attempt(lease) as rows:
        if rows is None:
            return
        _, attempt = rows
        attempt.submission_text = text
        transitions.move_attempt(attempt, AttemptStatus.ENDED, reason=Reason.BACKEND_REJECTED, detail=message)
