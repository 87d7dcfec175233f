"""Actions of users on jobs: submit, stop, pause, resume. They write `desired`, never `status`."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from django.db import IntegrityError, transaction
from django.utils import timezone

from athanor.accounts import audit
from athanor.accounts.models import Team, User
from athanor.clusters.models import Pool
from athanor.core import task_triggers
from athanor.core.disks import require_space
from athanor.core.errors import Conflict, FieldProblem, Invalid
from athanor.jobs import events, projects, transitions
from athanor.jobs.models import DatasetUse, Dependency, IdempotencyRecord, Job, Label
from athanor.jobs.reasons import Reason
from athanor.jobs.states import FINAL, Desired, JobStatus
from athanor.specs import fit, validation
from athanor.specs.v1 import PRIORITY_VALUES, JobSpec, Schedule


@dataclass(frozen=True)
class Submission:
    """A validated and authorised request for a job, with the objects that its spec refers to."""

    user: User
    team: Team
    pool: Pool
    dataset_ids: list[str]
    written: dict[str, Any]
    spec: JobSpec
    forked_from: Job | None = None
    after: tuple[Job, ...] = ()


@dataclass(frozen=True)
class Submitted:
    """A submitted job. `replayed`: an earlier request with the same key created it."""

    job: Job
    replayed: bool


# Called with the locked row before it is changed. It raises to refuse the change, for an If-Match that does not match.
Precondition = Callable[[Job], None]
JobAction = Callable[..., Job]  # request_stop, request_pause or request_resume
AUDITED = {Desired.STOP: "job.cancel", Desired.PAUSE: "job.pause", Desired.RUN: "job.resume"}


def _accept(job: Job) -> None:
    """Accept any state: the default precondition."""


def pool_shape(pool: Pool) -> fit.PoolShape:
    """Return a pool as the checks of specs see it."""
    return fit.PoolShape(
        str(pool), pool.slots_per_node, pool.nodes, pool.memory_bytes, pool.accelerator, pool.accelerator_memory_bytes,
        pool.spare_nodes,
    )  # fmt: skip


def check_fits(spec: JobSpec, pool: Pool) -> list[FieldProblem]:
    """Return warnings. Raises Invalid if the pool rejects the job."""
    problems = tuple(validation.at_written_fields(spec, fit.rejections(spec, pool_shape(pool))))
    if problems:
        raise Invalid(
            "invalid_spec",
            f"the job does not fit pool {pool}: {problems[0].detail}",
            remedy="change the fields listed in errors, or name another cluster",
            problems=problems,
        )
    return validation.at_written_fields(spec, fit.warnings(spec, pool_shape(pool)))


def replayed(team: Team, key: str, written: Any) -> Job | None:
    """Return the job created with this key before. Raises Invalid if the key came with another body."""
    record = IdempotencyRecord.objects.select_related("job").filter(team=team, key=key).first()
    if record is None:
        return None
    if record.digest != validation.digest(written):
        raise Invalid(
            "idempotency_key_reused",
            f"Idempotency-Key {key!r} was used before with another body, for {record.job_id}",
            remedy="use a new key for a new request",
        )
    return record.job


def submit(
    submission: Submission, idempotency_key: str | None = None, check: Callable[[Submission], None] | None = None
) -> Submitted:
    """Create a queued job, or return the job that this key created from the same body before.

    `check` may refuse the submission within the transaction that creates the job. Raises Unavailable if a disk is full.
    """
    require_space()
    found_warnings = check_fits(submission.spec, submission.pool)
    try:
        with transaction.atomic():
            if check:
                check(submission)
            job = _create(submission, found_warnings)
            if idempotency_key:
                IdempotencyRecord.objects.create(
                    team=submission.team, key=idempotency_key, digest=validation.digest(submission.written), job=job
                )
            submitted = {"name": job.name, "spec_digest": job.spec_digest, **_fork(job)}
            audit.record(
                "job.submit", actor=submission.user, target=("job", job.id), team_id=job.team_id, after=submitted
            )
    except IntegrityError:
        # Another request with this key committed first; its job is the answer to both.
        existing = replayed(submission.team, idempotency_key, submission.written) if idempotency_key else None
        if existing is None:
            raise
        return Submitted(existing, replayed=True)
    return Submitted(job, replayed=False)


def request_stop(job_id: str, actor: str, precondition: Precondition = _accept) -> Job:
    """Request that a job stop. Idempotent; a final job is returned unchanged."""
    with transaction.atomic():
        job = Job.objects.select_for_update(no_key=True).get(pk=job_id)
        precondition(job)
        if JobStatus(job.status) not in FINAL:
            _want(job, Desired.STOP, "job.stop_requested", actor)
    return job


def request_pause(job_id: str, actor: str, precondition: Precondition = _accept) -> Job:
    """Request that a job save a checkpoint and release its slots. A job that has not started is held. Idempotent."""
    with transaction.atomic():
        job = Job.objects.select_for_update(no_key=True).get(pk=job_id)
        precondition(job)
        _refuse_if_ending(job, "paused")
        _want(job, Desired.PAUSE, "job.pause_requested", actor)
    return job


def request_resume(job_id: str, actor: str, precondition: Precondition = _accept) -> Job:
    """Request that a paused or held job continue. Idempotent."""
    with transaction.atomic():
        job = Job.objects.select_for_update(no_key=True).get(pk=job_id)
        precondition(job)
        _refuse_if_ending(job, "resumed")
        _want(job, Desired.RUN, "job.resume_requested", actor)
    return job


def pause_idle(job: Job, detail: str, data: dict[str, Any], *, actor: str) -> bool:
    """Pause a running job at a checkpoint because it is idle, until a user resumes it.

    The caller has locked the job's row. Return False if it is not running, or a user has requested something else.
    """
    if job.status != JobStatus.RUNNING.value or job.desired != Desired.RUN.value:
        return False
    before = {"desired": job.desired, "status": job.status}
    job.desired = Desired.PAUSE.value
    transitions.move(job, JobStatus.PAUSING, reason=Reason.IDLE, actor=actor, detail=detail, data=data)
    audit.record(
        "job.pause", actor=actor, target=("job", job.id), team_id=job.team_id, before=before,
        after={"desired": job.desired, "reason": job.reason},
    )  # fmt: skip
    return True


def _refuse_if_ending(job: Job, what: str) -> None:
    if JobStatus(job.status) in FINAL or job.desired == Desired.STOP.value:
        state = job.status if JobStatus(job.status) in FINAL else "asked to stop"
        raise Conflict("job_is_ending", f"{job.id} is {state} and cannot be {what}", remedy="fork it to run it again")


def _want(job: Job, desired: Desired, event: str, actor: str) -> None:
    """Record what the user requested, once, and trigger the task that acts on it."""
    if job.desired == desired.value:
        return
    before = job.desired
    job.desired = desired.value
    job.version += 1
    events.append(job, event, actor=actor)
    job.save()
    task_triggers.trigger_after_commit(task_triggers.ADMIT)
    task_triggers.trigger_after_commit(task_triggers.DISPATCH)
    audit.record(
        AUDITED[desired],
        actor=actor,
        target=("job", job.id),
        team_id=job.team_id,
        before={"desired": before, "status": job.status},
        after={"desired": desired.value},
    )


def draft(submission: Submission, found_warnings: Sequence[FieldProblem] = ()) -> Job:
    """Return the unsaved job that a submission would create."""
    spec = submission.spec
    resolved = spec.model_dump(mode="json")
    spec_digest = validation.digest(resolved)
    resolved["team"] = submission.team.name
    resolved["resources"]["cluster"] = submission.pool.cluster.name
    job = Job(
        team=submission.team,
        created_by=submission.user,
        name=spec.name,
        project=spec.project,
        labels=spec.labels,
        priority=PRIORITY_VALUES[spec.priority],
        spec=submission.written,
        resolved_spec=resolved,
        spec_digest=spec_digest,
        warnings=[vars(warning) for warning in found_warnings],
        pool=submission.pool,
        slots=spec.resources.slots,
        nodes=spec.resources.nodes + spec.resources.spare_nodes,
        time_limit_seconds=spec.time_limit_seconds,
        schedule=resolved["schedule"] if spec.schedule != Schedule() else None,
        dataset_id=submission.dataset_ids[0],
        more_dataset_ids=submission.dataset_ids[1:],
        forked_from=submission.forked_from,
        not_before=spec.schedule.not_before,
        deadline=spec.schedule.deadline,
        event_seq=1,
    )
    job.expires_at = transitions.expiry(job, timezone.now())
    return job


def _create(submission: Submission, found_warnings: Sequence[FieldProblem]) -> Job:
    spec, job = submission.spec, draft(submission, found_warnings)
    projects.get_or_create_for_submission(submission.team, spec.project, submission.user)
    job.save(force_insert=True)
    events.first(job, "job.submitted", actor=submission.user.username, data=_fork(job))
    Label.objects.bulk_create(Label(job=job, team=job.team, key=key, value=value) for key, value in spec.labels.items())
    prepares = spec.prepare is not None and spec.prepare.report is None
    DatasetUse.objects.bulk_create(
        DatasetUse(job=job, team=job.team, dataset_id=dataset_id, prepares=prepares)
        for part, dataset_id in zip(spec.data.parts, submission.dataset_ids, strict=True)
        if not part.source.startswith("builtin:")
    )
    Dependency.objects.bulk_create(Dependency(job=job, upstream=upstream) for upstream in submission.after)
    task_triggers.trigger_after_commit(task_triggers.ADMIT)
    return job


def _fork(job: Job) -> dict[str, str]:
    return {"forked_from": job.forked_from_id} if job.forked_from_id else {}
