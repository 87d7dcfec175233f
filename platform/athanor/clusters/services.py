"""What happens to nodes: incidents, quarantine, what an inventory or an examination says of them."""

from collections.abc import Collection

from django.utils import timezone

from athanor.clusters.models import Cluster, Node, NodeIncident


def record_incidents(
    cluster: Cluster, nodes: Collection[str], kind: str, *, job_id: str, attempt_id: str, detail: str = ""
) -> None:
    """An attempt ended on these nodes by what looks like their fault. Once for an attempt, however often it is told.

    A node that no inventory has named is recorded too.
    """
    if not nodes:
        return
    names = sorted(set(nodes))
    Node.objects.bulk_create([Node(cluster=cluster, name=name) for name in names], ignore_conflicts=True)
    hit = Node.objects.filter(cluster=cluster, name__in=names)
    facts = {"kind": kind, "time": timezone.now(), "detail": detail, "job_id": job_id, "attempt_id": attempt_id}
    NodeIncident.objects.bulk_create([NodeIncident(node=node, **facts) for node in hit], ignore_conflicts=True)


def quarantined_names(cluster: Cluster) -> tuple[str, ...]:
    """The nodes that a new attempt must not use, sorted: `avoid_nodes` of its plan."""
    quarantined = Node.objects.filter(cluster=cluster, quarantined_at__isnull=False)
    return tuple(quarantined.order_by("name").values_list("name", flat=True))
