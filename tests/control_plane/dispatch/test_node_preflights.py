"""Preflights of free nodes outside jobs: when they start, what they report, and that jobs come first."""

import json
import socket
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db.models import F
from django.utils import timezone

from athanor.accounts.models import AuditEvent, PlatformRole, User
from athanor.backends.base import Obstacle
from athanor.backends.facts import NodeFacts, NodeState
from athanor.backends.fake.backend import World
from athanor.budgets.models import Meter
from athanor.clusters.models import Cluster, Node, NodeIncident, NodePreflight, Pool
from athanor.clusters.node_score import Standing
from athanor.clusters.selectors import scores_of
from athanor.clusters.services import record_incidents
from athanor.core.errors import Conflict
from athanor.dispatch import node_preflights
from athanor.fleet import inventory_sync, orphans
from athanor.jobs.models import Job
from athanor.reconcilers import backlog
from deploy.local.handle import wait_until
from tests.control_plane import drive
from tests.control_plane.conftest import Api
from tests.control_plane.dispatch.test_rendezvous_rounds import join, time_passes
from trainer.contract import environment as names
from trainer.contract.preflight import Finding, PreflightReport, report_line

REPOSITORY = Path(__file__).resolve().parents[3]
Submit = Callable[..., Job]
pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("bucket")]
NODES = ("n0", "n1", "n2")


@pytest.fixture
def iron(pool: Pool, world: World) -> World:
    """Return the world of the cluster of the tests, with three nodes of two slots in its inventory."""
    world.nodes = {name: NodeFacts(name, NodeState.READY, slots=2, accelerator=pool.accelerator) for name in NODES}
    Cluster.objects.filter(pk=pool.cluster_id).update(kind="fake_cluster")
    Pool.objects.filter(pk=pool.pk).update(nodes=3, slots_per_node=2)
    pool.refresh_from_db()
    pool.cluster.refresh_from_db()
    inventory_sync.refresh_nodes(pool.cluster)
    return world


@pytest.fixture
def cluster(pool: Pool, iron: World) -> Cluster:
    return pool.cluster


def fault(cluster: Cluster, node: str, kind: str = "gpu_fault") -> None:
    record_incidents(cluster, [node], kind, job_id="job_1", attempt_id=f"att_{kind}_{node}")


def run() -> None:
    """One run of the reconciler."""
    node_preflights.plan_due()
    node_preflights.advance_due()


def report(*findings: Finding) -> PreflightReport:
    return PreflightReport(ranks=2, nodes=1, device="H100", seconds=9.0, findings=list(findings))


def end(world: World, row: NodePreflight, found: PreflightReport | None, status: int = 0) -> NodePreflight:
    """The agent on the node prints its report and ends; the platform observes it."""
    world.written[row.backend_name] += report_line(found) + "\n" if found else "no GPU answers\n"
    world.finish(row.backend_name, status)
    node_preflights.advance_due()
    row.refresh_from_db()
    return row


def test_a_node_is_measured_after_an_incident_and_a_pass_shortens_what_follows(iron: World, cluster: Cluster) -> None:
    fault(cluster, "n1")
    fault(cluster, "n2", "network_error")  # which the preflight of one node says nothing about
    assert scores_of(cluster)["n1"].standing is Standing.AVOIDED
    run()
    row = NodePreflight.objects.get()
    assert (row.node.name, row.cause, iron.placed[row.backend_name]) == ("n1", "incident", ("n1",))
    submitted = iron.running[row.backend_name]
    assert submitted.environment[names.PREFLIGHT_RANKS] == "2"
    assert submitted.secrets == {}, "it holds no credentials"
    assert not backlog.is_idle()
    assert orphans.find().objects == []
    assert end(iron, row, report()).outcome == "ok"
    assert scores_of(cluster)["n1"].standing is Standing.PROBATION
    assert NodeIncident.objects.filter(kind="preflight_passed", node=row.node).count() == 1
    run()
    assert NodePreflight.objects.count() == 1, "once after an incident"
    fault(cluster, "n1", "hang")
    run()
    assert NodePreflight.objects.count() == 2
    assert not Meter.objects.exists(), "no team is charged"


@pytest.mark.parametrize(("severity", "kind"), [("broken", "node_unfit"), ("slow", "preflight_slow")])
def test_a_failed_one_is_an_incident_of_the_node_by_whatever_name_it_reports(
    iron: World, cluster: Cluster, severity: str, kind: str
) -> None:
    fault(cluster, "n1")
    before = scores_of(cluster)["n1"].value
    run()
    finding = Finding.model_validate({"severity": severity, "nodes": ["elsewhere"], "because": "memory bandwidth"})
    row = end(iron, NodePreflight.objects.get(), report(finding), 82)
    assert (row.outcome, row.report["findings"][0]["nodes"]) == (severity, ["n1"])
    incident = NodeIncident.objects.get(kind=kind)
    assert (incident.node.name, incident.job_id, incident.detail) == ("n1", "", "memory bandwidth")
    assert scores_of(cluster)["n1"].value > before


