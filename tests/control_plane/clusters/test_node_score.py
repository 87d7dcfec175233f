"""Scores of nodes: what counts, how it decays, what is avoided, and what a release clears."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from django.utils import timezone

from athanor.accounts.models import PlatformRole, User
from athanor.clusters.models import Cluster, Node, NodeIncident, Pool
from athanor.clusters.node_score import HALF_LIFE, WEIGHTS, Incident, NodeScore, Standing, avoided_names, score
from athanor.clusters.selectors import scores_of
from athanor.clusters.services import record_incidents
from athanor.dispatch import services
from athanor.dispatch.finalise import FAULTS_OF_NODES
from athanor.jobs.models import Attempt, Job
from athanor.telemetry import ingest
from tests.control_plane import drive
from tests.control_plane.conftest import Api
from trainer.contract.preflight import Finding, PreflightReport
from trainer.contract.run import Batch, ProgressEvent

NOW = datetime(2026, 6, 1, tzinfo=UTC)


def incident(kind: str, job: str, age: timedelta = timedelta()) -> Incident:
    return Incident(kind, NOW - age, job)


def test_one_fault_of_a_device_is_avoided_for_four_days_and_then_on_probation() -> None:
    standings = [
        score([incident("gpu_fault", "a", timedelta(days=days))], None, NOW).standing for days in (0, 4, 5, 11, 12, 60)
    ]
    assert standings == ["avoided", "avoided", "probation", "probation", "good", "good"]


def test_each_fault_of_a_node_that_is_recorded_counts() -> None:
    recorded = {*FAULTS_OF_NODES, *ingest.FAULTS_OF_DEVICES.values()}
    assert {reason.value for reason in recorded} <= set(WEIGHTS)


def test_an_incident_halves_in_a_half_life() -> None:
    whole, half = (score([incident("hang", "a", age)], None, NOW).value for age in (timedelta(), HALF_LIFE))
    assert half == pytest.approx(whole / 2)


def test_incidents_of_one_job_count_once_by_the_gravest() -> None:
    found = score([incident("launch_failed", "a"), incident("hang", "a"), incident("hang", "a")], None, NOW)
    assert found.value == pytest.approx(0.3)
    assert [(reason.kind, reason.jobs) for reason in found.reasons] == [("launch_failed", 1)]


@pytest.mark.parametrize("kind", ["collective_timeout", "hang"])
def test_what_may_not_be_the_fault_of_the_node_needs_several_jobs(kind: str) -> None:
    """A hang names the node of the rank that the others wait for, which a program's error may be the cause of."""
    standings = [
        score([incident(kind, f"job{at}") for at in range(count)], None, NOW).standing for count in (1, 2, 3, 5)
    ]
    assert standings == ["good", "good", "probation", "avoided"]


def test_a_release_clears_what_was_before() -> None:
    before, after = incident("gpu_fault", "a", timedelta(hours=2)), incident("hang", "b")
    found = score([before, after], NOW - timedelta(hours=1), NOW)
    assert [reason.kind for reason in found.reasons] == ["hang"]
    assert score([incident("quarantined", "")], None, NOW) == NodeScore(), "actions of administrators do not count"


def test_what_a_preflight_can_find_counts_half_after_one_that_found_nothing() -> None:
    hour = timedelta(hours=1)
    fault, network = incident("gpu_fault", "a", 3 * hour), incident("network_error", "b", 3 * hour)
    passes = [incident("preflight_passed", "", age) for age in (2 * hour, hour)]
    before, after = (score([fault, network, *more], None, NOW) for more in ([], passes))
    assert (before.standing, after.standing) == ("avoided", "probation")
    counted = [{reason.kind: reason.score for reason in found.reasons} for found in (before, after)]
    assert counted[1]["gpu_fault"] == pytest.approx(counted[0]["gpu_fault"] / 2), "once, however often it passed"
    assert counted[1]["network_error"] == counted[0]["network_error"], "a preflight of one node does not see it"
    later = score([*passes, incident("gpu_fault", "a")], None, NOW)
    assert later.value == pytest.approx(WEIGHTS["gpu_fault"]), "a fault after it counts in full"


def test_preflights_that_find_the_same_again_count_as_one_incident() -> None:
    rows = [incident("preflight_slow", "", timedelta(days=days)) for days in range(5)]
    assert score(rows, None, NOW).value == pytest.approx(WEIGHTS["preflight_slow"])


def test_the_worst_are_avoided_first() -> None:
    scores = {
        name: score([incident("gpu_fault", f"job{at}") for at in range(faults)], None, NOW)
        for name, faults in (("n1", 1), ("n2", 3), ("n3", 0))
    }
    assert avoided_names(scores) == ["n2", "n1"]


@pytest.fixture
def cluster(pool: Pool) -> Cluster:
    pool.nodes = 4
    pool.save()
    return pool.cluster


def fault(cluster: Cluster, node: str, job: str, kind: str = "gpu_fault") -> None:
    record_incidents(cluster, [node], kind, job_id=job, attempt_id=f"att_{job}_{node}")


