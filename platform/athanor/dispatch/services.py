"""Shared by dispatch: locking a job with its attempt, backends of clusters, the configuration of an attempt."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from django.conf import settings
from django.db import transaction
from django.db.models.functions import Now
from pydantic import ValidationError

from athanor.artifacts import base_models, checkpoint_exports, data_reports, datasets, replays
from athanor.artifacts import services as artifacts
from athanor.backends import registry
from athanor.backends.base import Backend, Handle
from athanor.backends.plan import LaunchPlan
from athanor.budgets.failure_rate import slot_hours_between_failures_of
from athanor.clusters import server_config
from athanor.clusters.models import Cluster
from athanor.clusters.node_score import avoided_names
from athanor.clusters.selectors import scores_of
from athanor.clusters.services import offending_names, quarantined_names
from athanor.core import leases
from athanor.core.leases import Lease
from athanor.dispatch import plan_builder, tokens
from athanor.jobs import transitions
from athanor.jobs.models import Attempt, AttemptNode, Job
from athanor.jobs.reasons import Reason
from athanor.jobs.states import AttemptStatus, JobStatus
from athanor.specs.v1 import JobSpec
from athanor.telemetry.clock import Clock
from trainer.contract.checkpoint_interval import SLOT_HOURS_BETWEEN_FAILURES
from trainer.contract.run import AttemptEnd, RunConfig, StopRequest, vagueness

log = logging.getLogger(__name__)

OFFENCES = 2
SERIOUS_FAULTS = (
    Reason.GPU_FAULT, Reason.DEVICE_EXCEPTION, Reason.NODE_STORAGE_ERROR, Reason.NODE_UNFIT, Reason.STARTUP_TIMEOUT
)  # fmt: skip
"""One is enough for a job to avoid the node."""


@contextmanager
def locked(attempt_id: str) -> Iterator[tuple[Job, Attempt]]:
    """Open a transaction with the job's row and then the attempt's row locked."""
    with transaction.atomic():
        job_id = Attempt.objects.values_list("job_id", flat=True).get(pk=attempt_id)
        job = Job.objects.select_for_update(no_key=True).get(pk=job_id)
        yield job, Attempt.objects.select_for_update(no_key=True).get(pk=attempt_id)


@contextmanager
def applying_to_attempt(lease: Lease) -> Iterator[tuple[Job, Attempt] | None]:
    """Open a transaction with the job's and the leased attempt's row locked; yields None if the lease is stale."""
    with transaction.atomic():
        job_id = Attempt.objects.values_list("job_id", flat=True).get(pk=lease.pk)
        job = Job.objects.select_for_update(no_key=True, of=("self",)).select_related("pool__cluster").get(pk=job_id)
        attempt = (
            Attempt.objects.select_for_update(no_key=True, of=("self",))
            .filter(pk=lease.pk, lease_token=lease.token, lease_until__gt=Now())
            .first()
        )
        yield (job, attempt) if attempt else None
        if attempt:
            leases.release(Attempt, lease)


def handle_of(attempt: Attempt) -> Handle:
    """Return the handle by which the backend of an attempt knows it."""
    return Handle(attempt.backend_name, attempt.backend_id)


def backend_of(cluster: Cluster) -> Backend:
    """Return the backend of a cluster, by its row and the server's own part of the configuration. Raises ValueError."""
    config = server_config.effective(cluster.name, cluster.kind, cluster.config)
    if cluster.kind == "local":
        config.setdefault("directory", str(settings.ATHANOR.local_backend_dir.resolve()))
    return registry.load(cluster.kind, config)


def nodes_to_avoid(job: Job) -> tuple[str, ...]:
    """Return the nodes in quarantine, and as long as its pool has enough others, those on which a device or the disk
    failed this job, that did not join an attempt, or on which it failed more than once, then those with the highest
    scores of incidents. Spare nodes of the pool count as others: they replace such nodes, too."""
    cluster = job.pool.cluster
    quarantined = quarantined_names(cluster)
    asked = spec_of(job).resources
    to_spare = job.pool.nodes - len(quarantined) - asked.nodes - asked.spare_nodes
    offenders = offending_names(cluster, job.id, OFFENCES, SERIOUS_FAULTS)
    candidates = dict.fromkeys([*offenders, *avoided_names(scores_of(cluster))])
    avoided = [name for name in candidates if name not in quarantined][: max(to_spare, 0)]
    return tuple(sorted({*quarantined, *avoided}))


def nodes_without_agent(attempt: Attempt) -> list[str]:
    """Return the nodes of an attempt of which no agent has joined, if agents of others have."""
    joined = set(AttemptNode.objects.filter(attempt=attempt).values_list("name", flat=True))
    return [name for name in attempt.native_nodes if name not in joined] if joined else []


