"""Unfinished jobs that read stored checkpoints of another job: replays and exports.

Retention and deletions leave these checkpoints in the store until the jobs have ended. A submission locks the rows that
its job reads before it creates the job; what retires or deletes a checkpoint locks its row before it looks for such
jobs. So either the job is refused, or it is found.
"""

from collections.abc import Iterable
from typing import Any

from django.db.models import Q, QuerySet

from athanor.artifacts.models import Checkpoint
from athanor.core.errors import Conflict
from athanor.jobs.models import Job
from athanor.jobs.states import FINAL
from athanor.specs.v1 import JobSpec

READABLE = Q(retired_at=None, deletion=None)


def source_of(resolved: dict[str, Any]) -> str | None:
    """Return the id of the job of which the job of a resolved spec reads checkpoints; None if it reads none."""
    task = resolved.get("replay") or resolved.get("export")
    return task["job"] if task else None


def ids_read_by(resolved: dict[str, Any]) -> set[str]:
    """Return the ids of the checkpoints that the job of a resolved spec reads."""
    segments = (resolved.get("replay") or {}).get("pinned") or []
    found = {segment[name] for segment in segments for name in ("start", "end")}
    found.add((resolved.get("export") or {}).get("checkpoint"))
    return {each for each in found if each}


def checkpoints_read_by(job: Job) -> dict[str, Checkpoint]:
    """Return the checkpoints that a job replays or exports, by id; none for another job."""
    source = source_of(job.resolved_spec)
    if source is None:
        return {}
    rows = Checkpoint.objects.filter(pk__in=ids_read_by(job.resolved_spec), job=source, job__team_id=job.team_id)
    return {row.id: row for row in rows}


def readers_of(sources: Iterable[str]) -> QuerySet[Job]:
    """Return the unfinished jobs that read checkpoints of these jobs."""
    names = list(sources)
    reads = Q(resolved_spec__replay__job__in=names) | Q(resolved_spec__export__job__in=names)
    return Job.objects.filter(reads).exclude(status__in=FINAL)


def readers_of_checkpoints(rows: Iterable[Checkpoint]) -> list[Job]:
    """Return the unfinished jobs that read one of these checkpoints, newest first."""
    found = {row.pk: row.job_id for row in rows}
    if not found:
        return []
    jobs = readers_of(set(found.values())).order_by("-id")
    return [job for job in jobs if not ids_read_by(job.resolved_spec).isdisjoint(found)]


def ids_in_use(rows: Iterable[Checkpoint]) -> set[str]:
    """Return the ids of those checkpoints that unfinished jobs read."""
    found = list(rows)
    used = [ids_read_by(job.resolved_spec) for job in readers_of_checkpoints(found)]
    return {row.pk for row in found} & set().union(*used)


def lock_read_by(spec: JobSpec) -> None:
    """Lock the checkpoints that a job reads, in the transaction that creates it. Raise Conflict if one was retired or
    deleted since the spec was validated."""
    wanted = ids_read_by(spec.model_dump(mode="json", include={"replay", "export"}))
    if not wanted:
        return
    rows = Checkpoint.objects.select_for_update(no_key=True, of=("self",)).filter(READABLE, pk__in=wanted)
    gone = wanted - set(rows.order_by("pk").values_list("pk", flat=True))
    if gone:
        raise Conflict(
            "checkpoint_retired",
            f"{min(gone)} of {spec.source_job} was retired or deleted while the job was submitted",
            remedy="submit the job again: the answer names the checkpoints that are stored",
        )
