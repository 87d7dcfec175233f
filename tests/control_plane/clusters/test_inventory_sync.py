"""Periodic inventory sync and health checks."""

import uuid
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from athanor.backends.facts import Finding, Level, NodeFacts, NodeState
from athanor.backends.fake.backend import WORLDS, FakeClusterBackend, World
from athanor.clusters.models import Cluster, ClusterHealthCheck, InventorySync, Node, NodeIncident
from athanor.core import leases
from athanor.fleet import inventory_sync

pytestmark = pytest.mark.django_db


@pytest.fixture
def iron() -> Iterator[World]:
    name = uuid.uuid4().hex
    Cluster.objects.create(name="iron", kind="fake_cluster", config={"world": name})
    world = WORLDS.setdefault(name, World())
    world.nodes = {each: NodeFacts(each, NodeState.READY, slots=8) for each in ("n1", "n2")}
    yield world
    del WORLDS[name]


def again() -> None:
    """Make the inventory of every cluster due, as a minute after the last one."""
    InventorySync.objects.update(nodes_at=timezone.now() - timedelta(seconds=61))
    inventory_sync.sync_due()


def kinds(name: str) -> list[str]:
    return list(NodeIncident.objects.filter(node__name=name).order_by("id").values_list("kind", flat=True))


def test_every_cluster_is_surveyed_and_then_left_alone_for_a_while(iron: World) -> None:
    inventory_sync.sync_due()
    assert {node.name: node.state for node in Node.objects.all()} == {"n1": "ready", "n2": "ready"}
    assert ClusterHealthCheck.objects.get().usable
    assert not inventory_sync.due().exists()
    calls = iron.calls
    inventory_sync.sync_due()
    assert iron.calls == calls


def test_what_becomes_of_a_node_is_noted_once(iron: World) -> None:
    inventory_sync.sync_due()
    assert kinds("n1") == []
    iron.nodes["n1"] = replace(iron.nodes["n1"], state=NodeState.DOWN, reason="Not responding", slots_used=3)
    again()
    again()
    node = Node.objects.get(name="n1")
    assert (node.state, node.reason, node.slots_used) == ("down", "Not responding", 3)
    iron.nodes["n1"] = replace(iron.nodes["n1"], state=NodeState.READY, reason="")
    again()
    assert kinds("n1") == ["down", "ready"]
    assert NodeIncident.objects.get(kind="down").detail == "Not responding"


def test_a_node_that_is_no_longer_listed_is_kept_for_a_while(iron: World) -> None:
    inventory_sync.sync_due()
    gone = iron.nodes.pop("n1")
    again()
    again()
    node = Node.objects.get(name="n1")
    assert (node.listed, node.state) == (False, "unknown")
    iron.nodes["n1"] = gone
    again()
    assert Node.objects.get(name="n1").listed
    assert kinds("n1") == ["unlisted"]
    del iron.nodes["n1"], iron.nodes["n2"]
    again()
    Node.objects.update(seen_at=timezone.now() - timedelta(days=31))
    Node.objects.filter(name="n2").update(quarantined_at=timezone.now())
    again()
    assert [node.name for node in Node.objects.all()] == ["n2"], "what is in quarantine is not forgotten"


def test_a_quarantined_node_that_somebody_gave_back_is_drained_again(iron: World) -> None:
    inventory_sync.sync_due()
    Node.objects.filter(name="n2").update(quarantined_at=timezone.now(), quarantine_reason="bad link")
    again()
    assert iron.nodes["n2"].state is NodeState.DRAINED
    assert iron.nodes["n1"].state is NodeState.READY


def test_a_cluster_that_is_away_hides_no_other_and_says_so(iron: World) -> None:
    broken = Cluster.objects.create(name="copper", kind="fake_cluster", config={"no_such_field": 1})
    iron.away = 10
    inventory_sync.sync_due()
    problems = {row.cluster.name: row.problem for row in InventorySync.objects.select_related("cluster")}
    assert problems["iron"] == "the backend is away"
    assert "no_such_field" in problems["copper"]
    assert not ClusterHealthCheck.objects.get(cluster__name="iron").usable
    assert not ClusterHealthCheck.objects.filter(cluster=broken).exists()
    iron.away = 0
    again()
    assert InventorySync.objects.get(cluster__name="iron").problem == ""


def test_an_inventory_and_an_observation_do_not_wait_for_each_other(
    iron: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    inventory_sync.sync_due()
    claimed: list[Any] = []
    original = FakeClusterBackend.nodes

    def nodes(self: FakeClusterBackend) -> list[NodeFacts]:
        claimed.extend(leases.claim(Cluster.objects.all(), seconds=20, limit=1))
        claimed.extend(leases.claim(InventorySync.objects.all(), seconds=20, limit=1))
        return original(self)

    monkeypatch.setattr(FakeClusterBackend, "nodes", nodes)
    again()
    assert [type(lease.pk) for lease in claimed] == [str], "the cluster's own lease is free, the survey's is not"
    assert claimed[0].pk == Cluster.objects.get().pk


def test_findings_of_the_platform_itself_belong_to_every_health_check(iron: World, settings: Any) -> None:
    iron.findings = [Finding("answer", Level.OK, "fine")]
    inventory_sync.sync_due()
    findings = {finding["check"]: finding for finding in ClusterHealthCheck.objects.get().findings}
    assert findings["platform_address"]["level"] == "warning"
    assert "ATHANOR_PUBLIC_URL" in findings["platform_address"]["remedy"]
    assert "ATHANOR_S3_ENDPOINT" in findings["object_store"]["remedy"], "nodes would look for it at themselves"
