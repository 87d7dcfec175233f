"""The end of an attempt: find out why, put its log away, and end the job or queue it again."""

import json
import logging
from dataclasses import dataclass
from functools import partial

import zstandard
from django.db import transaction
from django.db.models import Exists, OuterRef, QuerySet
from django.utils import timezone
from pydantic import ValidationError

from athanor.accounts.failures import run_isolated
from athanor.artifacts import data_reports, datasets, keys, profiles, registry, replays, storage
from athanor.artifacts import services as artifacts
from athanor.artifacts.models import Artifact, Checkpoint, EvaluationResult
from athanor.backends.base import Cause
from athanor.budgets import refunds
from athanor.clusters.services import record_incidents
from athanor.core import leases, task_triggers
from athanor.core.errors import Unavailable
from athanor.core.leases import Lease
from athanor.core.metrics import ATTEMPTS_ENDED
from athanor.dispatch import output, output_evaluations, recovery
from athanor.dispatch.abandon import abandon_job
from athanor.dispatch.services import nodes_without_agent, spec_of, stored_report
from athanor.jobs import transitions
from athanor.jobs.models import Attempt, Job
from athanor.jobs.reasons import MEANINGS, REASON_OF_END, Blame, Reason, Retry
from athanor.jobs.states import ATTEMPT_LIVE, FINAL, AttemptStatus, Desired, JobStatus
from athanor.telemetry import logs
from trainer.contract.encryption import DecryptionError, authenticate
from trainer.contract.manifest import PART_PLAINTEXT_BYTES, LogManifest, StoredFile
from trainer.contract.run import AttemptEnd

log = logging.getLogger(__name__)

LEASE_SECONDS = 30.0  # renewed while a long log is put away
BATCH = 20
# By what one node reports of itself; without its report, nobody knows which it was.
FAULTS_OF_ONE_NODE = frozenset({
    Reason.GPU_FAULT, Reason.DEVICE_EXCEPTION, Reason.NODE_STORAGE_ERROR, Reason.NODE_UNFIT, Reason.HANG,
    Reason.SILENT_CORRUPTION, Reason.SLOW_NODE,
})  # fmt: skip
FAULTS_OF_NODES = FAULTS_OF_ONE_NODE | {
    Reason.NODE_LOST, Reason.PROCESS_KILLED, Reason.COLLECTIVE_TIMEOUT, Reason.NETWORK_ERROR, Reason.LAUNCH_FAILED,
    Reason.STARTUP_TIMEOUT,
}  # fmt: skip
UNFINISHED = (JobStatus.DISPATCHING, JobStatus.STARTING, JobStatus.RUNNING, JobStatus.PAUSING, JobStatus.STOPPING)


@dataclass(frozen=True)
class Ending:
    """Why a job ends, and the details of it for users."""

    reason: Reason
    detail: str


def to_finalise() -> QuerySet[Job]:
    """Unfinished jobs whose last attempt has ended."""
    of_job = Attempt.objects.filter(job=OuterRef("pk"))
    return Job.objects.filter(
        Exists(of_job.filter(status=AttemptStatus.ENDED.value)),
        ~Exists(of_job.filter(status__in=[status.value for status in ATTEMPT_LIVE])),
        status__in=[status.value for status in UNFINISHED],
    )


def finalise_due() -> None:
    """End or requeue the jobs with an ended attempt, each under a lease."""
    for lease in leases.claim_each(to_finalise().order_by("id"), seconds=LEASE_SECONDS, limit=BATCH):
        run_isolated(
            task_triggers.FINALISE, f"finalising job {lease.pk}", partial(_finalise, lease), held=(Job, lease),
            give_up=partial(abandon_job, lease.pk),
        )  # fmt: skip


