"""Changes of nodes: incidents, quarantine, inventory sync and health checks."""

from collections.abc import Collection, Sequence
from dataclasses import asdict
from datetime import timedelta

from django.db import transaction
from django.db.models import Count, Q
from django.utils import timezone

from athanor.backends.facts import HealthCheck, NodeFacts, NodeState
from athanor.clusters.models import Cluster, ClusterHealthCheck, Node, NodeIncident
from athanor.clusters.node_score import BROKEN_IN_PREFLIGHT, MEASURED, PASSED_PREFLIGHT, SLOW_IN_PREFLIGHT
from trainer.contract.preflight import PreflightReport

FORGET_NODES_AFTER = timedelta(days=30)
MAX_STORED_HEALTH_CHECKS = 200  # per cluster
MAX_VERSION_LENGTH = 200
# What an inventory writes when it differs; a change of these alone is news.
REPORTED = (
    "state", "reason", "pools", "accelerator", "slots", "slots_used", "cpus", "memory_bytes",
    "accelerator_memory_bytes", "topology", "labels",
    "listed",
)  # fmt: skip


def record_incidents(
    cluster: Cluster, nodes: Collection[str], kind: str, *, job_id: str, attempt_id: str, detail: str = ""
) -> None:
    """Record that an attempt ended or hung on these nodes, probably by their fault. Idempotent per attempt and `kind`.

    A node that no inventory has named is recorded too.
    """
    if not nodes:
        return
    names = sorted(set(nodes))
    Node.objects.bulk_create([Node(cluster=cluster, name=name) for name in names], ignore_conflicts=True)
    hit = Node.objects.filter(cluster=cluster, name__in=names)
    facts = {"kind": kind, "time": timezone.now(), "detail": detail, "job_id": job_id, "attempt_id": attempt_id}
    NodeIncident.objects.bulk_create([NodeIncident(node=node, **facts) for node in hit], ignore_conflicts=True)


def record_preflight(
    cluster: Cluster, nodes: Collection[str], report: PreflightReport, *, job_id: str, source_id: str
) -> None:
    """Record what a preflight found of these nodes: an incident of each that is slow, and, where there is a score that
    it lowers, that nothing was found of the others. `source_id`: of the attempt, or of the preflight without a job, of
    which a broken node has an incident too; in an attempt the end of it is one."""
    faults = {SLOW_IN_PREFLIGHT: "slow"} if job_id else {SLOW_IN_PREFLIGHT: "slow", BROKEN_IN_PREFLIGHT: "broken"}
    facts = {"job_id": job_id, "attempt_id": source_id}
    for finding in report.findings:
        for kind, severity in faults.items():
            if finding.severity == severity:
                found = set(nodes) & set(finding.nodes)
                record_incidents(cluster, found, kind, **facts, detail=finding.because)
    passed = set(nodes) - report.at_fault("slow") - report.at_fault("broken")
    scored = NodeIncident.objects.filter(node__cluster=cluster, node__name__in=passed, kind__in=list(MEASURED))
    names = set(scored.values_list("node__name", flat=True))
    # No job is affected: it is not an incident of one.
    record_incidents(cluster, names, PASSED_PREFLIGHT, job_id="", attempt_id=source_id)


def quarantined_names(cluster: Cluster) -> tuple[str, ...]:
    """Return the sorted nodes that a new attempt must avoid: `avoid_nodes` of its plan."""
    quarantined = Node.objects.filter(cluster=cluster, quarantined_at__isnull=False)
    return tuple(quarantined.order_by("name").values_list("name", flat=True))


def note(node: Node, kind: str, *, actor: str = "", detail: str = "") -> None:
    """Record an action on a node, or an observation of it."""
    NodeIncident.objects.create(node=node, kind=kind, time=timezone.now(), actor=actor, detail=detail)


def locked(cluster: Cluster) -> bool:
    """Lock the cluster's row and return whether it exists. Code that writes its nodes or deletes it locks it first."""
    return bool(Cluster.objects.select_for_update().filter(pk=cluster.pk).values_list("pk"))


