"""What the end of an attempt costs, whom it is charged to, and which nodes the next attempt avoids."""

from collections.abc import Callable
from datetime import timedelta

import pytest
from django.utils import timezone

from athanor.accounts.models import Team
from athanor.backends.fake.backend import World
from athanor.budgets.models import Budget, BudgetPeriod, Meter
from athanor.clusters.models import NodeIncident, Pool
from athanor.dispatch import rendezvous_rounds, services
from athanor.jobs.models import Attempt, Job
from athanor.jobs.reasons import NO_RETRIES, explain
from athanor.quotas.services import leaf_of
from athanor.telemetry import ingest
from tests.control_plane import drive
from tests.control_plane.dispatch.test_rendezvous_rounds import join
from trainer.contract.run import AttemptEnd, Batch, EndClass, ProgressEvent

Submit = Callable[..., Job]
pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("bucket")]
TWO_NODES = {"nodes": 2, "processes_per_node": 1, "cluster": "fake"}


@pytest.fixture
def job(submit: Submit, pool: Pool) -> Job:
    """Return a job of two nodes in a pool of four."""
    pool.nodes = 4
    pool.save()
    return submit(resources=TWO_NODES, retry={"max_charged": 0})


def run(job: Job, names: tuple[str, str]) -> Attempt:
    """Run the next attempt of a job on these nodes, by node index. The cluster lists them in another order."""
    Job.objects.filter(pk=job.pk).update(act_after=None)
    attempt = drive.run(job)
    for index, name in enumerate(names):
        join(attempt, index, name=name)
    Attempt.objects.filter(pk=attempt.pk).update(native_nodes=sorted(names, reverse=True))
    attempt.refresh_from_db()
    return attempt


def report(attempt: Attempt, node: int, end_class: EndClass) -> None:
    """The agent of a node reports the end of the attempt."""
    end = AttemptEnd(end_class=end_class, last_step=5, message="it said why", node_rank=node, at=timezone.now())
    services.record_end(attempt, end)


def end(world: World, attempt: Attempt, *reports: tuple[int, EndClass]) -> None:
    for node, end_class in reports:
        report(attempt, node, end_class)
    world.finish(attempt.backend_name, 1)
    drive.settle()


def incidents() -> set[tuple[str, str]]:
    return set(NodeIncident.objects.values_list("node__name", "kind"))


def test_a_fault_of_a_gpu_is_refunded_retried_free_and_its_node_is_avoided(
    job: Job, team: Team, world: World, pool: Pool
) -> None:
    hour = timedelta(hours=1)
    held = Budget.objects.create(
        node=leaf_of(team), name="b", unit="slot_hours", period="month", hard=True, amount=1000 * 3600,
        created_at=timezone.now() - 2 * hour,
    )  # fmt: skip
    attempt = run(job, ("n0", "n1"))
    Attempt.objects.filter(pk=attempt.pk).update(launched_at=timezone.now() - timedelta(seconds=90))
    assert services.nodes_to_avoid(job) == ()
    end(world, attempt, (0, EndClass.COLLECTIVE_TIMEOUT), (1, EndClass.GPU_FAULT), (0, EndClass.COLLECTIVE_TIMEOUT))
    assert drive.status_of(job) == ("queued", "gpu_fault")
    assert incidents() == {("n1", "gpu_fault")}
    meter = Meter.objects.get()
    assert meter.slot_seconds == meter.fault_slot_seconds >= 180
    period = BudgetPeriod.objects.get(budget=held)
    assert period.spent == 0
    assert services.nodes_to_avoid(job) == ("n1",)
    second = run(job, ("n0", "n2"))
    assert second.number == 2
    assert "n1" in second.submission_text, "its backend is asked to avoid the node"
    end(world, second, (0, EndClass.GPU_FAULT))
    assert drive.status_of(job) == ("queued", "gpu_fault"), "no charged retry was used"
    assert services.nodes_to_avoid(job) == ("n0", "n1")
    Pool.objects.filter(pk=pool.pk).update(nodes=3)
    assert len(services.nodes_to_avoid(Job.objects.get(pk=job.pk))) == 1, "two of three nodes are needed"