def test_one_that_ends_without_a_report_says_so_and_is_not_repeated(iron: World, cluster: Cluster) -> None:
    fault(cluster, "n1")
    run()
    row = end(iron, NodePreflight.objects.get(), None, 73)
    assert (row.outcome, row.report) == ("failed", None)
    assert row.detail.endswith("exit status 73: no GPU answers")
    run()
    assert NodePreflight.objects.count() == 1


def test_at_an_interval_free_nodes_are_measured_a_few_at_a_time(
    iron: World, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    run()
    assert not NodePreflight.objects.exists(), "off by default"
    monkeypatch.setattr(node_preflights, "MAX_LIVE", 2)
    Cluster.objects.update(preflight_every_hours=24)
    for _ in range(2):
        run()
        for row in node_preflights.live():
            end(iron, row, report())
    assert {row.node.name for row in NodePreflight.objects.all()} == set(NODES)
    run()
    assert NodePreflight.objects.count() == 3
    NodePreflight.objects.filter(node__name="n2").update(created_at=timezone.now() - timedelta(hours=25))
    run()
    assert [row.node.name for row in node_preflights.live()] == ["n2"]


def test_the_switch_of_the_cluster_turns_them_off(iron: World, cluster: Cluster) -> None:
    Cluster.objects.update(preflight_after_incidents=False)
    fault(cluster, "n1")
    run()
    assert not NodePreflight.objects.exists()


def test_a_job_that_needs_the_slots_ends_them_before_it_is_submitted(
    iron: World, cluster: Cluster, submit: Submit
) -> None:
    fault(cluster, "n1")
    run()
    row = NodePreflight.objects.get()
    job = submit(resources={"nodes": 3, "processes_per_node": 2, "cluster": "fake"})
    attempt = drive.start(job)
    assert drive.status_of(job)[0] == "starting", "admission does not count the slots of a preflight"
    assert iron.cancelled == [row.backend_name]
    assert attempt.backend_name in iron.running
    row.refresh_from_db()
    assert (row.outcome, row.report) == ("stopped", None)
    run()
    assert not node_preflights.live().exists(), "the nodes are in use"


def test_none_starts_while_a_job_waits_and_one_that_runs_ends(iron: World, cluster: Cluster, submit: Submit) -> None:
    fault(cluster, "n1")
    run()
    submit(resources={"nodes": 3, "processes_per_node": 2, "cluster": "fake"})
    run()
    row = NodePreflight.objects.get()
    assert (row.outcome, iron.cancelled) == ("stopped", [row.backend_name])
    Job.objects.update(not_before=timezone.now() + timedelta(hours=1))
    run()
    assert node_preflights.live().count() == 1, "a stopped one is repeated when no job waits"


def test_they_leave_free_nodes_to_a_run_that_lost_one(iron: World, cluster: Cluster, submit: Submit) -> None:
    resources = {"nodes": 2, "min_nodes": 1, "processes_per_node": 2, "cluster": "fake"}
    attempt = drive.run(submit(resources=resources))
    (free,) = set(NODES) - set(iron.placed[attempt.backend_name])
    for index in (0, 1, 0):
        join(attempt, index)
    fault(cluster, free)
    run()
    row = NodePreflight.objects.get()
    assert (row.node.name, row.ended_at) == (free, None), "a complete run needs no other node"
    assert join(attempt, 0, round=2).state == "gathering"
    run()
    row.refresh_from_db()
    assert (row.outcome, node_preflights.live().exists()) == ("stopped", False)
    time_passes(16)
    assert join(attempt, 0, round=2).state == "placed"
    run()
    assert not node_preflights.live().exists(), "it has continued on one node, and grows when a node replaces the other"
    time_passes(600)
    run()
    assert node_preflights.live().count() == 1


@pytest.mark.parametrize(("full", "age", "detail"), [(True, 3, "did not start it"), (False, 11, "did not end")])
def test_one_that_takes_too_long_is_ended(iron: World, cluster: Cluster, full: bool, age: int, detail: str) -> None:
    iron.full = full
    fault(cluster, "n1")
    run()
    NodePreflight.objects.update(submitted_at=F("submitted_at") - timedelta(minutes=age))
    run()
    row = NodePreflight.objects.get()
    assert row.outcome == "failed"
    assert detail in row.detail
    assert iron.cancelled == [row.backend_name]


def test_one_that_its_cluster_does_not_start_is_ended_and_says_why(iron: World, cluster: Cluster) -> None:
    iron.full = True
    fault(cluster, "n1")
    run()
    run()
    iron.gives_up = Obstacle.CANNOT_START
    run()
    row = NodePreflight.objects.get()
    said = "its cluster did not start it: It waits for room in the world."
    assert (row.outcome, row.detail, iron.cancelled) == ("failed", said, [row.backend_name])


def test_an_administrator_starts_one_and_is_refused_with_a_reason(
    api: Api, user: User, iron: World, cluster: Cluster, submit: Submit
) -> None:
    path = f"clusters/{cluster.id}/nodes/n1"
    assert api.send("post", f"{path}:preflight", {}).status_code == 403
    assert api.send("get", f"{path}/preflights").status_code == 403
    User.objects.filter(pk=user.pk).update(platform_role=PlatformRole.PLATFORM_ADMIN)
    admin = Api()
    admin.force_login(User.objects.get(pk=user.pk))
    answer, repeated = (admin.send("post", f"{path}:preflight", {}, idempotency_key="k-1") for _ in range(2))
    assert (repeated.status_code, repeated.json(), repeated["Idempotency-Replayed"]) == (201, answer.json(), "true")
    assert (answer.status_code, answer.json()["cause"], answer.json()["actor"]) == (201, "manual", user.username)
    assert AuditEvent.objects.filter(action="node.preflight").count() == 1
    assert admin.send("post", f"{path}:preflight", {}).json()["code"] == "preflight_running"
    node_preflights.advance_due()
    end(iron, NodePreflight.objects.get(), report())
    (item,) = admin.send("get", f"{path}/preflights").json()["items"]
    assert (item["outcome"], item["report"]["device"], item["report"]["result"]) == ("ok", "H100", "ok")
    iron.nodes["n2"] = NodeFacts("n2", NodeState.DRAINED, slots=2)
    refused = {node: admin.send("post", f"clusters/{cluster.id}/nodes/{node}:preflight", {}) for node in ("n2", "n9")}
    assert {node: each.json()["code"] for node, each in refused.items()} == {"n2": "node_not_ready", "n9": "not_found"}
    submit()
    assert "waits for pool" in admin.send("post", f"{path}:preflight", {}).json()["detail"]
    settings = {"preflight_every_hours": 24, "preflight_after_incidents": False}
    setup = admin.send("patch", f"clusters/{cluster.id}", settings).json()["setup"]
    assert settings.items() <= setup.items()
    assert admin.send("patch", f"clusters/{cluster.id}", {"preflight_every_hours": None}).status_code == 200


def test_a_local_cluster_measures_this_machine_alone(pool: Pool) -> None:
    Cluster.objects.filter(pk=pool.cluster_id).update(kind="local", config={})
    Node.objects.create(
        cluster_id=pool.cluster_id, name="other", state="ready", listed=True, slots=2, accelerator=pool.accelerator
    )
    with pytest.raises(Conflict, match="node other is not this machine"):
        node_preflights.request(Node.objects.get(), NodePreflight.Cause.MANUAL)


@pytest.mark.usefixtures("world")
def test_the_agent_measures_this_machine_without_a_token(tmp_path: Path, pool: Pool, settings: Any) -> None:
    """The agent itself, on the local backend: what it prints is read and stored."""
    settings.ATHANOR = settings.ATHANOR.model_copy(
        update={
            "cluster_config_dir": tmp_path, "local_backend_dir": tmp_path / "local", "public_url": "http://127.0.0.1:1",
        }
    )  # fmt: skip
    command = ["env", f"PYTHONPATH={REPOSITORY}", sys.executable, "-m", "trainer.agent"]
    (tmp_path / "fake.cluster.json").write_text(json.dumps({"kind": "local", "config": {"command": command}}))
    Cluster.objects.filter(pk=pool.cluster_id).update(kind="local", config={})
    Pool.objects.filter(pk=pool.pk).update(slots_per_node=2)
    here = socket.gethostname()
    node = Node.objects.create(cluster=pool.cluster, name=here, state="ready", listed=True, slots=2, accelerator="cpu")
    row = node_preflights.request(Node.objects.get(pk=node.pk), NodePreflight.Cause.MANUAL, "ada")

    def has_ended() -> bool:
        node_preflights.advance_due()
        row.refresh_from_db()
        return row.ended_at is not None

    wait_until(has_ended, "the preflight has ended", 120)
    assert row.outcome == "broken", (row.outcome, row.detail)
    found = PreflightReport.model_validate(row.report)
    (unreachable,) = [each for each in found.findings if each.severity == "broken"]
    assert "platform at http://127.0.0.1:1 cannot be reached" in unreachable.because, "unlike the object store"
    held_against_it = NodeIncident.objects.exists()  # a busy machine may also be slow, which is
    assert held_against_it == bool(found.at_fault("slow")), "an unreachable platform may be no fault of the node"
    assert (found.ranks, found.nodes, found.device) == (2, 1, "cpu")
    assert {"matrix products", "memory bandwidth", "disk of the work folder"} <= {each.name for each in found.measures}
    assert found.measures[0].lowest_at.startswith(here)
