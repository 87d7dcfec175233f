"""Preflights of single nodes outside jobs: started after incidents, at an interval, or by an administrator.

The backend runs the agent on the node without a token: it measures, tries to reach the platform and the object store,
prints its report, and ends. Such a preflight
reserves no slots, so admission does not see it and no team is charged: it is started on a free node while no job waits
for its pool and no run of it lacks a node, and ended before the next attempt is submitted to its cluster.
"""

import json
import logging
from datetime import timedelta
from functools import partial

from django.conf import settings
from django.db import IntegrityError, transaction
from django.db.models import Exists, F, Max, OuterRef, Q, QuerySet
from django.db.models.functions import Now
from django.utils import timezone

from athanor.accounts.failures import run_isolated
from athanor.artifacts import storage
from athanor.backends.base import Backend, BackendRejected, BackendUnavailable, Handle, Observation, Phase, Presence
from athanor.backends.facts import NodeState
from athanor.backends.plan import LaunchPlan, backend_name
from athanor.clusters.models import Cluster, Node, NodeIncident, NodePreflight, Pool
from athanor.clusters.node_score import MEASURED, PASSED_PREFLIGHT
from athanor.clusters.services import record_preflight
from athanor.core import ids, leases, task_triggers, tenancy
from athanor.core.errors import Conflict
from athanor.core.leases import Lease
from athanor.dispatch.services import backend_of
from athanor.jobs.models import Attempt, Job, RendezvousRound
from athanor.jobs.states import AttemptStatus, Desired, JobStatus
from trainer.contract import environment as names
from trainer.contract.preflight import PreflightReport, find_report

log = logging.getLogger(__name__)

LEASE_SECONDS = 60.0  # of one preflight: longer than the calls of a backend for it take
BATCH = 20
MAX_LIVE = 4  # of a cluster
MAX_RANKS = 16
LIMIT_SECONDS = 300
START_LIMIT = timedelta(minutes=2)  # for its cluster to begin it: the node is not free after all
END_LIMIT = timedelta(minutes=10)
ABSENT_LIMIT = timedelta(minutes=1)
LOST_SINCE = timedelta(minutes=10)  # after that, a node that replaces the lost one may wait for a preflight to end
INCIDENTS_SINCE = timedelta(days=7)
MAX_OUTPUT_PARTS = 64
Outcome = NodePreflight.Outcome
Cause = NodePreflight.Cause


def live() -> QuerySet[NodePreflight]:
    """Return the preflights that have not ended."""
    return NodePreflight.objects.filter(ended_at__isnull=True)


def request(node: Node, cause: Cause, actor: str = "") -> NodePreflight:
    """Create a preflight of a node, which `advance_due` starts. Raise Conflict, saying why, if it cannot run there."""
    pool = _pool_of(node)
    if pool is None:
        detail = f"no pool of {node.cluster} has the accelerator of node {node.name}, {node.accelerator or 'unknown'}"
        raise Conflict("no_pool", detail, remedy="create a pool for the node's accelerator")
    if not node.listed or node.state != NodeState.READY.value:
        state = node.state if node.listed else "not in the inventory"
        detail = f"node {node.name} is {state}: its cluster starts nothing there"
        raise Conflict("node_not_ready", detail, remedy="undrain or release it first, or wait until it is back")
    if why := _why_not_free(node, pool):
        raise Conflict("node_not_free", why, remedy="try again when the node is free and no job waits for its pool")
    identifier = ids.node_preflight_id()
    row = NodePreflight(
        id=identifier, node=node, pool=pool, cause=cause, actor=actor, backend_name=backend_name(identifier)
    )
    try:
        backend_of(node.cluster).render(_plan(row))
    except (BackendRejected, ValueError) as error:
        raise Conflict(
            "preflight_refused", f"{node.cluster} cannot run it: {error}", remedy="fix what it names"
        ) from error
    try:
        with transaction.atomic():
            row.save(force_insert=True)
    except IntegrityError as error:
        detail = f"a preflight of node {node.name} is running"
        raise Conflict("preflight_running", detail, remedy="wait for its result") from error
    task_triggers.trigger_after_commit(task_triggers.NODE_PREFLIGHTS)
    return row


def plan_due() -> None:
    """Create the preflights that are due, of up to MAX_LIVE nodes of each cluster at a time."""
    chosen = Q(preflight_after_incidents=True) | Q(preflight_every_hours__isnull=False)
    for cluster in Cluster.objects.filter(chosen, enabled=True):
        room = MAX_LIVE - live().filter(node__cluster=cluster).count()
        for node, cause in _due(cluster):
            if room <= 0:
                break
            try:
                request(node, cause)
                room -= 1
            except Conflict as error:
                log.debug("node %s is measured later: %s", node, error)


