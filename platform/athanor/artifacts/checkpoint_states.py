"""The states of checkpoints that agents, the scrub and administrators set: damaged, intact again, retired.

Nothing resumes from a damaged checkpoint. Retention leaves it in the store for ATHANOR_UNDO_DAYS, so that an
administrator can revoke a wrong finding, or restore the objects from a backup; a resume verifies every part anyway.
"""

from typing import Any

from django.db import transaction
from django.utils import timezone

from athanor.accounts import audit
from athanor.accounts.models import User
from athanor.artifacts import checkpoint_uses, manifests, services
from athanor.artifacts.models import Checkpoint
from athanor.core import task_triggers
from athanor.core.errors import Conflict, NotFound
from athanor.jobs import events
from athanor.jobs.models import Attempt, Job
from athanor.jobs.states import FINAL, JobStatus
from trainer.contract.manifest import CheckpointManifest
from trainer.contract.run import DamagedCheckpoint

MAX_NAMED_JOBS = 20
NONE_LEFT = (
    "No intact checkpoint of the job is left. If it runs, the next one that it saves is intact. If it starts before "
    "that, it fails: pause it, restore the objects from a backup of the object store, mark the checkpoint as intact "
    "and resume the job; or fork it to train from the first step."
)
ENDED = "The job has ended, and nothing resumes from its checkpoints. Fork it to train from the first step."


def report_damaged(attempt: Attempt, damaged: DamagedCheckpoint) -> None:
    """Mark a checkpoint of the attempt's job that its agent cannot read. Idempotent.

    Raise NotFound if the job has no such checkpoint.
    """
    with transaction.atomic():
        job = Job.objects.select_for_update(no_key=True).get(pk=attempt.job_id)
        where = {"attempt_id": damaged.attempt_id, "generation": damaged.generation, "step": damaged.step}
        row = Checkpoint.objects.filter(job=job, **where).first()
        if row is None:
            raise NotFound("checkpoint", f"step {damaged.step} of {damaged.attempt_id}")
        set_damaged(job, row, damaged.because, actor=attempt.id)


def mark_damaged(row: Checkpoint, reason: str, user: User) -> Checkpoint:
    """Mark a checkpoint as damaged: nothing resumes from it. Idempotent.

    Raise Conflict for one that is not stored any more.
    """
    with transaction.atomic():
        job, row = _locked(row)
        _check_stored(row)
        if set_damaged(job, row, reason, actor=user.username):
            _record("checkpoint.mark_damaged", row, user, {"reason": reason})
    return row


def mark_intact(row: Checkpoint, reason: str, user: User) -> Checkpoint:
    """Revoke the finding that a checkpoint is damaged: resumes use it again. Idempotent.

    Raise Conflict for one that is not stored any more, that its run has left because the loss diverged, that is not
    authentic, or of which a part is missing or has another size; Unavailable if the object store does not answer.
    """
    _check_stored(row)
    _check_parts(manifests.of_checkpoint(row))
    with transaction.atomic():
        job, row = _locked(row)
        _check_stored(row)
        if row.diverged_at is not None:
            raise Conflict(
                "checkpoint_diverged",
                f"{_name(row)} is not used because its run went back to an earlier one when the loss diverged",
                remedy="leave it to retention, or retire it; the run has later checkpoints",
            )
        if row.damaged_at is not None:
            before = {"reason": row.damage}
            row.damaged_at, row.damage = None, ""
            # The scrub begins again: what it has read of it, or reads now, is from before.
            row.verified_at, row.verified_parts, row.lease_token = None, 0, None
            row.save(update_fields=["damaged_at", "damage", "verified_at", "verified_parts", "lease_token"])
            facts = {"checkpoint": row.id, "step": row.step, "because": reason}
            events.append(job, "checkpoint.intact", actor=user.username, data=facts)
            job.save(update_fields=["event_seq", "updated_at"])
            _record("checkpoint.mark_intact", row, user, {"reason": reason}, before)
    return row


def retire(row: Checkpoint, reason: str, user: User) -> Checkpoint:
    """Give a checkpoint up: its objects are deleted by the next sweep, which cannot be undone. Idempotent.

    Raise Conflict for one that is deleted, or that its unfinished job needs.
    """
    with transaction.atomic():
        job, row = _locked(row)
        _check_not_deleted(row)
        if row.retired_at is None:
            _check_unneeded(job, row)
            row.retired_at = timezone.now()
            row.save(update_fields=["retired_at"])
            facts = {"checkpoint": row.id, "step": row.step, "because": reason}
            events.append(job, "checkpoint.retired", actor=user.username, data=facts)
            job.save(update_fields=["event_seq", "updated_at"])
            _record("checkpoint.retire", row, user, {"reason": reason})
            task_triggers.trigger_after_commit(task_triggers.SWEEP_STORAGE)
    return row