def test_a_fault_that_a_lost_node_has_reported_is_not_blamed_on_the_node_that_is_left(job: Job, world: World) -> None:
    attempt = run(job, ("n0", "n1"))
    Attempt.objects.filter(pk=attempt.pk).update(native_nodes=["n0"], lost_nodes=["n1"])
    end(world, attempt, (1, EndClass.GPU_FAULT))
    assert incidents() == {("n1", "gpu_fault")}


@pytest.mark.parametrize(
    ("cause", "consequence"),
    [
        (EndClass.GPU_FAULT, EndClass.COLLECTIVE_TIMEOUT),
        (EndClass.GPU_FAULT, EndClass.NETWORK_ERROR),
        (EndClass.GPU_FAULT, EndClass.INTERNAL_ERROR),
        (EndClass.OUT_OF_MEMORY, EndClass.PROCESS_KILLED),
        (EndClass.PROCESS_KILLED, EndClass.COLLECTIVE_TIMEOUT),
    ],
)
@pytest.mark.parametrize("is_first", [True, False])
def test_the_node_that_names_a_cause_counts_whichever_reports_first(
    job: Job, cause: EndClass, consequence: EndClass, *, is_first: bool
) -> None:
    attempt = run(job, ("n0", "n1"))
    for node, end_class in sorted([(0, consequence), (1, cause)], reverse=is_first):
        report(attempt, node, end_class)
    attempt.refresh_from_db()
    assert attempt.end_report is not None
    assert (attempt.end_report["end_class"], attempt.end_report["node_rank"]) == (cause.value, 1)


@pytest.mark.parametrize(
    ("end_class", "names"),
    [
        (EndClass.GPU_FAULT, {"n0"}),
        (EndClass.DEVICE_EXCEPTION, {"n0"}),
        (EndClass.NODE_STORAGE_ERROR, {"n0"}),
        (EndClass.HANG, {"n0"}),
        (EndClass.SILENT_CORRUPTION, {"n0"}),
        (EndClass.PROCESS_KILLED, {"n0"}),
        (EndClass.COLLECTIVE_TIMEOUT, {"n0", "n1"}),
        (EndClass.NETWORK_ERROR, {"n0", "n1"}),
        (EndClass.INTERNAL_ERROR, set()),
        (EndClass.STORAGE_ERROR, set()),
        (EndClass.OUT_OF_MEMORY, set()),
    ],
)
def test_an_incident_is_recorded_where_the_fault_may_be(
    job: Job, world: World, end_class: EndClass, names: set[str]
) -> None:
    end(world, run(job, ("n0", "n1")), (0, end_class))
    assert incidents() == {(name, end_class.value) for name in names}


@pytest.mark.parametrize("is_placed", [True, False])
def test_a_report_of_the_end_under_the_name_of_a_foreign_node_is_no_incident_of_it(
    job: Job, world: World, *, is_placed: bool
) -> None:
    """An attacker has a run's token, joins the rendezvous as another node, and reports a fault of its GPU."""
    attempt = run(job, ("victim", "n1"))
    Attempt.objects.filter(pk=attempt.pk).update(native_nodes=["n0", "n1"] if is_placed else [])
    end(world, attempt, (0, EndClass.GPU_FAULT))
    assert drive.status_of(job) == ("queued", "gpu_fault")
    assert incidents() == set()


def test_nodes_with_different_versions_are_not_at_fault_without_a_majority(job: Job, world: World) -> None:
    """Both agents report it, and nothing says which of the two has the right versions."""
    attempt = run(job, ("n0", "n1"))
    end(world, attempt, (0, EndClass.VERSIONS_DIFFER), (1, EndClass.VERSIONS_DIFFER))
    assert drive.status_of(job) == ("queued", "versions_differ")
    assert incidents() == set()
    assert services.nodes_to_avoid(job) == ()


