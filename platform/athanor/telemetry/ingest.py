"""Ingest of what agents send. Each batch is stored exactly once: its writer's row is the lock and the counter.

An agent runs outside the platform's control and is not trusted: only the event types of `trainer.contract.events` are
stored, and times are limited to between the attempt's creation and the present.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import isfinite
from typing import Any, TypeGuard

from django.db import connection, transaction
from django.db.models import F
from django.db.models.functions import Now

from athanor.clusters.node_score import PROVEN_CORRUPTION
from athanor.clusters.services import record_incidents, record_preflight
from athanor.core import task_triggers
from athanor.core.disks import require_space
from athanor.core.errors import Conflict, Invalid
from athanor.core.metrics import TELEMETRY_ITEMS
from athanor.jobs import events
from athanor.jobs.models import Attempt, Job
from athanor.jobs.reasons import Reason
from athanor.telemetry import codec, compaction, system
from athanor.telemetry.clock import Clock
from athanor.telemetry.models import Heartbeat, LogChunk, MetricChunk, Progress, Writer
from athanor.telemetry.preflights import read_report
from athanor.telemetry.selectors import SILENT_AFTER
from trainer.contract.events import (
    AGENT_EVENT_TYPES,
    GENERATION_STARTED,
    GPU_ECC_UNCORRECTED,
    GRADIENT_CORRUPTED,
    PREFLIGHT_COMPLETED,
    PROGRESS_STALLED,
    REPLICAS_COMPARED,
    STEPS_RESOLVED,
)
from trainer.contract.run import Batch, EndClass, LogLine, MetricPoint, ProgressEvent
from trainer.contract.run import Heartbeat as HeartbeatMessage

SHOWN_IN_PROGRESS = frozenset({
    "train/loss", "evaluation/loss", "throughput/tokens_per_second", "throughput/mfu_causal", "throughput/mfu_palm",
    "train/learning_rate", "time/step_seconds", "memory/peak_bytes", "memory/peak_rank", "memory/mean_peak_bytes",
})  # fmt: skip
EVALUATION = "evaluation/loss"
THROUGHPUT, STEP_TIME = "throughput/tokens_per_second", "time/step_seconds"
REFUSED = "agent.events_refused"
FAULTS_OF_DEVICES = {
    end_class.value: reason
    for end_class, reason in (
        (EndClass.GPU_FAULT, Reason.GPU_FAULT),
        (EndClass.DEVICE_EXCEPTION, Reason.DEVICE_EXCEPTION),
        (EndClass.NODE_STORAGE_ERROR, Reason.NODE_STORAGE_ERROR),
        (EndClass.SILENT_CORRUPTION, Reason.SILENT_CORRUPTION),
        (EndClass.SLOW_NODE, Reason.SLOW_NODE),
        (EndClass.NODE_UNFIT, Reason.NODE_UNFIT),
    )
}
"""What ends the processes of a node by its fault, though the attempt continues there or on a spare node."""
NO_PROGRESS = frozenset({
    PROGRESS_STALLED, GPU_ECC_UNCORRECTED, "gpu.throttled", "dataset.waiting", "sink.failed", "sink.incomplete",
})  # fmt: skip
"""Events of agents that report no progress of the work. All others do."""
MAX_REFUSED_NAMES = 10  # in one record
MAX_NAME_LENGTH = 60
MAX_DURATION_SECONDS = 10 * 365 * 86_400.0  # of what an event may say that something took


def ingest(attempt: Attempt, kind: str, batch: Batch) -> int:
    """Store a batch of `kind` (metrics, logs, progress, system). Return the next expected sequence number.

    A batch that was stored before is acknowledged; a batch that leaves a gap raises Conflict. All but progress
    raise Unavailable while a disk is full.
    """
    filled: dict[str, Sequence[object]] = {
        "metrics": batch.points,
        "logs": batch.lines,
        "progress": batch.events,
        "system": batch.samples,
    }
    if not filled[kind] or any(items for other, items in filled.items() if other != kind):
        remedy = "send points to /metrics, lines to /logs, events to /progress and samples to /system"
        raise Invalid("wrong_batch", f"a batch for /{kind} has none of its items, or others too", remedy=remedy)
    if kind != "progress":  # what happens to a job is always stored; the agent keeps the rest, and sends it again
        require_space()
    if kind == "metrics" and _append_points(attempt, batch):
        TELEMETRY_ITEMS.labels(kind).inc(len(batch.points))
        return batch.sequence + 1
    with transaction.atomic():
        # The job before the rest: the same order of locks as everywhere.
        job = Job.objects.select_for_update(no_key=True).get(pk=attempt.job_id) if kind == "progress" else attempt.job
        if (next_sequence := _take(attempt, kind, batch)) is not None:
            return next_sequence
        transaction.on_commit(partial(TELEMETRY_ITEMS.labels(kind).inc, len(filled[kind])))
        if kind == "system":
            system.store(attempt, batch.samples)
            return batch.sequence + 1
        progress = _locked_progress(attempt.job_id)
        if kind == "metrics":
            _store_points(attempt, progress, batch.points)
        elif kind == "logs":
            _store_lines(attempt, progress, batch.lines)
        else:
            _store_events(attempt, job, batch.events)
            if any(item.type in AGENT_EVENT_TYPES - NO_PROGRESS for item in batch.events):
                progress.progressed_at = Now()
        progress.save()
    return batch.sequence + 1


def heartbeat(attempt: Attempt, message: HeartbeatMessage) -> None:
    """Store the heartbeat of a node's agent. The first one of a node triggers an observation of its cluster.

    Another step, phase or generation is progress, and so is the first heartbeat after a silence: what was done
    meanwhile is not known.
    """
    phase = message.phase[:40]
    same = Heartbeat.objects.filter(
        attempt=attempt,
        node_rank=message.node_rank,
        generation=message.generation,
        phase=phase,
        step=message.step,
        received_at__gt=Now() - SILENT_AFTER,
    )
    if same.update(processes_alive=message.processes_alive, received_at=Now()):
        Progress.objects.update_or_create(job_id=attempt.job_id, defaults={"phase": phase})
        return
    _, created = Heartbeat.objects.update_or_create(
        attempt=attempt,
        node_rank=message.node_rank,
        defaults={
            "generation": message.generation,
            "phase": phase,
            "step": message.step,
            "processes_alive": message.processes_alive,
            "received_at": Now(),
        },
    )
    Progress.objects.update_or_create(job_id=attempt.job_id, defaults={"phase": phase, "progressed_at": Now()})
    if created:
        task_triggers.trigger_after_commit(task_triggers.OBSERVE)


# The usual small batch: the next of its writer, of the segment that is being drawn, with room left before it is time to
# fold. All of it or nothing, and the same order of locks as in `ingest`. One statement instead of six.
APPEND = """
WITH ready AS MATERIALIZED (
  SELECT writer.id AS writer_id, progress.job_id FROM telemetry_writer writer, telemetry_progress progress
  WHERE writer.attempt_id = %(attempt)s AND writer.kind = 'metrics' AND writer.name = %(writer)s
    AND writer.next_sequence = %(sequence)s AND progress.job_id = %(job)s AND progress.segment = %(segment)s
    AND progress.loose_rows + %(count)s < %(most)s AND progress.step >= 0
  FOR NO KEY UPDATE OF writer, progress
), counted AS (
  UPDATE telemetry_writer SET next_sequence = next_sequence + 1 FROM ready WHERE id = ready.writer_id
), shown AS (
  UPDATE telemetry_progress progress SET step = %(step)s, values = values || %(values)s::jsonb, updated_at = now(),
    progressed_at = now(),
    loose_rows = loose_rows + %(count)s, trained_tokens = trained_tokens + %(tokens)s,
    trained_seconds = trained_seconds + %(seconds)s, validation_first = coalesce(validation_first, %(first)s),
    validation_last = coalesce(%(last)s, validation_last)
  FROM ready WHERE progress.job_id = ready.job_id
)
INSERT INTO telemetry_metricchunk (attempt_id, content, count, generation, first_step, last_step)
SELECT %(attempt)s, %(content)s, %(count)s, %(generation)s, %(first_step)s, %(last_step)s FROM ready
"""


def _append_points(attempt: Attempt, batch: Batch) -> bool:
    """Try to store the batch with a single statement. Return whether it was stored."""
    points = batch.points
    if len(points) >= compaction.ROWS:
        return False
    steps = [point.step for point in points]
    newest = _newest(points)
    found: dict[str, str | int | float | bytes | None] = {
        "attempt": attempt.id,
        "job": attempt.job_id,
        "writer": batch.writer,
        "sequence": batch.sequence,
        "segment": f"{attempt.id}:{points[0].generation}",
        "count": len(points),
        "most": compaction.ROWS,
        "step": points[-1].step,
        "values": json.dumps(newest.values),
        "first": newest.first_validation,
        "last": newest.last_validation,
        "tokens": newest.trained_tokens,
        "seconds": newest.trained_seconds,
        "content": codec.pack_rows(_rows(attempt, points)),
        "generation": points[0].generation,
        "first_step": min(steps),
        "last_step": max(steps),
    }
    with connection.cursor() as cursor:
        cursor.execute(APPEND, found)
        return bool(cursor.rowcount)


def _take(attempt: Attempt, kind: str, batch: Batch) -> int | None:
    """Count the batch and lock its writer's row. Return None if it is new, otherwise the next expected sequence number.

    Usually one statement. Raise Conflict for a batch that leaves a gap.
    """
    writers = Writer.objects.filter(attempt=attempt, kind=kind, name=batch.writer)
    expected = writers.filter(next_sequence=batch.sequence)
    if expected.update(next_sequence=F("next_sequence") + 1):
        return None
    writer, created = Writer.objects.get_or_create(attempt=attempt, kind=kind, name=batch.writer)
    if created and expected.update(next_sequence=F("next_sequence") + 1):
        return None
    # Another sender of the same writer may have been waited for: what it stored is read again.
    writer.refresh_from_db()
    if batch.sequence < writer.next_sequence:
        return writer.next_sequence
    raise Conflict(
        "sequence_gap",
        f"batch {batch.sequence} of {batch.writer} came, {writer.next_sequence} is next",
        remedy="send the batches in order, from next_sequence on",
        extra={"next_sequence": writer.next_sequence},
    )


def _locked_progress(job_id: str) -> Progress:
    locked = Progress.objects.select_for_update(no_key=True).filter(pk=job_id)
    found = locked.first()
    if found is None:
        Progress.objects.get_or_create(job_id=job_id)
        found = locked.get()
    return found


def _store_points(attempt: Attempt, progress: Progress, points: list[MetricPoint]) -> None:
    rows = _rows(attempt, points)
    steps = [point.step for point in points]
    generation = points[0].generation
    segment = f"{attempt.id}:{generation}"
    if progress.segment != segment:
        compaction.segment_of(attempt, generation, min(steps))
        progress.segment = segment
    if progress.loose_rows + len(rows) >= compaction.ROWS:
        compaction.compact_points(attempt, progress, rows, generation)
    else:
        MetricChunk.objects.create(
            attempt=attempt,
            content=codec.pack_rows(rows),
            count=len(rows),
            generation=generation,
            first_step=min(steps),
            last_step=max(steps),
        )
        progress.loose_rows += len(rows)
    if progress.step < 0:
        task_triggers.trigger_after_commit(task_triggers.OBSERVE)
    newest = _newest(points)
    progress.progressed_at = Now()
    progress.step = points[-1].step
    progress.values |= newest.values
    progress.trained_tokens += newest.trained_tokens
    progress.trained_seconds += newest.trained_seconds
    if newest.last_validation is not None:
        progress.validation_last = newest.last_validation
        if progress.validation_first is None:
            progress.validation_first = newest.first_validation


@dataclass(frozen=True)
class _Newest:
    """The changes that a batch makes to the job's progress."""

    values: dict[str, float]
    first_validation: float | None
    last_validation: float | None
    trained_tokens: float
    trained_seconds: float


