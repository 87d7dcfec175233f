"""Sync the node inventory of clusters and check their health.

Under a lease of its own, so that a slow cluster does not delay the observation of jobs.
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
from athanor.clusters.models import Cluster, Node, Survey
from athanor.core import leases, task_triggers
from athanor.dispatch.services import backend_of

log = logging.getLogger(__name__)

LEASE_SECONDS = 20.0  # of one call: longer than a backend takes
CLUSTERS = 50
NODES_EVERY = timedelta(seconds=60)
PROBE_EVERY = timedelta(minutes=10)
CONNECT_SECONDS = 2.0
LOOPBACK = ("127.", "localhost", "::1", "0.0.0.0")  # noqa: S104 - looked for, not listened at


def due() -> QuerySet[Survey]:
    """Return the clusters for which an inventory or a health check is due."""
    nodes = Q(nodes_at__isnull=True) | Q(nodes_at__lte=Now() - NODES_EVERY)
    probe = Q(probed_at__isnull=True) | Q(probed_at__lte=Now() - PROBE_EVERY)
    return Survey.objects.filter(nodes | probe)


def survey_due() -> None:
    """Sync the inventory and check the health of up to CLUSTERS due clusters, the longest waiting first."""
    new = Cluster.objects.filter(survey__isnull=True)
    Survey.objects.bulk_create([Survey(cluster=cluster) for cluster in new], ignore_conflicts=True)
    ordered = due().order_by(F("nodes_at").asc(nulls_first=True))
    for lease in leases.claim_each(ordered, seconds=LEASE_SECONDS, limit=CLUSTERS):
        run_isolated(
            task_triggers.SYNC_INVENTORY, f"surveying cluster {lease.pk}", partial(_survey, lease), held=(Survey, lease)
        )


def look(cluster: Cluster) -> HealthCheck | None:
    """Examine a cluster now; None when its backend cannot be examined. Stores nothing."""
    backend = backend_of(cluster)
    if not isinstance(backend, ChecksHealth):
        return None
    try:
        found = backend.check_health()
    except BackendUnavailable as error:
        remedy = "check that the cluster runs, and that its configuration names where it is reached"
        found = HealthCheck("", (Finding("answer", Level.ERROR, str(error), remedy),))
    return HealthCheck(found.version, (*found.findings, *_ways_back(cluster.kind)), found.facts)


def refresh_nodes(cluster: Cluster) -> None:
    """Its nodes as they are now; what is quarantined is drained there too. May raise BackendUnavailable."""
    backend = backend_of(cluster)
    if isinstance(backend, ListsNodes):
        services.store_nodes(cluster, backend.nodes())
        if isinstance(backend, DrainsNodes):
            _drain_quarantined(cluster, backend)


def _survey(lease: leases.Lease) -> None:
    """Each part is written when it is known, so that a slow or broken one costs the other nothing."""
    row = Survey.objects.select_related("cluster").get(pk=lease.pk)
    problem = ""
    try:
        refresh_nodes(row.cluster)
    except BackendUnavailable as error:
        problem = str(error)
        log.warning("nodes of cluster %s are listed later: %s", row.cluster, error)
    except Exception as error:  # one cluster's trouble is shown with it, and holds up no other
        log.exception("nodes of cluster %s are listed later", row.cluster)
        problem = f"{type(error).__name__}: {error}"
    Survey.objects.filter(pk=row.pk).update(nodes_at=Now(), problem=problem[:1000])
    probe_is_due = due().filter(Q(probed_at__isnull=True) | Q(probed_at__lte=Now() - PROBE_EVERY), pk=row.pk).exists()
    if probe_is_due and leases.renew(Survey, lease, seconds=LEASE_SECONDS):
        Survey.objects.filter(pk=row.pk).update(probed_at=Now())
        found = look(row.cluster)
        if found is not None:
            services.store_health_check(row.cluster, found)
    leases.release(Survey, lease)


def _drain_quarantined(cluster: Cluster, backend: Backend) -> None:
    """Somebody may have given it back there, or did not answer when it was quarantined. One that is down counts: it
    comes back as it was."""
    assert isinstance(backend, DrainsNodes)
    quarantined = Node.objects.filter(cluster=cluster, quarantined_at__isnull=False, listed=True)
    for node in quarantined.exclude(state=NodeState.DRAINED.value):
        try:
            backend.drain(node.name, node.quarantine_reason)
        except (BackendRejected, BackendUnavailable) as error:
            log.warning("quarantined node %s of %s is drained later: %s", node, cluster, error)


def _ways_back(kind: str) -> Iterator[Finding]:
    """Check whether nodes can reach the platform and the store, as far as the configuration shows."""
    for check, what, url, variable in (
        ("platform_address", "the platform", settings.ATHANOR.public_url, "ATHANOR_PUBLIC_URL"),
        ("object_store", "the object store", settings.ATHANOR.s3_endpoint, "ATHANOR_S3_ENDPOINT"),
    ):
        if not url:
            continue  # a store of the cloud's own, by its region
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
        try:
            socket.create_connection((host, port), timeout=CONNECT_SECONDS).close()
        except OSError as error:
            detail = f"{what} is not reached at {url} from here: {error}"
            yield Finding(check, Level.WARNING, detail, f"start it, or fix {variable}")
            continue
        if kind != "local" and host.startswith(LOOPBACK):
            detail = f"nodes are given {url} for {what}, which is each machine itself"
            remedy = f"set {variable} to an address that all nodes reach, unless they are this machine"
            yield Finding(check, Level.WARNING, detail, remedy)
        else:
            yield Finding(check, Level.OK, f"{what} answers at {url} from here")