def launch_plan_of(attempt: Attempt, avoid_nodes: tuple[str, ...]) -> LaunchPlan:
    """Return what a backend starts for an attempt."""
    job = attempt.job
    return plan_builder.launch_plan(
        spec_of(job),
        attempt_id=attempt.id,
        owner=plan_builder.Owner(
            job.id,
            job.team.name,
            job.project,
            job.pool.name,
            memory_bytes_per_slot=job.pool.memory_bytes // job.pool.slots_per_node,
        ),
        avoid_nodes=avoid_nodes,
        agent_url=f"{settings.ATHANOR.public_url}/api/agent/v1",
        token=tokens.issue(attempt.id),
    )


def spec_of(job: Job) -> JobSpec:
    """Return the resolved spec of a job."""
    return JobSpec.model_validate(job.resolved_spec)


def run_config_of(attempt: Attempt) -> RunConfig:
    """GET /run. May raise Unavailable, when the data is an S3 prefix that cannot be listed now.

    An agent that calls was launched, even if no reconciler has seen it yet: the time limit counts from then.
    """
    job = attempt.job
    if attempt.launched_at is None:
        Attempt.objects.filter(pk=attempt.pk, launched_at__isnull=True).update(launched_at=Now())
        attempt.refresh_from_db(fields=["launched_at"])
    assert attempt.launched_at is not None
    spec = spec_of(job)
    return plan_builder.run_config(
        spec,
        job_id=job.id,
        attempt_id=attempt.id,
        attempt_number=attempt.number,
        prefix=artifacts.job_prefix(job.id),
        datasets=datasets.sources_for(job.dataset_ids, spec.data, spec.tokenizer),
        compared=datasets.raw_sources(data_reports.compared_rows(job.team, spec)),
        base=base_models.source_for(job.team, spec.base),
        resume=artifacts.newest_checkpoint(job),
        best=artifacts.best_checkpoint(job),
        rollbacks=artifacts.rollbacks_of(Job.objects.get(pk=spec.source_job) if spec.source_job else job),
        replay=replays.replay_of(attempt, spec.replay) if spec.replay is not None else None,
        export=checkpoint_exports.export_of(attempt, spec.export) if spec.export is not None else None,
        slot_hours_between_failures=(
            slot_hours_between_failures_of(job.pool)
            if spec.checkpoint.every_minutes == "auto"
            else SLOT_HOURS_BETWEEN_FAILURES
        ),
        launched_at=attempt.launched_at,
        outbound_allow=settings.ATHANOR.outbound_allow,
        cache_scope=job.team_id,
    )


def stored_report(attempt: Attempt) -> AttemptEnd | None:
    """Return an agent's final report. None for no report, and for one that is out of the contract's bounds, which
    earlier versions stored."""
    try:
        return AttemptEnd.model_validate(attempt.end_report) if attempt.end_report is not None else None
    except ValidationError as error:
        log.warning("the end report of %s is ignored: %s", attempt.pk, error)
        return None


def record_end(attempt: Attempt, report: AttemptEnd) -> None:
    """Record the final report of a node's agent. Of several nodes the first report counts, unless another explains
    more: a fault of a GPU counts more than the timeouts of the nodes that waited for it."""
    with locked(attempt.pk) as (_, row):
        known = stored_report(row)
        if known is not None and not _supersedes(report, known):
            return
        row.end_report = report.model_copy(update={"at": Clock(row).bounded(report.at)}).model_dump(mode="json")
        row.save(update_fields=["end_report"])


def _supersedes(report: AttemptEnd, known: AttemptEnd) -> bool:
    if known.node_rank == report.node_rank:
        return True
    return vagueness(report.end_class) < vagueness(known.end_class)


def interrupted(attempt_id: str, notice: str) -> None:
    """Handle a spot interruption: the attempt saves a checkpoint, and its job continues elsewhere."""
    with locked(attempt_id) as (job, attempt):
        if attempt.status != AttemptStatus.ENDED.value:
            detail = f"Its provider said: {notice}."
            transitions.preempt_at_checkpoint(
                job, Reason.SPOT_NOTICE, detail, actor="dispatch", data={"attempt": attempt_id}
            )


def stop_request_of(attempt: Attempt) -> StopRequest | None:
    """Return the answer to a heartbeat."""
    job = Job.objects.get(pk=attempt.job_id)
    if job.status == JobStatus.PAUSING.value:
        return StopRequest.PAUSE
    if job.status != JobStatus.STOPPING.value:
        return None
    return StopRequest.DEADLINE if job.reason == Reason.DEADLINE.value else StopRequest.CANCEL