@pytest.mark.django_db
def test_attempts_of_other_jobs_avoid_bad_nodes_while_the_pool_has_others(
    cluster: Cluster, submit: Callable[..., Job]
) -> None:
    job = submit(resources={"nodes": 2, "processes_per_node": 1, "cluster": "fake"})
    for at, node in enumerate(["n1", "n2", "n2", "n3", "n3", "n3"]):
        fault(cluster, node, f"other{at}")
    assert services.nodes_to_avoid(job) == ("n2", "n3"), "two nodes must be left, so the worst two are avoided"
    Node.objects.filter(name="n3").update(released_at=timezone.now())
    assert services.nodes_to_avoid(job) == ("n1", "n2")


@pytest.mark.django_db
def test_a_node_that_a_preflight_found_slow_has_an_incident(cluster: Cluster, submit: Callable[..., Job]) -> None:
    attempt = drive.start(submit())
    Attempt.objects.filter(pk=attempt.pk).update(native_nodes=["n1", "n2"])
    attempt.refresh_from_db()
    findings = [
        Finding(severity="slow", nodes=["n2"], because="memory bandwidth of n2, rank 1 is 45% of the median"),
        Finding(severity="slow", nodes=["elsewhere"], because="not a node of this attempt"),
    ]
    report = PreflightReport(ranks=2, nodes=2, device="H100", seconds=9.0, findings=findings)
    data = {"result": "slow", "seconds": 9.0, "report": report.model_dump(mode="json")}
    events = [
        ProgressEvent(time=timezone.now(), type="preflight.completed", data=each)
        for each in (data, {"report": "not a report"})
    ]
    ingest.ingest(attempt, "progress", Batch(writer="rank0", sequence=0, events=events))
    found = NodeIncident.objects.get()
    assert (found.node.name, found.kind) == ("n2", "preflight_slow")
    assert scores_of(cluster)["n2"].standing is Standing.GOOD, "once is not enough"


@pytest.mark.django_db
def test_the_preflight_of_a_job_clears_its_own_nodes_alone(cluster: Cluster, submit: Callable[..., Job]) -> None:
    for node in ("n1", "n2", "elsewhere"):
        fault(cluster, node, "job0")
    attempt = drive.start(submit())
    Attempt.objects.filter(pk=attempt.pk).update(native_nodes=["n1", "n2", "n3"])
    attempt.refresh_from_db()
    finding = Finding(severity="slow", nodes=["n2"], because="memory bandwidth")
    report = PreflightReport(ranks=3, nodes=3, device="H100", seconds=9.0, findings=[finding])
    data = {"result": "slow", "seconds": 9.0, "report": report.model_dump(mode="json")}
    event = ProgressEvent(time=timezone.now(), type="preflight.completed", data=data)
    ingest.ingest(attempt, "progress", Batch(writer="rank0", sequence=0, events=[event]))
    passed = NodeIncident.objects.filter(kind="preflight_passed").values_list("node__name", flat=True)
    assert list(passed) == ["n1"], "nodes without a score get no entry"
    standings = {name: found.standing for name, found in scores_of(cluster).items()}
    assert standings == {"n1": "probation", "n2": "avoided", "elsewhere": "avoided"}


@pytest.mark.django_db
def test_preflights_are_listed_with_their_attempt(api: Api, cluster: Cluster, submit: Callable[..., Job]) -> None:
    attempt = drive.start(submit())
    finding = Finding(severity="broken", nodes=["n1"], because="a matrix product on n1, rank 0 has a wrong result")
    report = PreflightReport(ranks=1, nodes=1, device="H100", seconds=2.5, findings=[finding])
    data = {"result": "broken", "seconds": 2.5, "report": report.model_dump(mode="json")}
    events = [
        ProgressEvent(time=timezone.now(), type="preflight.completed", data=each)
        for each in (data, {"report": {"ranks": "many"}})
    ]
    ingest.ingest(attempt, "progress", Batch(writer="rank0", sequence=0, events=events))
    (item,) = api.send("get", f"jobs/{attempt.job_id}/preflights").json()["items"]
    assert (item["attempt"], item["result"], item["device"]) == (1, "broken", "H100")
    assert item["findings"][0]["nodes"] == ["n1"]


@pytest.mark.django_db
def test_an_administrator_sees_the_score_and_clears_it(api: Api, user: User, cluster: Cluster) -> None:
    User.objects.filter(pk=user.pk).update(platform_role=PlatformRole.PLATFORM_ADMIN)
    client = Api()
    client.force_login(User.objects.get(pk=user.pk))
    fault(cluster, "n1", "job1")
    path = f"clusters/{cluster.id}/nodes"
    shown = client.send("get", path).json()["items"][0]["score"]
    assert (shown["standing"], [reason["kind"] for reason in shown["reasons"]]) == ("avoided", ["gpu_fault"])
    answer = client.send("post", f"{path}/n1:release", {})
    assert answer.status_code == 200, answer.content
    assert answer.json()["score"] == {"value": 0.0, "standing": "good", "reasons": []}
    assert client.send("post", f"{path}/n1:release", {}).status_code == 409, "there is nothing to release"
