"""Release a job's reservations when it stops holding slots: its usage is charged, the rest released."""

from typing import Any

from django.dispatch import receiver

from athanor.budgets import meter
from athanor.jobs.models import Job
from athanor.jobs.signals import moved
from athanor.jobs.states import HOLDING, JobStatus


@receiver(moved, dispatch_uid="athanor.budgets")
def release(job: Job, source: JobStatus, to: JobStatus, **_: Any) -> None:
    """Release a job's reservations when it stops holding slots."""
    if source in HOLDING and to not in HOLDING:
        meter.release(job)