def hang(attempt: Attempt, sequence: int, **data: object) -> None:
    """The agent of a node reports ranks without progress."""
    facts = {"node": "n1", "ranks": [1], "is_hang": True, "because": "rank 1 is stopped", **data}
    event = ProgressEvent(time=timezone.now(), type="progress.stalled", data=facts)
    ingest.ingest(attempt, "progress", Batch(writer="agent1", sequence=sequence, events=[event]))


def test_a_hang_of_an_attempt_that_continues_is_an_incident_of_its_node(job: Job, world: World) -> None:
    attempt = run(job, ("n0", "n1"))
    hang(attempt, 0, is_hang=False)
    hang(attempt, 1, ranks=[])  # all of this node wait for others
    hang(attempt, 2, node="n7")  # not one of this attempt
    assert incidents() == set()
    hang(attempt, 3)
    hang(attempt, 4)
    assert incidents() == {("n1", "hang")}
    assert services.nodes_to_avoid(job) == ()
    end(world, attempt, (1, EndClass.GPU_FAULT))
    assert incidents() == {("n1", "hang"), ("n1", "gpu_fault")}, "the hang does not hide what ended the attempt"


def test_a_fault_of_a_gpu_of_an_attempt_that_continues_on_a_spare_node_is_recorded(job: Job) -> None:
    attempt = run(job, ("n0", "n1"))
    for number, end_class in enumerate(("process_killed", ["gpu_fault"], None, "gpu_fault")):
        facts = {"generation": 1, "because": "Xid 79", "end_class": end_class, "node": "n1", "step": 5}
        event = ProgressEvent(time=timezone.now(), type="generation.started", data=facts)
        ingest.ingest(attempt, "progress", Batch(writer="agent1", sequence=number, events=[event]))
    assert incidents() == {("n1", "gpu_fault")}
    assert services.nodes_to_avoid(job) == ("n1",)


def test_a_fault_of_an_unknown_node_is_recorded_at_none(job: Job, world: World) -> None:
    attempt = run(job, ("n0", "n1"))
    world.finish(attempt.backend_name, 77)
    drive.settle()
    assert drive.status_of(job) == ("queued", "gpu_fault")
    assert incidents() == set()


@pytest.mark.parametrize(
    ("end_class", "reason"),
    [(EndClass.INTERNAL_ERROR, "trainer_error"), (EndClass.DEVICE_EXCEPTION, "device_exception")],
)
def test_an_error_of_the_trainer_is_not_the_users_and_is_retried_twice(
    job: Job, world: World, end_class: EndClass, reason: str
) -> None:
    for attempts in (1, 2, 3):
        attempt = run(job, (f"n{attempts}", "n9"))
        end(world, attempt, (0, end_class))
        assert drive.status_of(job) == ("failed" if attempts == 3 else "queued", reason)
    job.refresh_from_db()
    assert "after 2 retries" in job.reason_detail
    shown = explain(job.reason, job.reason_detail, has_ended=True)
    assert shown is not None
    assert shown["blame"] == "platform"
    assert NO_RETRIES not in shown["remedy"]
    faults = Meter.objects.values_list("slot_seconds", "fault_slot_seconds")
    assert all(total == lost for total, lost in faults)


@pytest.mark.parametrize(
    ("status", "reason"),
    [(1, "trainer_error"), (73, "trainer_error"), (78, "device_exception"), (143, "interrupted"), (-15, "interrupted")]
    + [(137, "process_killed"), (139, "process_killed"), (127, "launch_failed")],
)
def test_without_a_report_the_exit_status_is_not_blamed_on_the_user(
    job: Job, world: World, status: int, reason: str
) -> None:
    attempt = drive.run(job)
    world.finish(attempt.backend_name, status)
    drive.settle()
    assert drive.status_of(job) == ("queued", reason)
    assert rendezvous_rounds.newest_round(attempt) == (0, False)
