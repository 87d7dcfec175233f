"""Appends to a job's event log. The caller holds the job's row lock, which makes `seq` gapless and in commit order."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from django.db import transaction
from django.utils import timezone

from athanor.core.logging import bound_id
from athanor.jobs.models import Job, JobEvent


def append(
    job: Job,
    type_: str,
    *,
    actor: str,
    message: str = "",
    data: dict[str, Any] | None = None,
    time: datetime | None = None,
) -> JobEvent:
    """One more event. Counts `job.event_seq` up on the instance; the caller saves the job."""
    job.event_seq += 1
    return first(job, type_, actor=actor, message=message, data=data, time=time)


def append_same(
    jobs: Sequence[Job],
    type_: str,
    *,
    actor: str,
    data: dict[str, Any],
    time: datetime,
    messages: Sequence[str] | None = None,
) -> None:
    """Create the event `job.event_seq` of each of many jobs; the caller has incremented and saves the number."""
    assert transaction.get_connection().in_atomic_block, "events are written under the job's row lock"
    JobEvent.objects.bulk_create(
        JobEvent(
            job=job,
            team_id=job.team_id,
            seq=job.event_seq,
            type=type_,
            time=time,
            actor=actor,
            message=message,
            data=data,
            request_id=bound_id("request"),
        )
        for job, message in zip(jobs, messages or [""] * len(jobs), strict=True)
    )


def first(
    job: Job,
    type_: str,
    *,
    actor: str,
    message: str = "",
    data: dict[str, Any] | None = None,
    time: datetime | None = None,
) -> JobEvent:
    """Create the first event of a job that was inserted with `event_seq` 1."""
    assert transaction.get_connection().in_atomic_block, "events are written under the job's row lock"
    return JobEvent.objects.create(
        job=job,
        team_id=job.team_id,
        seq=job.event_seq,
        type=type_,
        time=time or timezone.now(),
        actor=actor,
        message=message,
        data=data or {},
        request_id=bound_id("request"),
    )
