"""Retention of checkpoints: which of a job stay stored, by its spec and by the jobs that read them."""

from datetime import timedelta
from typing import Any

from django.conf import settings
from django.db.models import F, Q
from django.dispatch import receiver
from django.utils import timezone

from athanor.artifacts import checkpoint_uses
from athanor.artifacts.models import Checkpoint
from athanor.core import task_triggers
from athanor.jobs.models import Job
from athanor.jobs.signals import moved
from athanor.jobs.states import FINAL, JobStatus
from trainer.contract.manifest import find_best
from trainer.contract.training import CheckpointPolicy

NEWEST_FIRST = (F("attempt__number").desc(), F("generation").desc(), F("step").desc())


def retire_older(job: Job) -> None:
    """Retire the checkpoints that the job's spec does not retain, and that no unfinished job reads. The caller has
    locked the job."""
    policy = CheckpointPolicy.model_validate(job.resolved_spec["checkpoint"])
    rows = Checkpoint.objects.filter(job=job, retired_at__isnull=True)
    is_intact = Q(damaged_at__isnull=True, diverged_at__isnull=True)
    # A finding of damage can be revoked as long as a deletion can (artifacts/checkpoint_states.py).
    may_be_restored = Q(damaged_at__gt=timezone.now() - timedelta(days=settings.ATHANOR.undo_days))
    intact = list(rows.filter(is_intact).order_by(*NEWEST_FIRST))
    best = find_best(intact) if policy.keep_best else None
    too_old = [row.pk for row in intact[policy.keep_last :] if row != best and not policy.is_milestone(row.step)]
    too_old += rows.exclude(is_intact).exclude(may_be_restored, diverged_at__isnull=True).values_list("pk", flat=True)
    if not too_old:
        return
    locked = list(Checkpoint.objects.select_for_update(no_key=True).filter(pk__in=too_old).order_by("pk"))
    retired = {row.pk for row in locked} - checkpoint_uses.ids_in_use(locked)
    if retired:
        Checkpoint.objects.filter(pk__in=retired).update(retired_at=timezone.now())
        task_triggers.trigger_after_commit(task_triggers.SWEEP_STORAGE)


@receiver(moved, dispatch_uid="athanor.checkpoint_retention")
def retire_released(job: Job, to: JobStatus, **_: Any) -> None:
    """Retire what a replay or an export has read, once it has ended, unless the spec of its job retains it."""
    if to not in FINAL:
        return
    source = checkpoint_uses.source_of(job.resolved_spec)
    if source is not None:
        row = Job.objects.select_for_update(no_key=True).filter(pk=source, team_id=job.team_id).first()
        if row is not None:
            retire_older(row)