def _newest(points: list[MetricPoint]) -> _Newest:
    values: dict[str, float] = {}
    for name in SHOWN_IN_PROGRESS & {name for point in points for name in point.values}:
        value = next((value for point in reversed(points) if _is_number(value := point.values.get(name))), None)
        if value is not None:
            values[name] = value
    losses = [loss for point in points if _is_number(loss := point.values.get(EVALUATION))]
    steps = [
        (throughput, seconds)
        for point in points
        if _is_number(throughput := point.values.get(THROUGHPUT)) and _is_number(seconds := point.values.get(STEP_TIME))
        if throughput >= 0 and 0 <= seconds <= MAX_DURATION_SECONDS
    ]
    return _Newest(
        values,
        losses[0] if losses else None,
        losses[-1] if losses else None,
        sum(throughput * seconds for throughput, seconds in steps),
        sum(seconds for _, seconds in steps),
    )


def _is_number(value: float | None) -> TypeGuard[float]:
    return value is not None and isfinite(value)


def _rows(attempt: Attempt, points: list[MetricPoint]) -> list[compaction.Row]:
    clock = Clock(attempt)
    return [(point.step, clock.bounded(point.time).timestamp(), point.values) for point in points]


def _store_lines(attempt: Attempt, progress: Progress, lines: list[LogLine]) -> None:
    clock = Clock(attempt)
    rows = [[clock.bounded(line.time).timestamp(), line.rank, line.stream, line.text] for line in lines]
    first, after = progress.log_lines, progress.log_lines + len(rows)
    LogChunk.objects.create(
        attempt=attempt, content=codec.pack_rows(rows), count=len(rows), first_line=first, last_line=after - 1
    )
    progress.log_lines = after
    progress.loose_lines += len(rows)
    if progress.loose_lines >= compaction.LINES:
        compaction.compact_lines(attempt, progress)