def _finalise(lease: Lease) -> None:
    attempts = Attempt.objects.filter(job_id=lease.pk).select_related("job__team", "job__pool__cluster")
    attempt = attempts.order_by("-number")[0]
    try:
        report = _report(attempt)
        ending = _ending(attempt, report)
        if report is None:
            output.keep_last_words(attempt)
        _archive_log(attempt, lease)
        if ending.reason is Reason.COMPLETED:
            output_evaluations.submit_for(attempt, lease)
    except Unavailable as error:
        log.warning("job %s is finalised later: %s", lease.pk, error)
        leases.release(Job, lease)
        return
    with leases.applying(Job, lease) as job:
        if job is not None:
            profiles.close_of(attempt, job)
            _apply(job, attempt, ending, report)
            reason = Attempt.objects.values_list("reason", flat=True).get(pk=attempt.pk)  # as it is shown
            transaction.on_commit(ATTEMPTS_ENDED.labels(attempt.job.pool.cluster.name, reason).inc)


def _ending(attempt: Attempt, report: AttemptEnd | None) -> Ending:
    if attempt.reason:
        return Ending(Reason(attempt.reason), attempt.reason_detail)
    reason, detail = recovery.reason_of_end(
        report,
        exit_status=attempt.exit_status,
        native_state=attempt.native_state,
        native_reason=attempt.native_reason,
        cause=Cause(attempt.cause) if attempt.cause else None,
        explanation=attempt.explanation,
    )
    if reason is Reason.COMPLETED:
        missing = _missing_result(attempt)
        if missing:
            return Ending(Reason.PLATFORM_ERROR, f"It reported its completion but registered no {missing}.")
    return Ending(reason, detail)


def _missing_result(attempt: Attempt) -> str:
    """Return what a completed job should have stored but has not."""
    spec = spec_of(attempt.job)
    if spec.evaluation is not None:
        return "" if EvaluationResult.objects.filter(job=attempt.job).exists() else "result"
    if spec.replay is not None:
        return "" if replays.is_complete(attempt.job, spec.replay) else "result"
    if spec.training is not None:
        found = Artifact.objects.filter(attempt=attempt, kind=Artifact.Kind.MODEL).exists()
        return "" if found else "model"
    if spec.prepare is not None and spec.prepare.report is not None:
        return "" if data_reports.are_registered(attempt) else "data report"
    return "" if datasets.are_prepared(attempt.job.dataset_ids, spec.data, spec.tokenizer) else "data set"


def _report(attempt: Attempt) -> AttemptEnd | None:
    """Return the agent's final report, from the database or else from the object store."""
    if (stored := stored_report(attempt)) is not None:
        return stored
    key = f"{artifacts.job_prefix(attempt.job_id)}attempts/{attempt.number}/end.json"
    ciphertext = storage.get(key)
    if ciphertext is None:
        return None
    try:
        content = keys.encryptor(attempt.job_id, attempt.job.team).decrypt_unlisted(ciphertext, key)
        return AttemptEnd.model_validate_json(content)
    except (DecryptionError, ValidationError) as error:
        log.warning("the end marker %s is not believed: %s", key, error)
        return None


