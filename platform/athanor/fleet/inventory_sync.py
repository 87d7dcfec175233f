"""Sync the node inventory of clusters and check their health.

Each cluster is synced under a separate lease, so that a slow one does not delay the observation of jobs.
"""

import logging
import socket
from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from urllib.parse import urlsplit

from django.conf import settings
from django.db.models import F, Q, QuerySet
from django.db.models.functions import Now

from athanor.accounts.failures import run_isolated
from athanor.backends.base import Backend, BackendRejected, BackendUnavailable, ChecksHealth, DrainsNodes, ListsNodes
from athanor.backends.facts import Finding, HealthCheck, Level, NodeState
from athanor.clusters import services
from athanor.clusters.models import Cluster, InventorySync, Node
from athanor.core import leases, task_triggers
from athanor.dispatch.services import backend_of

log = logging.getLogger(__name__)

LEASE_SECONDS = 20.0  # longer than one call of a backend takes
CLUSTERS = 50
INVENTORY_INTERVAL = timedelta(seconds=60)
HEALTH_CHECK_INTERVAL = timedelta(minutes=10)
CONNECT_SECONDS = 2.0
LOOPBACK = ("127.", "localhost", "::1", "0.0.0.0")  # noqa: S104 - compared with, not bound


def due() -> QuerySet[InventorySync]:
    """Return the clusters for which an inventory or a health check is due."""
    nodes = Q(nodes_at__isnull=True) | Q(nodes_at__lte=Now() - INVENTORY_INTERVAL)
    health_check = Q(probed_at__isnull=True) | Q(probed_at__lte=Now() - HEALTH_CHECK_INTERVAL)
    return InventorySync.objects.filter(nodes | health_check)


def sync_due() -> None:
    """Sync the inventory and check the health of up to CLUSTERS due clusters, the longest waiting first."""
    new = Cluster.objects.filter(inventory_sync__isnull=True)
    InventorySync.objects.bulk_create([InventorySync(cluster=cluster) for cluster in new], ignore_conflicts=True)
    ordered = due().order_by(F("nodes_at").asc(nulls_first=True))
    for lease in leases.claim_each(ordered, seconds=LEASE_SECONDS, limit=CLUSTERS):
        run_isolated(
            task_triggers.SYNC_INVENTORY,
            f"syncing cluster {lease.pk}",
            partial(_sync, lease),
            held=(InventorySync, lease),
        )


def check_health(cluster: Cluster) -> HealthCheck | None:
    """Run a health check of a cluster without storing it. Return None if its backend has no health check."""
    backend = backend_of(cluster)
    if not isinstance(backend, ChecksHealth):
        return None
    try:
        found = backend.check_health()
    except BackendUnavailable as error:
        remedy = "check that the cluster runs, and that its configuration names where it is reached"
        found = HealthCheck("", (Finding("answer", Level.ERROR, str(error), remedy),))
    return HealthCheck(found.version, (*found.findings, *_check_connectivity(cluster.kind)), found.facts)


def refresh_nodes(cluster: Cluster) -> None:
    """Store the present nodes of a cluster and drain quarantined ones there. Raise BackendUnavailable."""
    backend = backend_of(cluster)
    if isinstance(backend, ListsNodes):
        services.store_nodes(cluster, backend.nodes())
        if isinstance(backend, DrainsNodes):
            _drain_quarantined(cluster, backend)


def _sync(lease: leases.Lease) -> None:
    """Sync the inventory, then check the health if that is due. Each result is stored immediately, so that an error of
    one does not affect the other."""
    row = InventorySync.objects.select_related("cluster").get(pk=lease.pk)
    problem = ""
    try:
        refresh_nodes(row.cluster)
    except BackendUnavailable as error:
        problem = str(error)
        log.warning("syncing the nodes of cluster %s failed and is retried: %s", row.cluster, error)
    except Exception as error:  # shown with the cluster; the others are synced
        log.exception("syncing the nodes of cluster %s failed and is retried", row.cluster)
        problem = f"{type(error).__name__}: {error}"
    InventorySync.objects.filter(pk=row.pk).update(nodes_at=Now(), problem=problem[:1000])
    is_check_due = (
        due().filter(Q(probed_at__isnull=True) | Q(probed_at__lte=Now() - HEALTH_CHECK_INTERVAL), pk=row.pk).exists()
    )
    if is_check_due and leases.renew(InventorySync, lease, seconds=LEASE_SECONDS):
        InventorySync.objects.filter(pk=row.pk).update(probed_at=Now())
        found = check_health(row.cluster)
        if found is not None:
            services.store_health_check(row.cluster, found)
    leases.release(InventorySync, lease)


def _drain_quarantined(cluster: Cluster, backend: Backend) -> None:
    """Drain quarantined nodes that are not drained on the cluster, because somebody undrained them there or the cluster
    did not respond when they were quarantined. Nodes that are down are included."""
    assert isinstance(backend, DrainsNodes)
    quarantined = Node.objects.filter(cluster=cluster, quarantined_at__isnull=False, listed=True)
    for node in quarantined.exclude(state=NodeState.DRAINED.value):
        try:
            backend.drain(node.name, node.quarantine_reason)
        except (BackendRejected, BackendUnavailable) as error:
            log.warning("quarantined node %s of %s is drained in a later sync: %s", node, cluster, error)


def _check_connectivity(kind: str) -> Iterator[Finding]:
    """Check whether nodes can reach the platform and the store, as far as the configuration shows."""
    for check, target, url, variable in (
        ("platform_address", "the platform", settings.ATHANOR.public_url, "ATHANOR_PUBLIC_URL"),
        ("object_store", "the object store", settings.ATHANOR.s3_endpoint, "ATHANOR_S3_ENDPOINT"),
    ):
        if not url:
            continue  # AWS: the endpoint follows from the region
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
        try:
            socket.create_connection((host, port), timeout=CONNECT_SECONDS).close()
        except OSError as error:
            detail = f"{target} cannot be reached at {url} from the server: {error}"
            yield Finding(check, Level.WARNING, detail, f"start it, or fix {variable}")
            continue
        if kind != "local" and host.startswith(LOOPBACK):
            detail = f"nodes are given {url} for {target}, which is the node itself"
            remedy = f"set {variable} to an address that all nodes reach, unless they are this machine"
            yield Finding(check, Level.WARNING, detail, remedy)
        else:
            yield Finding(check, Level.OK, f"{target} responds at {url} from the server")
