"""Nodes that a cluster has removed from a run that continues without them are requested again.

The run grows back when the agent on the new node joins its rendezvous (dispatch/rendezvous_rounds.py). For clusters
that do so only if they are asked (`ReplacesNodes`). A request is recorded before it is submitted, and the submission is
idempotent, so that any worker can repeat it where another was killed. One that the cluster has ended before an agent
joined is over, and followed by the next. The slots of the lost node remain reserved. A node may also be lost before its
agent has joined, if the run began without it.
"""

import logging
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial

from django.db.models import F, QuerySet, Sum
from django.db.models.functions import Now

from athanor.accounts.failures import run_isolated
from athanor.backends.base import Backend, BackendRejected, BackendUnavailable, Presence, ReplacesNodes
from athanor.core import clock, leases, task_triggers
from athanor.core.leases import Lease
from athanor.dispatch import node_preflights
from athanor.dispatch.services import backend_of, handle_of, launch_plan_of, locked, nodes_to_avoid, spec_of
from athanor.jobs import events
from athanor.jobs.models import Attempt, AttemptNode
from athanor.jobs.states import AttemptStatus, Desired, JobStatus
from athanor.telemetry.models import Heartbeat

log = logging.getLogger(__name__)

LEASE_SECONDS = 20.0  # renewed with each request: longer than a backend takes for one call
BATCH = 20
MAX_REPLACEMENTS = 3  # of each node index of an attempt
SILENT_FOR = timedelta(seconds=30)  # the agent of a lost node may run longer than its cluster knows
MIN_TIME_LEFT = timedelta(minutes=1)


def replace_due() -> None:
    """Request nodes for attempts that have lost some, and cancel requests of attempts that have ended."""
    for attempt in to_replace().select_related("job").order_by("id"):
        if not (_lost(attempt) or _unsubmitted(attempt.pk) or _unanswered(attempt)):
            continue
        for lease in leases.claim(Attempt.objects.filter(pk=attempt.pk), seconds=LEASE_SECONDS, limit=1):
            run_isolated(
                task_triggers.OBSERVE, f"replacing nodes of attempt {lease.pk}", partial(_replace, lease),
                held=(Attempt, lease),
            )  # fmt: skip
    for lease in leases.claim_each(_to_cancel().order_by("id"), seconds=LEASE_SECONDS, limit=BATCH):
        run_isolated(
            task_triggers.OBSERVE, f"cancelling replacements of attempt {lease.pk}", partial(_cancel, lease),
            held=(Attempt, lease),
        )  # fmt: skip


def to_replace() -> QuerySet[Attempt]:
    """Return the attempts that have lost nodes and are to continue."""
    return Attempt.objects.filter(
        status=AttemptStatus.RUNNING.value, end_report__isnull=True, job__status=JobStatus.RUNNING.value,
        job__desired=Desired.RUN.value,
    ).exclude(lost_nodes=[])  # fmt: skip


def _to_cancel() -> QuerySet[Attempt]:
    requested = AttemptNode.objects.filter(replacement_requested_at__isnull=False)
    return Attempt.objects.filter(pk__in=requested.values("attempt"), status=AttemptStatus.ENDED.value)


def _unsubmitted(attempt_id: str) -> list[AttemptNode]:
    requested = AttemptNode.objects.filter(
        attempt=attempt_id, replacement_requested_at__isnull=False, replacement_submitted_at__isnull=True
    )
    return list(requested.order_by("node_index"))


def _unanswered(attempt: Attempt) -> list[AttemptNode]:
    """Return the nodes with a submitted request, not the last possible one, after which no agent has joined."""
    submitted = AttemptNode.objects.filter(attempt=attempt, replacement_submitted_at__isnull=False)
    return list(submitted.filter(replacement_requested_at__gte=F("joined_at"), replacements__lt=MAX_REPLACEMENTS))


def _lost(attempt: Attempt) -> list[AttemptNode]:
    """Return the lost nodes to request again: their agents are silent, and there is no open request for them.

    A request was answered when an agent has joined since. Agents are not trusted with their names: what the cluster
    has removed limits how many are requested.
    """
    now, resources = clock.database_now(), spec_of(attempt.job).resources
    if resources.min_nodes is None and not resources.spare_nodes:
        return []
    if _ends_at(attempt) - now < MIN_TIME_LEFT:
        return []
    requested = AttemptNode.objects.filter(attempt=attempt).aggregate(sum=Sum("replacements", default=0))["sum"]
    missing = resources.nodes + resources.spare_nodes - len(attempt.native_nodes)
    limit = max(0, min(missing, MAX_REPLACEMENTS * len(attempt.lost_nodes) - requested))
    beating = Heartbeat.objects.filter(attempt=attempt, received_at__gt=now - SILENT_FOR)
    due = AttemptNode.objects.filter(attempt=attempt, name__in=attempt.lost_nodes, replacements__lt=MAX_REPLACEMENTS)
    due = due.exclude(node_index__in=beating.values("node_rank"))
    found = [
        node for node in due.order_by("node_index")
        if node.replacement_requested_at is None or node.replacement_requested_at < node.joined_at
    ]  # fmt: skip
    return [*found, *_lost_before_they_joined(attempt, resources.nodes + resources.spare_nodes)][:limit]


