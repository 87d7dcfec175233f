"""Queries of clusters, pools and nodes, and suggestions derived from them."""

from collections import defaultdict
from dataclasses import dataclass
from datetime import datetime, timedelta
from difflib import get_close_matches

from django.db.models import Count, F, Q, QuerySet, Sum
from django.utils import timezone
from django.utils.text import slugify

from athanor.backends.facts import NodeState
from athanor.clusters.models import Cluster, ClusterHealthCheck, InventorySync, Node, NodeIncident, NodePreflight, Pool
from athanor.clusters.node_score import COUNTED_FOR, PASSED_PREFLIGHT, WEIGHTS, Incident, NodeScore, score
from athanor.core.errors import FieldProblem, Invalid, NotFound
from athanor.core.rows import columns_of, loaded, select

# By hand, because each submit needs it.
POOL_FOR = f"""
    SELECT {columns_of(Pool, "pool")}, cluster.name AS cluster_name
    FROM clusters_pool pool JOIN clusters_cluster cluster ON cluster.id = pool.cluster_id
    WHERE cluster.enabled AND pool.accelerator = %(accelerator)s
        AND (%(cluster)s::text IS NULL OR cluster.name = %(cluster)s)
    ORDER BY cluster.name, pool.name LIMIT 1
"""  # noqa: S608 - names of our own columns
SUSPECT_WINDOW = timedelta(hours=24)
SUSPECT_JOBS = 3
RECENT = timedelta(hours=24)


@dataclass(frozen=True)
class Proposal:
    """A pool that a cluster could have, derived from its nodes."""

    name: str
    accelerator: str
    nodes: int
    slots_per_node: int
    memory_bytes: int
    accelerator_memory_bytes: int | None


@dataclass(frozen=True)
class NodeGroup:
    """Counts of nodes with one state and accelerator. `open_slots` are those of nodes that are not quarantined."""

    state: str
    accelerator: str
    nodes: int
    all_slots: int
    used_slots: int
    quarantined: int
    open_slots: int


@dataclass
class Capacity:
    """Totals of a cluster's listed nodes with one accelerator.

    `usable_slots` are those of ready nodes that are not quarantined.
    """

    accelerator: str
    nodes: int = 0
    slots: int = 0
    slots_used: int = 0
    usable_slots: int = 0


def enabled_clusters() -> QuerySet[Cluster]:
    """Return the enabled clusters with their pools, by name."""
    return Cluster.objects.filter(enabled=True).prefetch_related("pools").order_by("name")


def all_clusters() -> QuerySet[Cluster]:
    """Return all clusters with their pools, disabled ones included, by name."""
    return Cluster.objects.prefetch_related("pools").order_by("name")


def pools_of(cluster: Cluster) -> list[Pool]:
    """Return the pools of a cluster by name, prefetched or not."""
    return sorted(cluster.pools.all(), key=lambda pool: pool.name)


def health_checks_of(cluster: Cluster) -> QuerySet[ClusterHealthCheck]:
    """Return the stored health checks of a cluster."""
    return ClusterHealthCheck.objects.filter(cluster=cluster)


def nodes_of(cluster: Cluster, *, name_part: str = "", state: str = "") -> QuerySet[Node]:
    """Return the nodes of a cluster by name. `state` is a state, or `quarantined`; empty values do not filter."""
    rows = Node.objects.filter(cluster=cluster).order_by("name")
    if name_part:
        rows = rows.filter(name__icontains=name_part)
    if state == "quarantined":
        rows = rows.filter(quarantined_at__isnull=False)
    elif state:
        rows = rows.filter(state=state)
    return rows


def node_of(cluster: Cluster, name: str) -> Node:
    """Return a node of a cluster by name. Raises NotFound."""
    node = Node.objects.filter(cluster=cluster, name=name).first()
    if node is None:
        raise NotFound("node", name)
    return node


def listed_nodes(cluster: Cluster) -> list[Node]:
    """Return the nodes that the last inventory of a cluster listed."""
    return list(Node.objects.filter(cluster=cluster, listed=True))


def inventory_sync_of(cluster: Cluster) -> InventorySync | None:
    """Return when a cluster was last synced and checked, None before the first time."""
    return InventorySync.objects.filter(cluster=cluster).first()


def incidents_of(node: Node, limit: int) -> list[NodeIncident]:
    """Return up to `limit` incidents of a node, newest first."""
    return list(NodeIncident.objects.filter(node=node).order_by("-time", "-id")[:limit])


def preflights_of(node: Node, limit: int) -> list[NodePreflight]:
    """Return up to `limit` preflights of a node outside jobs, newest first."""
    return list(NodePreflight.objects.filter(node=node).select_related("pool").order_by("-created_at")[:limit])


def recent_hits(cluster: Cluster) -> dict[int, int]:
    """Return the number of jobs that had an incident on each node within RECENT, by id of the node."""
    recent = NodeIncident.objects.filter(node__cluster=cluster, time__gte=timezone.now() - RECENT).exclude(job_id="")
    jobs: dict[int, set[str]] = {}
    for node_id, job_id in recent.values_list("node_id", "job_id"):
        jobs.setdefault(node_id, set()).add(job_id)
    return {node_id: len(job_ids) for node_id, job_ids in jobs.items()}


def scores_of(cluster: Cluster) -> dict[str, NodeScore]:
    """Return the scores of the nodes with incidents that count, by name of the node."""
    now = timezone.now()
    kinds = [*WEIGHTS, PASSED_PREFLIGHT]
    rows = NodeIncident.objects.filter(node__cluster=cluster, kind__in=kinds, time__gte=now - COUNTED_FOR)
    by_node: dict[tuple[str, datetime | None], list[Incident]] = defaultdict(list)
    columns = ("node__name", "node__released_at", "kind", "time", "job_id")
    for name, released_at, kind, time, job_id in rows.values_list(*columns):
        by_node[name, released_at].append(Incident(kind, time, job_id))
    return {name: score(incidents, released_at, now) for (name, released_at), incidents in by_node.items()}


