"""Samples of nodes become few series, whatever the number of nodes, and name the node of an extreme."""

from collections.abc import Callable
from datetime import datetime, timedelta

import pytest
from django.utils import timezone

from athanor.clusters.models import NodeIncident
from athanor.jobs.models import Attempt, Job
from athanor.telemetry import ingest, system
from athanor.telemetry.models import NodeSample, SystemInterval
from tests.control_plane import drive
from tests.control_plane.conftest import Api
from tests.control_plane.dispatch.test_rendezvous_rounds import join
from trainer.contract.run import Batch, ProgressEvent
from trainer.contract.system import SystemSample

pytestmark = pytest.mark.django_db
HOT = "system/gpu_temperature"
LOAD = "system/load_per_core"


@pytest.fixture
def attempt(submit: Callable[..., Job]) -> Attempt:
    """Return an attempt whose cluster reports that it runs on a hundred nodes, n00 to n99."""
    attempt = drive.start(submit())
    place(attempt, *(f"n{number:02}" for number in range(100)))
    Attempt.objects.filter(pk=attempt.pk).update(created_at=timezone.now() - timedelta(days=9))
    attempt.refresh_from_db()
    return attempt


def place(attempt: Attempt, *names: str) -> None:
    """The cluster reports the nodes of the attempt."""
    Attempt.objects.filter(pk=attempt.pk).update(native_nodes=list(names))
    attempt.refresh_from_db()


def at_minute(ago: timedelta) -> datetime:
    return (timezone.now() - ago).replace(second=0, microsecond=0)


def sample(node: str, time: datetime, **values: list[float | None]) -> SystemSample:
    return SystemSample(time=time, node=node, values={f"system/{name}": column for name, column in values.items()})


def send(attempt: Attempt, *samples: SystemSample, writer: str = "system-agent0", sequence: int = 0) -> None:
    ingest.ingest(attempt, "system", Batch(writer=writer, sequence=sequence, samples=list(samples)))


def test_a_hundred_nodes_make_one_row_a_minute_and_the_extremes_are_named(attempt: Attempt) -> None:
    minute = at_minute(timedelta(minutes=5))
    for number in range(100):
        samples = [
            sample(f"n{number:02}", minute + timedelta(seconds=second), gpu_temperature=[40.0, 50.0 + number / 10])
            for second in (0, 10)
        ]
        send(attempt, *samples, writer=f"system-agent{number}")
    assert SystemInterval.objects.count() == 1
    seconds, series = system.series_of(attempt.job, 100)
    assert (seconds, list(series)) == (60, [HOT])
    (point,) = series[HOT]
    assert (point.low, point.high, point.high_at) == (40.0, 59.9, "n99:1")
    assert point.low_at.endswith(":0")
    assert point.mean == pytest.approx((40 + 50 + 9.9 / 2) / 2)
    assert [node.node for node in system.nodes_of(attempt.job)][:2] == ["n00", "n01"]


def test_a_batch_that_comes_twice_counts_once(attempt: Attempt) -> None:
    minute = at_minute(timedelta(minutes=5))
    for _ in range(2):
        send(attempt, sample("n01", minute, load_per_core=[1.0]))
    assert SystemInterval.objects.get().values[LOAD][0] == 1


def test_missing_values_and_unknown_names_are_left_out(attempt: Attempt) -> None:
    minute = at_minute(timedelta(minutes=5))
    send(attempt, sample("n01", minute, gpu_temperature=[None, 61.0], invented=[1.0]))
    _, series = system.series_of(attempt.job, 100)
    assert list(series) == [HOT]
    assert (series[HOT][0].low, series[HOT][0].low_at) == (61.0, "n01:1")
    assert NodeSample.objects.get().values == {HOT: [None, 61.0]}


def test_a_long_run_is_drawn_with_few_points(attempt: Attempt) -> None:
    begin = at_minute(timedelta(hours=4))
    send(attempt, *(sample("n01", begin + timedelta(minutes=at), load_per_core=[float(at)]) for at in range(240)))
    seconds, series = system.series_of(attempt.job, 50)
    assert seconds == 480
    assert len(series[LOAD]) <= 31
    assert (min(p.low for p in series[LOAD]), max(p.high for p in series[LOAD])) == (0.0, 239.0)


def test_old_minutes_are_merged_into_hours_and_change_no_extreme(attempt: Attempt) -> None:
    begin = at_minute(timedelta(days=4)).replace(minute=0)
    send(attempt, *(sample("n01", begin + timedelta(minutes=at), load_per_core=[float(at)]) for at in range(120)))
    before = [point.high for point in system.series_of(attempt.job, 2)[1][LOAD]]
    while system.coarsen(limit=50):
        pass
    assert sorted(SystemInterval.objects.values_list("seconds", flat=True)) == [3600, 3600]
    after = system.series_of(attempt.job, 100)
    assert after[0] == 3600
    assert [(point.mean, point.high) for point in after[1][LOAD]] == [(29.5, 59.0), (89.5, 119.0)]
    assert max(before) == 119.0


