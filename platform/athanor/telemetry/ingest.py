"""Takes what agents send. Each batch is stored exactly once: its writer's row is the lock and the counter."""

import json
from typing import Any

import zstandard
from django.db import transaction
from django.utils import timezone

from athanor.core import wakeups
from athanor.core.errors import Conflict, Invalid
from athanor.jobs import events
from athanor.jobs.models import Attempt, Job
from athanor.telemetry.models import Heartbeat, LogChunk, MetricChunk, Progress, Writer
from trainer.contract.run import Batch, LogLine, MetricPoint, ProgressEvent
from trainer.contract.run import Heartbeat as HeartbeatMessage

SHOWN_IN_PROGRESS = (
    "train/loss", "evaluation/loss", "throughput/tokens_per_second", "throughput/mfu_causal", "throughput/mfu_palm",
    "train/learning_rate", "time/step_seconds",
)  # fmt: skip
EVALUATION = "evaluation/loss"


def ingest(attempt: Attempt, kind: str, batch: Batch) -> int:
    """Store a batch of `kind` (metrics, logs, progress). Returns the sequence number to come next.

    A batch that was stored before is acknowledged; one that leaves a gap is refused with Conflict.
    """
    filled = {"metrics": batch.points, "logs": batch.lines, "progress": batch.events}
    if not filled[kind] or any(items for other, items in filled.items() if other != kind):
        raise Invalid("wrong_batch", f"a batch for /{kind} carries that kind of items, and some", remedy="see Batch")
    Writer.objects.get_or_create(attempt=attempt, kind=kind, name=batch.writer)
    with transaction.atomic():
        # The job before the rest: the same order of locks as everywhere.
        job = Job.objects.select_for_update(no_key=True).get(pk=attempt.job_id) if kind == "progress" else attempt.job
        writer = Writer.objects.select_for_update(no_key=True).get(attempt=attempt, kind=kind, name=batch.writer)
        if batch.sequence < writer.next_sequence:
            return writer.next_sequence
        if batch.sequence > writer.next_sequence:
            raise Conflict(
                "sequence_gap",
                f"batch {batch.sequence} of {batch.writer} came, {writer.next_sequence} is next",
                remedy="send the batches in order, from next_sequence on",
                extra={"next_sequence": writer.next_sequence},
            )
        Progress.objects.get_or_create(job_id=attempt.job_id)
        progress = Progress.objects.select_for_update(no_key=True).get(pk=attempt.job_id)
        if kind == "metrics":
            _store_points(attempt, progress, batch.points)
        elif kind == "logs":
            _store_lines(attempt, progress, batch.lines)
        else:
            _store_events(attempt, job, progress, batch.events)
        progress.save()
        writer.next_sequence += 1
        writer.save()
    return writer.next_sequence


def heartbeat(attempt: Attempt, message: HeartbeatMessage) -> None:
    _, created = Heartbeat.objects.update_or_create(
        attempt=attempt,
        node_rank=message.node_rank,
        defaults={
            "generation": message.generation,
            "phase": message.phase[:40],
            "step": message.step,
            "processes_alive": message.processes_alive,
            "received_at": timezone.now(),
        },
    )
    Progress.objects.update_or_create(job_id=attempt.job_id, defaults={"phase": message.phase[:40]})
    if created:
        wakeups.hint_after_commit(wakeups.OBSERVE)


def compressed(items: list[Any]) -> bytes:
    return zstandard.compress(json.dumps(items, separators=(",", ":")).encode())


def decompressed(content: bytes) -> list[Any]:
    items: list[Any] = json.loads(zstandard.decompress(bytes(content)))
    return items


def _store_points(attempt: Attempt, progress: Progress, points: list[MetricPoint]) -> None:
    rows = [[point.step, point.time.timestamp(), point.values] for point in points]
    steps = [point.step for point in points]
    MetricChunk.objects.create(
        attempt=attempt,
        content=compressed(rows),
        count=len(rows),
        generation=points[0].generation,
        first_step=min(steps),
        last_step=max(steps),
    )
    first_points_of_attempt = progress.step < 0
    for point in points:
        progress.step = point.step
        progress.values |= {
            name: value for name, value in point.values.items() if name in SHOWN_IN_PROGRESS and value is not None
        }
        loss = point.values.get(EVALUATION)
        if loss is not None:
            if progress.validation_first is None:
                progress.validation_first = loss
            progress.validation_last = loss
    if first_points_of_attempt:
        wakeups.hint_after_commit(wakeups.OBSERVE)


def _store_lines(attempt: Attempt, progress: Progress, lines: list[LogLine]) -> None:
    rows = [[line.time.timestamp(), line.rank, line.stream, line.text] for line in lines]
    LogChunk.objects.create(attempt=attempt, content=compressed(rows), count=len(rows), first_line=progress.log_lines)
    progress.log_lines += len(rows)


def _store_events(attempt: Attempt, job: Job, progress: Progress, items: list[ProgressEvent]) -> None:
    for item in items:
        events.append(job, item.type, actor=attempt.id, data=item.data, time=item.time)
        _add_timing(progress.timings, item)
    job.save(update_fields=["event_seq", "updated_at"])


def _add_timing(timings: dict[str, Any], item: ProgressEvent) -> None:
    """Sums of seconds by what they were spent on; start-up phases by name."""
    seconds = item.data.get("seconds")
    if not isinstance(seconds, int | float):
        return
    if item.type == "phase.finished":
        startup = timings.setdefault("startup", {})
        startup[str(item.data.get("phase"))] = round(float(seconds), 3)
    else:
        name = item.type.partition(".")[0] + "_seconds"
        timings[name] = round(timings.get(name, 0.0) + float(seconds), 3)