def enabled_pools() -> QuerySet[Pool]:
    """Return the pools of enabled clusters, by cluster and pool."""
    return Pool.objects.filter(cluster__enabled=True).select_related("cluster").order_by("cluster__name", "name")


def accelerators() -> set[str]:
    """Return the names of the accelerators of all pools, also of disabled clusters."""
    return set(Pool.objects.values_list("accelerator", flat=True))


def pool_for(cluster_name: str | None, accelerator: str) -> Pool:
    """Return the pool for a spec's `resources`; without a cluster, the first one with the accelerator."""
    for pool in select(Pool, POOL_FOR, {"cluster": cluster_name, "accelerator": accelerator}, "cluster_name"):
        pool.cluster = loaded(Cluster, id=pool.cluster_id, name=vars(pool)["cluster_name"])
        return pool
    raise _no_pool(list(enabled_pools()), cluster_name, accelerator)


def _no_pool(pools: list[Pool], cluster_name: str | None, accelerator: str) -> Invalid:
    names = sorted({pool.cluster.name for pool in pools})
    if cluster_name is not None:
        if Cluster.objects.filter(name=cluster_name, enabled=False).exists():
            detail = f"cluster {cluster_name!r} is disabled and takes no new jobs"
            problem = FieldProblem("/resources/cluster", "cluster_disabled", detail)
            remedy = f"name another: {', '.join(names) or 'there is none'}"
            return Invalid("invalid_spec", detail, remedy=remedy, problems=(problem,))
        if cluster_name not in names:
            return _unknown("/resources/cluster", "cluster", cluster_name, names)
        pools = [pool for pool in pools if pool.cluster.name == cluster_name]
    return _unknown("/resources/accelerator", "accelerator", accelerator, sorted({p.accelerator for p in pools}))


def _unknown(pointer: str, what: str, value: str, choices: list[str]) -> Invalid:
    nearest = get_close_matches(value, choices, n=1)
    hint = f"did you mean {nearest[0]!r}?" if nearest else f"there is: {', '.join(choices) or 'none'}"
    problem = FieldProblem(pointer, f"unknown_{what}", f"{what} {value!r} is not here; {hint}")
    return Invalid("invalid_spec", problem.detail, remedy=hint, problems=(problem,))


def suspects(cluster: Cluster) -> dict[str, int]:
    """Return the nodes that had incidents with SUSPECT_JOBS or more jobs within SUSPECT_WINDOW, with the number.

    An administrator should check whether to quarantine them.
    """
    since = timezone.now() - SUSPECT_WINDOW
    lately = Q(incidents__time__gte=since) & ~Q(incidents__job_id="")
    since_release = Q(released_at__isnull=True) | Q(incidents__time__gt=F("released_at"))
    hit = Node.objects.filter(lately & since_release, cluster=cluster, quarantined_at__isnull=True).values("name")
    counted = hit.annotate(jobs=Count("incidents__job_id", distinct=True)).filter(jobs__gte=SUSPECT_JOBS)
    return {row["name"]: row["jobs"] for row in counted.order_by("name")}


def node_groups(cluster: Cluster) -> list[NodeGroup]:
    """Return counts of the listed nodes: a cluster may have thousands."""
    quarantined = Q(quarantined_at__isnull=False)
    rows = Node.objects.filter(cluster=cluster, listed=True).values("state", "accelerator").order_by("accelerator")
    counted = rows.annotate(
        nodes=Count("pk"),
        all_slots=Sum("slots"),
        used_slots=Sum("slots_used"),
        quarantined=Count("pk", filter=quarantined),
        open_slots=Sum("slots", filter=~quarantined, default=0),
    )
    return [NodeGroup(**row) for row in counted]


def capacity(groups: list[NodeGroup]) -> list[Capacity]:
    """Return the totals by accelerator, in the order of their names."""
    found: dict[str, Capacity] = {}
    for group in groups:
        row = found.setdefault(group.accelerator, Capacity(group.accelerator))
        row.nodes += group.nodes
        row.slots += group.all_slots
        row.slots_used += group.used_slots
        if group.state == NodeState.READY.value:
            row.usable_slots += group.open_slots
    return list(found.values())


def proposals(cluster: Cluster, nodes: list[Node]) -> list[Proposal]:
    """Propose a pool for each group and accelerator of the backend's nodes that has none yet."""
    groups: dict[tuple[str, str], list[Node]] = defaultdict(list)
    for node in nodes:
        if node.listed and node.slots:
            for group in node.pools or [""]:
                groups[group, node.accelerator].append(node)
    kinds: dict[str, int] = defaultdict(int)
    for group, _ in groups:
        kinds[group] += 1
    there = {pool.name for pool in cluster.pools.all()}
    found = []
    for (group, accelerator), members in sorted(groups.items()):
        parts = [group, accelerator if kinds[group] > 1 or not group else ""]
        name = slugify("-".join(filter(None, parts)).replace(":", "-").replace("/", "-").replace(".", "-"))[:63]
        if name and name not in there:
            slots = min(node.slots for node in members)
            memory = min(node.memory_bytes for node in members)
            # 0 is unknown: nothing is known of the pool unless every node says it.
            device = min(node.accelerator_memory_bytes for node in members) or None
            found.append(Proposal(name, accelerator, len(members), slots, memory, device))
    return found