def notice_of(row: Checkpoint) -> str:
    """Return what the job of a checkpoint does next with the states that its checkpoints have now, for people."""
    if JobStatus(row.job.status) in FINAL:
        return ENDED
    newest = services.newest_checkpoint_row(row.job)
    if newest is None:
        return NONE_LEFT
    return f"The next start of the job resumes from the checkpoint of step {newest.step}."


def set_damaged(job: Job, row: Checkpoint, because: str, *, actor: str) -> bool:
    """Mark a checkpoint as damaged, under its job's lock. Return False if it is already."""
    if row.damaged_at is not None:
        return False
    row.damaged_at, row.damage = timezone.now(), because
    row.save(update_fields=["damaged_at", "damage"])
    facts = {"checkpoint": row.id, "step": row.step, "because": because}
    events.append(job, "checkpoint.damaged", actor=actor, data=facts)
    job.save(update_fields=["event_seq", "updated_at"])
    return True


def _locked(row: Checkpoint) -> tuple[Job, Checkpoint]:
    job = Job.objects.select_for_update(no_key=True).get(pk=row.job_id)
    return job, Checkpoint.objects.select_for_update(no_key=True, of=("self",)).select_related("job").get(pk=row.pk)


def _record(
    action: str, row: Checkpoint, user: User, after: dict[str, Any], before: dict[str, Any] | None = None
) -> None:
    facts = {"job": row.job_id, "step": row.step, **after}
    target = ("checkpoint", row.id)
    audit.record(action, actor=user, target=target, team_id=row.job.team_id, before=before, after=facts)


def _name(row: Checkpoint) -> str:
    return f"{row.id} of step {row.step}"


def _check_not_deleted(row: Checkpoint) -> None:
    if row.deletion_id is not None:
        raise Conflict(
            "checkpoint_deleted",
            f"{_name(row)} is deleted by {row.deletion_id}",
            remedy=f"undo it first, if its window has not ended: `athanor trash restore {row.deletion_id}`",
        )


def _check_stored(row: Checkpoint) -> None:
    _check_not_deleted(row)
    if row.retired_at is not None:
        raise Conflict(
            "checkpoint_retired",
            f"{_name(row)} was retired at {row.retired_at.isoformat()}; its objects are deleted",
            remedy=f"choose one that is stored: `athanor checkpoint list {row.job_id}`",
        )


def _check_parts(manifest: CheckpointManifest) -> None:
    """Raise Conflict unless every part is in the store with its size."""
    wrong = services.find_wrong_part([part for file in manifest.files for part in file.parts])
    if wrong is not None:
        part, state = wrong
        raise Conflict(
            "checkpoint_incomplete",
            f"{part.key} {state}; the manifest says {part.size}",
            remedy="restore the object from a backup or an earlier version, then repeat the request",
        )


def _check_unneeded(job: Job, row: Checkpoint) -> None:
    """Raise Conflict if an unfinished job resumes from a checkpoint, exports it, replays it, or would begin again
    without it."""
    readers = checkpoint_uses.readers_of_checkpoints([row])
    if readers:
        names = ", ".join(f"{reader.name} ({reader.id}, {reader.status})" for reader in readers[:MAX_NAMED_JOBS])
        raise Conflict(
            "checkpoint_needed",
            f"{_name(row)} is read by {names}",
            remedy="wait until they have ended, or cancel them, then retire it",
        )
    if JobStatus(job.status) in FINAL:
        return
    newest, best = services.newest_checkpoint_row(job), services.best_checkpoint_row(job)
    if newest is None:
        raise Conflict(
            "checkpoint_needed",
            f"{_name(row)} cannot be retired: {job.name} ({job.id}, {job.status}) has no intact checkpoint, and would "
            "train again from the first step",
            remedy="cancel the job first; fork it to train from the first step",
        )
    if row.pk == newest.pk:
        raise Conflict(
            "checkpoint_needed",
            f"{_name(row)} is what {job.name} ({job.id}, {job.status}) resumes from",
            remedy="wait for a newer checkpoint, or cancel the job; mark it as damaged if nothing may resume from it",
        )
    if best is not None and row.pk == best.pk:
        raise Conflict(
            "checkpoint_needed",
            f"{_name(row)} has the lowest held-out loss of {job.name} ({job.id}, {job.status}), which exports it at "
            "its end (`checkpoint.keep_best`)",
            remedy="wait until the job has ended, or cancel it; mark it as damaged if it must not be exported",
        )