def advance_due() -> None:
    """Submit, observe and end the live preflights, each under a lease."""
    for lease in leases.claim_each(live().order_by("created_at"), seconds=LEASE_SECONDS, limit=BATCH):
        run_isolated(
            task_triggers.NODE_PREFLIGHTS, f"preflight {lease.pk}", partial(_advance, lease),
            held=(NodePreflight, lease), give_up=partial(_give_up, lease.pk),
        )  # fmt: skip


def stop_all(cluster: Cluster, backend: Backend) -> None:
    """End the preflights of a cluster, because an attempt is about to be submitted to it. `advance_due` ends those that
    cannot be cancelled now."""
    for row in live().filter(node__cluster=cluster):
        try:
            _stop(row, backend, Outcome.STOPPED, "a job needed the slots")
        except BackendUnavailable as error:
            log.warning("preflight %s is stopped later: %s", row.pk, error)


def _due(cluster: Cluster) -> list[tuple[Node, Cause]]:
    """Return the ready nodes to measure, those with incidents first, without those that are measured now."""
    ready = Node.objects.filter(cluster=cluster, listed=True, state=NodeState.READY.value, slots_used=0).annotate(
        measured_at=Max("preflights__created_at", filter=~Q(preflights__outcome=Outcome.STOPPED)),
    )
    ready = ready.exclude(Exists(live().filter(node=OuterRef("pk")))).order_by(
        F("measured_at").asc(nulls_first=True), "name"
    )
    now = timezone.now()
    after_incident: list[tuple[Node, Cause]] = []
    if cluster.preflight_after_incidents:
        recent = NodeIncident.objects.filter(node__cluster=cluster, time__gte=now - INCIDENTS_SINCE)
        newest = dict(
            recent.filter(kind__in=list(MEASURED)).exclude(job_id="").values_list("node").annotate(at=Max("time"))
        )
        passed = dict(recent.filter(kind=PASSED_PREFLIGHT).values_list("node").annotate(at=Max("time")))
        for node in ready.filter(pk__in=list(newest)):
            seen = [at for at in (node.released_at, node.measured_at, passed.get(node.pk)) if at is not None]
            if not seen or max(seen) < newest[node.pk]:
                after_incident.append((node, Cause.INCIDENT))
    if cluster.preflight_every_hours is None:
        return after_incident
    before = now - timedelta(hours=cluster.preflight_every_hours)
    chosen = {node.pk for node, _ in after_incident}
    others = ready.filter(Q(measured_at__isnull=True) | Q(measured_at__lte=before)).exclude(pk__in=chosen)
    return after_incident + [(node, Cause.INTERVAL) for node in others[:MAX_LIVE]]


def _pool_of(node: Node) -> Pool | None:
    """Return the pool with the node's accelerator: one that is called like a group of its cluster, else the first."""
    pools = list(Pool.objects.filter(cluster=node.cluster_id, accelerator=node.accelerator or "cpu").order_by("name"))
    return next((pool for pool in pools if pool.name in node.pools), pools[0] if pools else None)


def _why_not_free(node: Node, pool: Pool) -> str:
    """Return why a preflight must not use the node now, empty if it may."""
    if node.slots_used:
        return f"{node.slots_used} slots of node {node.name} are in use"
    with tenancy.unrestricted():
        attempts = Attempt.objects.exclude(status=AttemptStatus.ENDED.value).filter(job__pool__cluster=node.cluster_id)
        if attempts.filter(Q(native_nodes__contains=[node.name]) | Q(native_nodes=[])).exists():
            return f"an attempt runs on node {node.name}, or is about to start on its cluster"
    return f"a job waits for pool {pool}, or has lost a node of it" if _is_needed(pool) else ""


def _is_needed(pool: Pool) -> bool:
    """Return whether a job waits for slots of the pool or is about to be submitted, or a run may need a free node: its
    nodes gather again, or it continued on fewer within LOST_SINCE."""
    may_start = Q(not_before__isnull=True) | Q(not_before__lte=Now())
    waiting = Q(status=JobStatus.QUEUED.value, desired=Desired.RUN.value) & may_start
    starting = Q(status__in=[JobStatus.ADMITTED.value, JobStatus.DISPATCHING.value])
    with tenancy.unrestricted():
        if Job.objects.filter(waiting | starting, pool=pool).exists():
            return True
        shrunk = Q(placed__gt=0, placed__lt=F("needed"), enough_at__gt=Now() - LOST_SINCE)
        again = RendezvousRound.objects.exclude(attempt__status=AttemptStatus.ENDED.value).filter(number__gt=1)
        return again.filter(Q(first_node__isnull=True) | shrunk, attempt__job__pool=pool).exists()