def _lost_before_they_joined(attempt: Attempt, total: int) -> list[AttemptNode]:
    """Return the lost nodes of which no agent has joined, which are not in the database.

    Empty while other nodes have not joined either: which of them has which index is not known.
    """
    known = dict(AttemptNode.objects.filter(attempt=attempt).values_list("node_index", "name"))
    indexes = [index for index in range(total) if index not in known]
    names = [name for name in attempt.lost_nodes if name not in known.values()]
    if len(indexes) != len(names):
        return []
    began = attempt.launched_at or attempt.created_at
    facts = {"attempt": attempt, "round": 0, "address": "", "store_port": 0, "joined_at": began, "seen_at": began}
    return [AttemptNode(node_index=index, name=name, **facts) for index, name in zip(indexes, names, strict=True)]


def _ends_at(attempt: Attempt) -> datetime:
    return (attempt.launched_at or attempt.created_at) + timedelta(seconds=spec_of(attempt.job).time_limit_seconds)


def _replace(lease: Lease) -> None:
    attempt = Attempt.objects.select_related("job__pool__cluster", "job__team").get(pk=lease.pk)
    try:
        backend = backend_of(attempt.job.pool.cluster)
    except ValueError as error:  # its operator must act; the job is not to blame
        log.warning("nodes of attempt %s are replaced later, its cluster cannot be used: %s", attempt.id, error)
        return
    if not isinstance(backend, ReplacesNodes):
        leases.release(Attempt, lease)
        return
    _close_ended(attempt, backend)
    if _record(lease):
        node_preflights.stop_all(attempt.job.pool.cluster, backend)  # as before any submission
        for node in _unsubmitted(attempt.pk):
            if not leases.renew(Attempt, lease, seconds=LEASE_SECONDS):
                return  # this worker was paused for too long: another worker continues
            try:
                _submit(attempt, node, backend, backend)
            except BackendUnavailable as error:
                log.warning("node %d of attempt %s is replaced later: %s", node.node_index, attempt.id, error)
                break
    leases.release(Attempt, lease)


def _close_ended(attempt: Attempt, backend: Backend) -> None:
    """Close the requests that the cluster has ended before an agent joined, so that others may follow."""
    unanswered = _unanswered(attempt)
    if not unanswered:
        return
    handle = handle_of(attempt)
    try:
        answer = backend.observe([handle])[handle]
    except BackendUnavailable as error:
        log.warning("requests of nodes of attempt %s are looked at later: %s", attempt.id, error)
        return
    if answer.presence is not Presence.PRESENT or answer.replacements is None:
        return
    for node in unanswered:
        if (node.node_index, node.replacements) not in answer.replacements:
            log.info("the request of node %d of attempt %s ended before its agent joined", node.node_index, attempt.id)
            same = AttemptNode.objects.filter(pk=node.pk, replacements=node.replacements)
            same.update(replacement_requested_at=None, replacement_submitted_at=None)


def _record(lease: Lease) -> bool:
    """Record which nodes are requested. Return False if the attempt is not to continue, or the lease is stale."""
    with locked(lease.pk) as (job, row):
        attempt = to_replace().filter(pk=row.pk, lease_token=lease.token, lease_until__gt=Now()).first()
        if attempt is None:
            return False
        for node in _lost(attempt):
            node.replacements += 1
            AttemptNode.objects.bulk_create([node], ignore_conflicts=True)  # where its agent had never joined
            AttemptNode.objects.filter(attempt=attempt, node_index=node.node_index).update(
                replacements=node.replacements, replacement_requested_at=Now(), replacement_submitted_at=None
            )
            facts = {
                "attempt": attempt.id, "node_index": node.node_index, "node": node.name, "number": node.replacements
            }  # fmt: skip
            events.append(job, "attempt.node_requested", actor="dispatch", data=facts)
        job.save(update_fields=["event_seq", "updated_at"])
    return True


def _submit(attempt: Attempt, node: AttemptNode, backend: Backend, replacing: ReplacesNodes) -> None:
    # Not beside another agent of the attempt: a node is lost with all that runs there.
    avoided = tuple(sorted({*nodes_to_avoid(attempt.job), *attempt.native_nodes}))
    left = max(_ends_at(attempt) - clock.database_now(), MIN_TIME_LEFT)
    plan = replace(launch_plan_of(attempt, avoided), time_limit_seconds=int(left.total_seconds()))
    try:
        handle = backend.submit(replacing.render_replacement(plan, node.node_index, node.replacements))
    except BackendRejected as error:
        _refuse(attempt, node, str(error))
        return
    AttemptNode.objects.filter(pk=node.pk).update(replacement_submitted_at=Now())
    log.info("node %d of attempt %s is replaced by %s", node.node_index, attempt.id, handle.backend_id)


def _refuse(attempt: Attempt, node: AttemptNode, message: str) -> None:
    with locked(attempt.pk) as (job, _):
        AttemptNode.objects.filter(pk=node.pk).update(replacements=MAX_REPLACEMENTS, replacement_submitted_at=Now())
        facts = {"attempt": attempt.id, "node_index": node.node_index, "because": message}
        events.append(job, "attempt.node_refused", actor="dispatch", data=facts)
        job.save(update_fields=["event_seq", "updated_at"])


def _cancel(lease: Lease) -> None:
    """End what is left of the requests of an attempt that has ended."""
    attempt = Attempt.objects.select_related("job__pool__cluster").get(pk=lease.pk)
    try:
        backend_of(attempt.job.pool.cluster).cancel(handle_of(attempt), force=True)
    except ValueError as error:  # as above
        log.warning("replacements of attempt %s are cancelled later: %s", attempt.id, error)
        return
    except BackendUnavailable as error:
        log.warning("replacements of attempt %s are cancelled later: %s", attempt.id, error)
    else:
        AttemptNode.objects.filter(attempt=attempt).update(replacement_requested_at=None)
    leases.release(Attempt, lease)