def test_the_api_returns_series_and_nodes(api: Api, attempt: Attempt) -> None:
    minute = at_minute(timedelta(minutes=5))
    send(attempt, sample("n01", minute, load_per_core=[0.5], disk_used=[0.25]))
    body = api.send("get", f"jobs/{attempt.job_id}/system").json()
    assert [row["name"] for row in body["series"]] == [LOAD, "system/disk_used"]
    first = body["series"][0]
    assert (first["unit"], first["means"], first["highest_at"]) == ("count", [0.5], ["n01"])
    assert body["nodes"][0]["values"] == {LOAD: [0.5], "system/disk_used": [0.25]}


def test_uncorrected_errors_of_a_gpu_are_an_incident_of_its_node(attempt: Attempt) -> None:
    data = {"node": "n02", "gpu": 3, "errors": 1, "because": "1 new uncorrected ECC errors on GPU 3"}
    event = ProgressEvent(time=timezone.now(), type="gpu.ecc_uncorrected", data=data)
    ingest.ingest(attempt, "progress", Batch(writer="progress-agent1", sequence=0, events=[event]))
    incident = NodeIncident.objects.get()
    assert (incident.node.name, incident.kind) == ("n02", "gpu_fault")
    assert "GPU 3" in incident.detail


def test_a_run_can_not_write_samples_of_nodes_that_are_not_its_own(api: Api, attempt: Attempt) -> None:
    """An attacker has a run's token, and names nodes of others, which its cluster has not given to the run. Joining
    the rendezvous under such a name changes nothing."""
    place(attempt, "n01", "n02")
    join(attempt, 0, name="victim")
    minute = at_minute(timedelta(minutes=5))
    samples = [sample(node, minute, gpu_temperature=[99.0]) for node in ("victim", "n03", "n02")]
    send(attempt, *samples)
    assert [row.node for row in system.nodes_of(attempt.job)] == ["n02"]
    _, series = system.series_of(attempt.job, 100)
    assert [(point.high_at, point.mean) for point in series[HOT]] == [("n02:0", 99.0)]
    send(attempt, sample("victim", minute, load_per_core=[1.0]), sequence=1)
    assert SystemInterval.objects.count() == 1, "a batch without samples of its own nodes is counted, and adds nothing"
    assert LOAD not in system.series_of(attempt.job, 100)[1]


def test_samples_of_an_attempt_on_one_node_are_of_this_node_whatever_they_call_it(attempt: Attempt) -> None:
    place(attempt, "n01")
    send(attempt, sample("victim", at_minute(timedelta(minutes=5)), load_per_core=[1.0]))
    assert [row.node for row in system.nodes_of(attempt.job)] == ["n01"]


REPORTS = {
    "gpu.ecc_uncorrected": {"node": "victim", "because": "1 new uncorrected ECC errors on GPU 3"},
    "generation.started": {"node": "victim", "end_class": "gpu_fault", "because": "Xid 79"},
    "gradient.corrupted": {"node": "victim", "step": "16", "ranks": "1", "because": "rank 1 was wrong"},
    "replicas.compared": {"node": "victim", "step": "16", "ranks": "1", "because": "rank 1 was wrong"},
    "progress.stalled": {"node": "victim", "ranks": [1], "is_hang": True, "because": "rank 1 is stopped"},
    "preflight.completed": {
        "report": {
            "ranks": 2, "nodes": 2, "device": "H100", "seconds": 9.0,
            "findings": [{"severity": "slow", "nodes": ["victim"], "because": "memory bandwidth"}],
        }
    },
}  # fmt: skip


@pytest.mark.parametrize("nodes", [["n01", "n02"], []], ids=["placed", "not placed yet"])
@pytest.mark.parametrize("kind", REPORTS)
def test_a_run_can_not_cause_an_incident_of_a_foreign_node(attempt: Attempt, kind: str, nodes: list[str]) -> None:
    """Neither by its name in a report, nor by joining the rendezvous under its name, even before the cluster has said
    where the attempt runs."""
    place(attempt, *nodes)
    join(attempt, 0, name="victim")
    event = ProgressEvent(time=timezone.now(), type=kind, data=REPORTS[kind])
    ingest.ingest(attempt, "progress", Batch(writer="progress-agent0", sequence=0, events=[event]))
    assert not NodeIncident.objects.exists()


@pytest.mark.parametrize(
    ("event_type", "node", "kinds"),
    [
        ("gradient.corrupted", "n2", ["silent_corruption"]),
        ("gradient.corrupted", "", []),
        ("replicas.compared", "n2", ["silent_corruption_proven"]),
        ("replicas.compared", "", []),
    ],
)
def test_corruption_is_an_incident_of_the_node_that_is_named(
    attempt: Attempt, event_type: str, node: str, kinds: list[str]
) -> None:
    Attempt.objects.filter(pk=attempt.pk).update(native_nodes=["n1", "n2"])
    attempt.refresh_from_db()
    data = {"step": "16", "ranks": "1", "node": node, "because": "rank 1 was wrong"}
    event = ProgressEvent(time=timezone.now(), type=event_type, data=data)
    ingest.ingest(attempt, "progress", Batch(writer="progress-agent1", sequence=0, events=[event]))
    found = [(each.node.name, each.kind, each.detail) for each in NodeIncident.objects.all()]
    assert found == [("n2", kind, data["because"]) for kind in kinds]