def _plan(row: NodePreflight) -> LaunchPlan:
    addresses = {"platform": settings.ATHANOR.public_url, "object store": storage.address()}
    ranks = min(row.pool.slots_per_node, row.node.slots or row.pool.slots_per_node, MAX_RANKS)
    return LaunchPlan(
        attempt_id=row.id,
        backend_name=row.backend_name,
        nodes=1,
        processes_per_node=ranks,
        accelerator=row.pool.accelerator,
        time_limit_seconds=LIMIT_SECONDS,
        environment={names.PREFLIGHT_RANKS: str(ranks), names.PREFLIGHT_ADDRESSES: json.dumps(addresses)},
        job_name="preflight",
        pool=row.pool.name,
        priority="low",
        only_node=row.node.name,
    )


def _advance(lease: Lease) -> None:
    row = NodePreflight.objects.select_related("node__cluster", "pool__cluster").get(pk=lease.pk)
    try:
        backend = backend_of(row.node.cluster)
        if _is_needed(row.pool):
            _stop(row, backend, Outcome.STOPPED, "a job needed the slots")
        elif row.submitted_at is None:
            _submit(row, backend)
        else:
            _observe(row, backend)
    except BackendUnavailable as error:
        log.warning("preflight %s is continued later: %s", row.pk, error)
    except (BackendRejected, ValueError) as error:
        _end(row, Outcome.FAILED, str(error))
    leases.release(NodePreflight, lease)


def _submit(row: NodePreflight, backend: Backend) -> None:
    handle = backend.submit(backend.render(_plan(row)))
    live().filter(pk=row.pk).update(backend_id=handle.backend_id, submitted_at=Now())
    if not live().filter(pk=row.pk).exists():  # an attempt was submitted meanwhile
        backend.cancel(handle, force=True)


def _observe(row: NodePreflight, backend: Backend) -> None:
    handle = _handle(row)
    answer = backend.observe([handle])[handle]
    waited = timezone.now() - (row.submitted_at or row.created_at)
    if answer.presence is Presence.FINISHED:
        _finish(row, backend, answer)
    elif answer.presence is Presence.ABSENT and waited > ABSENT_LIMIT:
        _end(row, Outcome.FAILED, "it disappeared from its cluster")
    elif answer.gives_up is not None:
        _stop(row, backend, Outcome.FAILED, f"its cluster did not start it: {answer.explanation}")
    elif answer.presence is Presence.PRESENT and answer.phase is Phase.PENDING and waited > START_LIMIT:
        because = answer.explanation or answer.native_reason
        _stop(row, backend, Outcome.FAILED, f"its cluster did not start it within {START_LIMIT}: {because}")
    elif waited > END_LIMIT:
        said = f": {answer.explanation}" if answer.explanation else ""
        _stop(row, backend, Outcome.FAILED, f"it did not end within {END_LIMIT}{said}")


def _finish(row: NodePreflight, backend: Backend, answer: Observation) -> None:
    output, cursor = "", None
    for _ in range(MAX_OUTPUT_PARTS):
        part = backend.logs(_handle(row), cursor)
        if not part.text:
            break
        output, cursor = output + part.text, part.cursor
    report = find_report(output)
    if report is None:
        last = output.strip().rpartition("\n")[2] or answer.explanation or answer.native_reason
        _end(row, Outcome.FAILED, f"it ended without a report, exit status {answer.exit_status}: {last}")
        return
    _end(row, Outcome(report.result), "", report.on_node(row.node.name))


def _stop(row: NodePreflight, backend: Backend, outcome: Outcome, detail: str) -> None:
    backend.cancel(_handle(row), force=True)
    _end(row, outcome, detail)


def _end(row: NodePreflight, outcome: Outcome, detail: str, report: PreflightReport | None = None) -> None:
    """Store the end, and what it says of the node, unless it has been stored."""
    stored = report.model_dump(mode="json") if report is not None else None
    with transaction.atomic():
        ended = (
            live()
            .filter(pk=row.pk)
            .update(ended_at=timezone.now(), outcome=outcome, detail=detail[:1000], report=stored)
        )
        if ended and report is not None:
            record_preflight(row.node.cluster, [row.node.name], report, job_id="", source_id=row.id)


def _give_up(identifier: str, message: str) -> None:
    live().filter(pk=identifier).update(ended_at=timezone.now(), outcome=Outcome.FAILED, detail=message[:1000])


def _handle(row: NodePreflight) -> Handle:
    return Handle(row.backend_name, row.backend_id or row.backend_name)
