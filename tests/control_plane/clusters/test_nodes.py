"""Nodes, their incidents, and which attempts avoid them."""

import pytest
from django.utils import timezone

from athanor.clusters import services
from athanor.clusters.models import Cluster, Node, NodeIncident

pytestmark = pytest.mark.django_db


@pytest.fixture
def cluster(db: None) -> Cluster:
    return Cluster.objects.create(name="iron", kind="fake_cluster", config={"world": "iron"})


def test_an_incident_is_recorded_once_for_an_attempt_and_each_of_its_nodes(cluster: Cluster) -> None:
    Node.objects.create(cluster=cluster, name="n1")
    for _ in range(2):
        services.record_incidents(cluster, ["n1", "n2", "n1"], "node_lost", job_id="job_1", attempt_id="att_1")
    services.record_incidents(cluster, ["n1"], "gpu_fault", job_id="job_1", attempt_id="att_2", detail="Xid 79")
    services.record_incidents(cluster, [], "gpu_fault", job_id="job_1", attempt_id="att_3")
    found = NodeIncident.objects.order_by("id").values_list("node__name", "kind", "attempt_id")
    assert list(found) == [
        ("n1", "node_lost", "att_1"),
        ("n2", "node_lost", "att_1"),
        ("n1", "gpu_fault", "att_2"),
    ]


def test_new_attempts_avoid_what_is_quarantined_in_their_own_cluster(cluster: Cluster) -> None:
    other = Cluster.objects.create(name="copper", kind="fake_cluster")
    for name in ("n3", "n1"):
        Node.objects.create(cluster=cluster, name=name, quarantined_at=timezone.now())
    Node.objects.create(cluster=cluster, name="n2")
    Node.objects.create(cluster=other, name="n2", quarantined_at=timezone.now())
    assert services.quarantined_names(cluster) == ("n1", "n3")