@transaction.atomic
def store_nodes(cluster: Cluster, reported: Sequence[NodeFacts]) -> None:
    """Store an inventory and record changes of state. Nodes that are no longer listed remain for 30 days."""
    if not locked(cluster):
        return
    now = timezone.now()
    known = {node.name: node for node in Node.objects.select_for_update(no_key=True).filter(cluster=cluster)}
    new, changed = [], []
    for facts in reported:
        node = known.get(facts.name)
        if node is None:
            new.append(_apply_facts(Node(cluster=cluster, name=facts.name, seen_at=now), facts))
            continue
        before = _reported(node)
        state = node.state if node.listed else ""
        _apply_facts(node, facts)
        if _reported(node) != before:
            changed.append(node)
        if state and state != node.state:
            note(node, node.state, detail=node.reason)
    names = {facts.name for facts in reported}
    lost = [node for node in known.values() if node.listed and node.name not in names]
    for node in lost:
        node.listed, node.state, node.reason, node.slots_used = False, NodeState.UNKNOWN.value, "", 0
        note(node, "unlisted")
    Node.objects.bulk_create(new, ignore_conflicts=True)  # an incident may have named it this moment
    Node.objects.bulk_update([*changed, *lost], REPORTED, batch_size=500)
    Node.objects.filter(cluster=cluster, name__in=names).update(seen_at=now)
    Node.objects.filter(
        cluster=cluster, listed=False, quarantined_at__isnull=True, seen_at__lt=now - FORGET_NODES_AFTER
    ).delete()


@transaction.atomic
def store_health_check(cluster: Cluster, found: HealthCheck) -> ClusterHealthCheck:
    """Store a health check: a new record if its result changed, otherwise update the last one."""
    now = timezone.now()
    version, findings = found.version[:MAX_VERSION_LENGTH], [asdict(finding) for finding in found.findings]
    facts = {
        "seen_at": now,
        "usable": found.is_usable,
        "version": version,
        "facts": dict(found.facts),
        "findings": findings,
    }
    Cluster.objects.select_for_update(no_key=True).get(pk=cluster.pk)
    last = latest_health_check(cluster)
    if last is not None and _comparable(last.version, last.findings) == _comparable(version, findings):
        for name, value in facts.items():
            setattr(last, name, value)
        last.save(update_fields=list(facts))
        return last
    made = ClusterHealthCheck.objects.create(cluster=cluster, began_at=now, **facts)
    newest = (
        ClusterHealthCheck.objects.filter(cluster=cluster)
        .order_by("-pk")
        .values_list("pk", flat=True)[:MAX_STORED_HEALTH_CHECKS]
    )
    ClusterHealthCheck.objects.filter(cluster=cluster).exclude(pk__in=list(newest)).delete()
    return made


def latest_health_check(cluster: Cluster) -> ClusterHealthCheck | None:
    """Return the cluster's last health check; None before the first."""
    return ClusterHealthCheck.objects.filter(cluster=cluster).order_by("-pk").first()


def _comparable(version: str, findings: Sequence[dict[str, str]]) -> tuple[str, list[tuple[str, str]]]:
    """Return the part of a health check that distinguishes results; disk sizes and the like always change."""
    return version, [(finding["check"], str(finding["level"])) for finding in findings]


def _reported(node: Node) -> list[object]:
    return [getattr(node, name) for name in REPORTED]


def _apply_facts(node: Node, facts: NodeFacts) -> Node:
    node.state, node.reason = facts.state.value, facts.reason
    node.pools, node.topology, node.labels = list(facts.pools), list(facts.topology), dict(facts.labels)
    node.accelerator, node.slots, node.slots_used = facts.accelerator, facts.slots, facts.slots_used
    node.cpus, node.memory_bytes, node.listed = facts.cpus, facts.memory_bytes, True
    node.accelerator_memory_bytes = facts.accelerator_memory_bytes
    return node


def offending_names(cluster: Cluster, job_id: str, incidents: int, serious: Collection[str]) -> tuple[str, ...]:
    """Return the nodes on which a job had at least this many incidents, or one of a `serious` kind.

    Those with the most serious incidents come first, then those with the most incidents.
    """
    hit = Node.objects.filter(cluster=cluster, incidents__job_id=job_id).annotate(
        count=Count("incidents"), serious=Count("incidents", filter=Q(incidents__kind__in=list(serious)))
    )
    worst = hit.filter(Q(count__gte=incidents) | Q(serious__gt=0)).order_by("-serious", "-count", "name")
    return tuple(worst.values_list("name", flat=True))