def _apply(job: Job, attempt: Attempt, ending: Ending, report: AttemptEnd | None) -> None:
    history = [
        recovery.PastEnd(Reason(past.reason), past.ended_at)
        for past in Attempt.objects.filter(job=job, number__lt=attempt.number).order_by("number")
        if past.reason and past.ended_at
    ]
    shown = _as_asked(job, attempt, ending)
    Attempt.objects.filter(pk=attempt.pk).update(reason=shown.reason.value, reason_detail=shown.detail)
    if shown.reason in FAULTS_OF_NODES:
        facts = {"job_id": job.id, "attempt_id": attempt.id, "detail": shown.detail}
        nodes = _suspected_nodes(attempt, shown.reason, report)
        record_incidents(attempt.job.pool.cluster, nodes, shown.reason.value, **facts)
    if _is_others_fault(job, attempt, ending.reason):
        saved = Checkpoint.objects.filter(attempt=attempt).order_by("-created_at").first()
        refunds.refund_lost_work(attempt, job, saved.created_at if saved else None)
    facts = {"attempt": attempt.id}
    status = JobStatus(job.status)
    if ending.reason is Reason.COMPLETED:
        if status is JobStatus.STARTING:
            transitions.move(job, JobStatus.RUNNING, actor="dispatch", data=facts)
        elif status is JobStatus.PAUSING:  # it finished before it heard of the pause
            transitions.move(job, JobStatus.STOPPING, reason=Reason.PAUSED_BY_USER, actor="dispatch", data=facts)
        transitions.move(job, JobStatus.SUCCEEDED, reason=Reason.COMPLETED, actor="dispatch", data=facts)
        output_spec = spec_of(job).output
        if output_spec.register is not None:
            registry.register_output(job, attempt, output_spec.register, output_spec.alias)
        return
    if status is JobStatus.STOPPING:
        _end_stopped(job, Reason(job.reason), facts)
        return
    if job.desired == Desired.STOP.value:
        transitions.move(job, JobStatus.STOPPING, reason=Reason.STOPPED_BY_USER, actor="dispatch", data=facts)
        _end_stopped(job, Reason.STOPPED_BY_USER, facts)
        return
    ended_by_us = ending.reason is Reason.STOPPED_BY_ADMIN and attempt.cancel_sent_at is not None
    if status is JobStatus.PAUSING and job.desired == Desired.RUN.value and MEANINGS[Reason(job.reason)].final:
        ending = shown  # the platform has ended the attempt, and counts it as one that failed
    elif status is JobStatus.PAUSING and (ended_by_us or MEANINGS[ending.reason].retry is not Retry.NEVER):
        if job.desired == Desired.RUN.value and Reason(job.reason) is not Reason.PAUSED_BY_USER:
            reason, detail, queued_at = Reason(job.reason), job.reason_detail, job.queued_at
            # Not one of the faults that are counted: the platform itself has asked for it.
            Attempt.objects.filter(pk=attempt.pk).update(reason=reason.value, reason_detail=detail)
            transitions.move(job, JobStatus.QUEUED, reason=reason, actor="dispatch", detail=detail, data=facts)
            if reason is Reason.NO_ROOM:
                job.act_after = timezone.now() + recovery.pause_without_room(history)
                # It has not been launched: its wait continues.
                job.queued_at, job.expires_at = queued_at, transitions.expiry(job, queued_at)
                job.save(update_fields=["act_after", "queued_at", "expires_at"])
        else:
            reason = Reason.IDLE if job.reason == Reason.IDLE.value else Reason.PAUSED_BY_USER
            detail = job.reason_detail if reason is Reason.IDLE else ""
            transitions.move(job, JobStatus.PAUSED, reason=reason, actor="dispatch", detail=detail, data=facts)
        return
    if status is JobStatus.STARTING and job.desired == Desired.PAUSE.value and attempt.cancel_sent_at is not None:
        transitions.move(job, JobStatus.QUEUED, actor="dispatch", data=facts)
        return
    outcome = recovery.decide(ending.reason, ending.detail, spec_of(job).retry, history, timezone.now())
    if outcome.retry_at is None and MEANINGS[ending.reason].final is JobStatus.CANCELLED:
        transitions.move(job, JobStatus.STOPPING, reason=ending.reason, actor="dispatch", data=facts)
        job.reason_detail = outcome.detail
        _end_stopped(job, ending.reason, facts)
        return
    to = JobStatus.FAILED if outcome.retry_at is None else JobStatus.QUEUED
    transitions.move(job, to, reason=ending.reason, actor="dispatch", detail=outcome.detail, data=facts)
    if outcome.retry_at is not None:
        job.act_after = outcome.retry_at
        job.save(update_fields=["act_after"])


def _suspected_nodes(attempt: Attempt, reason: Reason, report: AttemptEnd | None) -> list[str]:
    """Return the nodes at which a fault of nodes is recorded: that of the agent that reported it, or else all, since it
    may have been any. Of a start that took too long, those that did not join."""
    if reason is Reason.STARTUP_TIMEOUT:
        return nodes_without_agent(attempt)
    known, last = attempt.known_nodes, list(attempt.native_nodes)
    is_of_one = reason in FAULTS_OF_ONE_NODE or reason is Reason.PROCESS_KILLED
    if not is_of_one or len(known) <= 1:
        return last
    if report is not None and REASON_OF_END[report.end_class] is reason:
        reporting = attempt.nodes.filter(node_index=report.node_rank, name__in=known)
        if found := list(reporting.values_list("name", flat=True)):
            return found
    return [] if reason in FAULTS_OF_ONE_NODE else last