def _store_events(attempt: Attempt, job: Job, items: list[ProgressEvent]) -> None:
    """Store the batch's events. Drop types that an agent may not send, and record that there were some."""
    clock = Clock(attempt)
    refused = [item.type for item in items if item.type not in AGENT_EVENT_TYPES]
    for item in items:
        if item.type in AGENT_EVENT_TYPES:
            events.append(job, item.type, actor=attempt.id, data=item.data, time=clock.bounded(item.time))
        if item.type == STEPS_RESOLVED:
            _resolve_steps(job, item.data)
        elif item.type == PROGRESS_STALLED and item.data.get("is_hang") is True and item.data.get("ranks"):
            _record_incident(attempt, item.data, Reason.HANG.value)
        elif item.type == PREFLIGHT_COMPLETED:
            _record_preflight(attempt, item.data)
        elif item.type == GPU_ECC_UNCORRECTED:
            _record_incident(attempt, item.data, Reason.GPU_FAULT.value)
        elif item.type == GRADIENT_CORRUPTED:
            _record_incident(attempt, item.data, Reason.SILENT_CORRUPTION.value)
        elif item.type == REPLICAS_COMPARED and item.data.get("ranks"):
            _record_incident(attempt, item.data, PROVEN_CORRUPTION)
        elif item.type == GENERATION_STARTED and (fault := FAULTS_OF_DEVICES.get(str(item.data.get("end_class")))):
            _record_incident(attempt, item.data, fault.value)
    if refused:
        names = [name[:MAX_NAME_LENGTH] for name in dict.fromkeys(refused)][:MAX_REFUSED_NAMES]
        message = f"The attempt sent events of types that it may not send; they were dropped: {', '.join(names)}."
        facts = {"attempt": attempt.id, "types": names, "count": len(refused)}
        events.append(job, REFUSED, actor="platform", message=message, data=facts)
    job.save(update_fields=["event_seq", "updated_at"])


def _record_incident(attempt: Attempt, data: Mapping[str, Any], kind: str) -> None:
    """Record an incident of the node that an event names, if it is the attempt's own. The attempt continues, so its end
    does not."""
    node = attempt.own_node(data.get("node"))
    facts = {"job_id": attempt.job_id, "attempt_id": attempt.id, "detail": str(data.get("because", ""))}
    record_incidents(attempt.job.pool.cluster, [node] if node else [], kind, **facts)


def _record_preflight(attempt: Attempt, data: Mapping[str, Any]) -> None:
    """Record what the preflight of an attempt found of its own nodes: the attempt may continue on slow ones."""
    report = read_report(data)
    if report is None:
        return
    known = attempt.known_nodes
    if len(known) == 1:
        report = report.on_node(known[0])
    cluster = attempt.job.pool.cluster
    record_preflight(cluster, known, report, job_id=attempt.job_id, source_id=attempt.id)


def _resolve_steps(job: Job, data: Mapping[str, Any]) -> None:
    """Write the steps that `training.epochs` takes to the resolved spec, which progress and remaining time follow.

    An agent can only shorten the run, and only of a job that has `epochs`.
    """
    training = job.resolved_spec["training"]
    steps, warmup_steps = data.get("steps"), data.get("warmup_steps")
    if training is None or training.get("epochs") is None or type(steps) is not int or type(warmup_steps) is not int:
        return
    if 1 <= steps < training["steps"] and 0 <= warmup_steps <= min(steps, training["schedule"]["warmup_steps"]):
        training["steps"], training["schedule"]["warmup_steps"] = steps, warmup_steps
        job.save(update_fields=["resolved_spec"])