def _as_asked(job: Job, attempt: Attempt, ending: Ending) -> Ending:
    """Return the ending of the attempt as it is shown: of one that the platform has asked to stop, why it has asked.

    Other ends are shown as they are, such as a fault while a job was being paused.
    """
    was_killed = ending.reason in (Reason.STOPPED_BY_ADMIN, Reason.PROCESS_KILLED) and attempt.end_report is None
    if ending.reason is not Reason.INTERRUPTED and not (was_killed and attempt.cancel_sent_at is not None):
        return ending
    if JobStatus(job.status) in (JobStatus.PAUSING, JobStatus.STOPPING) and job.reason:
        return Ending(Reason(job.reason), job.reason_detail)
    if attempt.cancel_sent_at is not None and job.desired == Desired.PAUSE.value:
        return Ending(Reason.PAUSED_BY_USER, "")
    if attempt.cancel_sent_at is not None and job.desired == Desired.STOP.value:
        return Ending(Reason.STOPPED_BY_USER, "")
    return ending


def _is_others_fault(job: Job, attempt: Attempt, reason: Reason) -> bool:
    """Return whether work since the last checkpoint was lost without fault of the user or the program."""
    status = JobStatus(job.status)
    if status is JobStatus.PAUSING:
        return MEANINGS[Reason(job.reason)].blame in (Blame.INFRASTRUCTURE, Blame.PREEMPTOR)
    if status is JobStatus.STOPPING:  # somebody or the platform wanted it to stop
        return MEANINGS[Reason(job.reason)].blame is Blame.INFRASTRUCTURE
    lost = MEANINGS[reason].blame in (Blame.INFRASTRUCTURE, Blame.PLATFORM, Blame.PREEMPTOR)
    return lost and attempt.cancel_sent_at is None


def _end_stopped(job: Job, reason: Reason, facts: dict[str, str]) -> None:
    final = MEANINGS[reason].final
    assert final in FINAL
    transitions.move(job, final, reason=reason, actor="dispatch", detail=job.reason_detail, data=facts)


def _archive_log(attempt: Attempt, lease: Lease) -> None:
    """Put the attempt's log into the store, sealed, one JSON object a line. Idempotent."""
    if Artifact.objects.filter(attempt=attempt, kind=Artifact.Kind.LOG).exists():
        return
    text = "".join(
        json.dumps({"time": line.time.isoformat(), "rank": line.rank, "stream": line.stream, "text": line.text}) + "\n"
        for line in logs.every_line(attempt)
    )
    if not text:
        return
    content = zstandard.compress(text.encode())
    encryptor = keys.encryptor(attempt.job_id, attempt.job.team)
    parts = []
    for number, start in enumerate(range(0, len(content), PART_PLAINTEXT_BYTES)):
        key = f"{artifacts.job_prefix(attempt.job_id)}logs/attempt-{attempt.number}.{number:04d}"
        leases.renew(Job, lease, seconds=LEASE_SECONDS)
        ciphertext, part = encryptor.encrypt(content[start : start + PART_PLAINTEXT_BYTES], key)
        storage.put(key, ciphertext)
        parts.append(part)
    file = StoredFile(path=f"attempt-{attempt.number}.jsonl.zst", parts=parts)
    manifest = authenticate(LogManifest(job_id=attempt.job_id, attempt_id=attempt.id, files=[file]), encryptor)
    Artifact.objects.get_or_create(
        attempt=attempt,
        kind=Artifact.Kind.LOG,
        defaults={
            "job": attempt.job,
            "name": f"log of attempt {attempt.number}",
            "step": 0,
            "size_bytes": sum(part.size for part in parts),
            "manifest": manifest.model_dump(mode="json"),
        },
    )
