"""The same job file on every kind of cluster: the same losses, and what happens to the cluster on the way."""

import json
import sys
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import psutil
import pytest

from athanor.backends.kubernetes import names
from deploy.local.administrator import Administrator
from deploy.local.environment import REPOSITORY
from deploy.local.handle import wait_until
from tests.e2e.administration import registered
from tests.e2e.conftest import FINAL, TINY
from tests.e2e.figures import check_goodput, events_of
from tests.kubernetes.double.cluster import Cluster, running_cluster
from tests.slurm.cluster import SlurmCluster
from tests.slurm.fixtures import slurm, slurm_session

__all__ = ["slurm", "slurm_session"]
pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(400)]

AGENT = [sys.executable, "-m", "trainer.agent"]
# The trainer of this working tree, wherever the interpreter would find another.
PATHS = {"PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="module")
def admin(stack: Any) -> Administrator:
    return Administrator(stack.credentials)


def submit(stack: Any, tmp_path: Path, cluster: str, nodes: int = 1, processes: int = 2, **changes: Any) -> str:
    """The file is the same for every cluster, which the command line names."""
    training = {**TINY["training"], **changes.pop("training", {})}
    resources = {"nodes": nodes, "processes_per_node": processes, **changes.pop("resources", {})}
    path = tmp_path / "job.json"
    path.write_text(json.dumps({**TINY, "resources": resources, "training": training, **changes}))
    return str(stack.json("submit", str(path), "--set", f"resources.cluster={cluster}")["id"])


def losses(stack: Any, job_id: str) -> list[float]:
    return list(stack.curve(job_id, "train/loss")["values"])


@pytest.fixture(scope="module")
def of_this_machine(stack: Any, tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], list[float]]:
    """The losses of the tiny job with so many processes here."""
    found: dict[int, list[float]] = {}

    def trained(processes: int) -> list[float]:
        if processes not in found:
            job_id = submit(stack, tmp_path_factory.mktemp("here"), "local", processes=processes)
            assert stack.wait_for_end(job_id)["status"] == "succeeded"
            found[processes] = losses(stack, job_id)
        return found[processes]

    return trained


@pytest.fixture
def slurm_cluster_id(stack: Any, admin: Administrator, slurm: SlurmCluster) -> Iterator[str]:
    config = slurm.config(command=AGENT, profile={"environment": PATHS})
    with registered(admin, stack.data_dir, "slurm", "slurm", config) as cluster_id:
        yield cluster_id


def attempts(stack: Any, job_id: str) -> list[Any]:
    return list(stack.job(job_id)["attempts"])


@pytest.fixture(scope="module")
def kubernetes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running_cluster(tmp_path_factory.mktemp("kubernetes"), nodes=4) as cluster:
        yield cluster


@pytest.fixture
def kubernetes_cluster_id(stack: Any, admin: Administrator, kubernetes: Cluster) -> Iterator[str]:
    config = kubernetes.config(command=AGENT, profile={"environment": PATHS})
    with registered(admin, stack.data_dir, "kubernetes", "kubernetes", config) as cluster_id:
        yield cluster_id


@pytest.fixture(params=["slurm", "kubernetes"])
def cluster(request: pytest.FixtureRequest) -> str:
    """Its name; its id is that of `NAME_cluster_id`."""
    request.getfixturevalue(f"{request.param}_cluster_id")
    return str(request.param)


@pytest.mark.parametrize(("nodes", "processes"), [(1, 2), (2, 2)])
def test_every_kind_of_cluster_trains_the_same_file_to_the_same_losses(
    stack: Any, tmp_path: Path, cluster: str, of_this_machine: Callable[[int], list[float]], nodes: int, processes: int
) -> None:
    job_id = submit(stack, tmp_path, cluster, nodes, processes)
    job = stack.wait_for_end(job_id)
    output = stack.get(f"/jobs/{job_id}/attempts/1/output")["text"]
    assert job["status"] == "succeeded", (job["reason"], output[-3000:])
    assert losses(stack, job_id) == pytest.approx(of_this_machine(nodes * processes), rel=1e-5)
    (attempt,) = job["attempts"]
    assert attempt["native_state"].lower().startswith("complete")
    assert len(attempt["nodes"]) == nodes
    asked = f"#SBATCH --nodes={nodes}" if cluster == "slurm" else f'"completions": {nodes}'
    assert asked in job["submission"]


def test_a_cancelled_run_on_kubernetes_leaves_a_checkpoint(
    stack: Any, tmp_path: Path, kubernetes_cluster_id: str
) -> None:
    job_id = submit(
        stack, tmp_path, "kubernetes", 2, 1, training={"steps": 100_000}, checkpoint={"every_steps": 90_000}
    )
    stack.wait_for_step(job_id, 3)
    stack.json("cancel", job_id)
    job = stack.wait_for_end(job_id)
    assert (job["status"], job["reason"]["code"]) == ("cancelled", "stopped_by_user")
    (attempt,) = job["attempts"]
    assert attempt["last_step"] >= 3
    assert [each["step"] for each in events(stack, job_id, "checkpoint.registered")] == [attempt["last_step"]]


@pytest.mark.parametrize("resources", [{}, {"min_nodes": 1}], ids=["all nodes", "min_nodes"])
def test_a_pod_that_is_evicted_costs_an_attempt_and_nothing_else(
    stack: Any, tmp_path: Path, kubernetes: Cluster, kubernetes_cluster_id: str, resources: dict[str, int]
) -> None:
    training = {"steps": 100, "evaluation": {"every_steps": 100, "sequences": 8}}
    job_id = submit(
        stack, tmp_path, "kubernetes", 2, 1, training=training, checkpoint={"every_steps": 20}, resources=resources
    )
    stack.wait_for_step(job_id, 40)
    (name,) = {pod["metadata"]["labels"]["job-name"] for pod in living_pods(kubernetes)}
    kubernetes.disrupt(kubernetes.pods_of(name)[1], "PreemptionByScheduler", "preempting to accommodate another pod")
    job = stack.wait_for_end(job_id)
    first, second = job["attempts"]
    assert job["status"] == "succeeded", job["reason"]
    assert first["reason"]["code"] == "preempted"
    assert second["number"] == 2
    assert stack.steps_of(job_id) == list(range(1, 101))


def living_pods(kubernetes: Cluster) -> list[Any]:
    pods = kubernetes.store.all("pods")
    return [pod for pod in pods if pod.get("status", {}).get("phase") == "Running"]


def test_a_job_that_is_cancelled_in_slurm_itself_ends_as_stopped_by_an_administrator(
    stack: Any, tmp_path: Path, slurm: SlurmCluster, slurm_cluster_id: str
) -> None:
    job_id = submit(stack, tmp_path, "slurm", training={"steps": 100_000})
    stack.wait_for_step(job_id, 3)
    slurm.run("scancel", "--user=root")
    job = stack.wait_for_end(job_id)
    assert (job["status"], job["reason"]["code"]) == ("cancelled", "stopped_by_admin")
    assert [each["number"] for each in job["attempts"]] == [1]


def test_a_lost_node_costs_an_attempt_and_the_run_goes_on_from_its_checkpoint(
    stack: Any, admin: Administrator, tmp_path: Path, slurm: SlurmCluster, slurm_cluster_id: str
) -> None:
    training = {"steps": 100, "evaluation": {"every_steps": 100, "sequences": 8}}
    job_id = submit(stack, tmp_path, "slurm", 2, 1, training=training, checkpoint={"every_steps": 20})
    stack.wait_for_step(job_id, 40)
    (attempt,) = attempts(stack, job_id)
    lost = attempt["nodes"][1]
    slurm.kill_node(lost)
    wait_until(lambda: len(attempts(stack, job_id)) == 2, "it has another attempt", 120)
    job = stack.wait_for_end(job_id)
    first, second = job["attempts"]
    assert job["status"] == "succeeded", job["reason"]
    assert first["reason"]["code"] == "node_lost"
    assert lost not in second["nodes"]
    steps = stack.steps_of(job_id)
    assert steps == list(range(1, 101))
    named = {each["name"]: each for each in admin.call("GET", f"clusters/{slurm_cluster_id}/nodes")["items"]}
    assert lost in named


def test_a_preempted_run_goes_on_from_its_checkpoint_when_there_is_room_again(
    stack: Any, tmp_path: Path, slurm: SlurmCluster, slurm_cluster_id: str
) -> None:
    training = {"steps": 100_000, "evaluation": {"every_steps": 100_000, "sequences": 8}}
    job_id = submit(stack, tmp_path, "slurm", training=training, checkpoint={"every_steps": 50_000})
    stack.wait_for_step(job_id, 20)
    urgent = slurm.run(
        "sbatch", "--parsable", "--nodes=4", "--exclusive", "--partition=urgent", "--output=/dev/null",
        text="#!/bin/sh\nexec sleep 600\n",
    ).strip()  # fmt: skip
    wait_until(
        lambda: len(attempts(stack, job_id)) == 2 and attempts(stack, job_id)[-1]["phase"] == "pending",
        "it waits in Slurm's queue again", 120,
    )  # fmt: skip
    first, second = attempts(stack, job_id)
    assert first["reason"]["code"] == "preempted"
    assert first["last_step"] >= 20  # it had the time for a checkpoint
    assert second["explanation"]
    slurm.run("scancel", urgent)
    stack.wait_for_step(job_id, first["last_step"] + 5)
    stack.json("cancel", job_id)
    job = stack.wait_for_end(job_id)
    assert (job["status"], len(job["attempts"])) == ("cancelled", 2), job["reason"]
    steps = stack.steps_of(job_id)
    assert steps == list(range(1, len(steps) + 1)), "none is missing and none was done twice"


def test_a_spare_node_takes_the_place_of_a_lost_one_within_the_same_attempt(
    stack: Any, tmp_path: Path, slurm: SlurmCluster, slurm_cluster_id: str
) -> None:
    training = {"steps": 100, "evaluation": {"every_steps": 100, "sequences": 8}}
    resources = {"spare_nodes": 1}
    job_id = submit(
        stack, tmp_path, "slurm", 2, 1, training=training, checkpoint={"every_steps": 20}, resources=resources
    )
    stack.wait_for_step(job_id, 40)
    placed = events(stack, job_id, "nodes.placed")
    assert [each["round"] for each in placed] == [1]
    slurm.kill_node(placed[0]["nodes"][1])
    job = stack.wait_for_end(job_id)
    assert job["status"] == "succeeded", job["reason"]
    assert len(job["attempts"]) == 1
    first, *_, last = events(stack, job_id, "nodes.placed")
    assert last["round"] > 1
    assert last["nodes"][0] in first["nodes"]
    assert last["nodes"][1] not in first["nodes"]
    assert stack.steps_of(job_id) == list(range(1, 101))
    (ledger,) = check_goodput(stack, job_id)["attempts"]
    placed_at = next(each["time"] for each in events_of(stack, job_id) if each["type"] == "nodes.placed")
    since = datetime.fromisoformat(ledger["end"]) - datetime.fromisoformat(placed_at)
    idle = {each["activity"]: each["slot_seconds"] for each in ledger["categories"]}["idle"]
    assert idle == pytest.approx(since.total_seconds(), abs=1e-3), "always one of the three: the spare or the lost one"


def test_a_killed_agent_starts_again_and_takes_part_in_the_same_attempt(
    stack: Any, tmp_path: Path, cluster: str, request: pytest.FixtureRequest
) -> None:
    training = {"steps": 100, "evaluation": {"every_steps": 100, "sequences": 8}}
    resources = {"min_nodes": 1}
    job_id = submit(
        stack, tmp_path, cluster, 2, 1, training=training, checkpoint={"every_steps": 20}, resources=resources
    )
    stack.wait_for_step(job_id, 40)
    kill_second_agent(request.getfixturevalue(cluster))
    job = stack.wait_for_end(job_id)
    assert job["status"] == "succeeded", job["reason"]
    (attempt,) = job["attempts"]
    assert attempt["native_state"].lower().startswith("complete")
    first, *_, last = events(stack, job_id, "nodes.placed")
    assert last["round"] > first["round"]
    assert len(last["nodes"]) == len(first["nodes"]) == 2
    assert stack.steps_of(job_id) == list(range(1, 101))


def test_a_node_that_slurm_has_lost_is_replaced_and_the_run_grows_back(
    stack: Any, tmp_path: Path, slurm: SlurmCluster, slurm_cluster_id: str
) -> None:
    training = {"steps": 100_000, "evaluation": {"every_steps": 100_000, "sequences": 8}}
    job_id = submit(
        stack, tmp_path, "slurm", 2, 1, training=training, checkpoint={"every_steps": 50_000},
        resources={"min_nodes": 1},
    )  # fmt: skip
    stack.wait_for_step(job_id, 20)
    (attempt,) = attempts(stack, job_id)
    first, lost = attempt["nodes"]
    slurm.kill_node(lost)
    wait_until(lambda: events(stack, job_id, "attempt.shrunk"), "it continues on one node", 120)
    wait_until(lambda: events(stack, job_id, "attempt.grown"), "it continues on two nodes again", 180)
    (asked,) = events(stack, job_id, "attempt.node_requested")
    assert (asked["node_index"], asked["node"], asked["number"]) == (1, lost, 1)
    (grown,) = events(stack, job_id, "attempt.grown")
    assert (grown["nodes"], grown["before"]) == (2, 1)
    (attempt,) = attempts(stack, job_id)
    assert attempt["nodes"][0] == first
    assert attempt["nodes"][1] not in (first, lost)
    stack.wait_for_step(job_id, stack.job(job_id)["progress"]["step"] + 5)
    stack.json("cancel", job_id)
    job = stack.wait_for_end(job_id)
    assert (job["status"], job["reason"]["code"], len(job["attempts"])) == ("cancelled", "stopped_by_user", 1)
    saved = events(stack, job_id, "checkpoint.registered")
    assert [each["step"] for each in saved] == [job["attempts"][0]["last_step"]]
    wait_until(lambda: not slurm.run("squeue", "-h").strip(), "no job of it is left", 60)


def kill_second_agent(cluster: SlurmCluster | Cluster) -> None:
    """Kill the agent of the second node of the cluster's job, not its ranks."""
    if isinstance(cluster, Cluster):
        (pod,) = [pod for pod in living_pods(cluster) if pod["metadata"]["annotations"][names.INDEX] == "1"]
        agents = [psutil.Process(cluster.kubelet.process_of(pod))]
    else:
        running = psutil.process_iter(["cwd", "cmdline"])
        agents = [process for process in running if is_second_agent(cluster, process.info)]
    (agent,) = agents
    agent.kill()


def is_second_agent(slurm: SlurmCluster, process: dict[str, Any]) -> bool:
    """Whether this is the agent, not its ranks, of the second node of a Slurm job."""
    folder = Path(process["cwd"] or "/")
    return folder.is_relative_to(slurm.work_directory) and folder.name == "1" and process["cmdline"] == AGENT


def events(stack: Any, job_id: str, kind: str) -> list[Any]:
    items = stack.get(f"/jobs/{job_id}/events", limit=200)["items"]
    return [each["data"] for each in items if each["type"] == kind]


def test_while_its_controller_is_away_a_run_goes_on_and_its_end_is_found(
    stack: Any, tmp_path: Path, slurm: SlurmCluster, slurm_cluster_id: str
) -> None:
    job_id = submit(stack, tmp_path, "slurm", training={"steps": 60})
    stack.wait_for_step(job_id, 5)
    slurm.stop_controller()
    try:
        wait_until(
            lambda: (stack.job(job_id)["progress"] or {}).get("step") == 60 or stack.job(job_id)["status"] in FINAL,
            "it has trained to its end", 120,
        )  # fmt: skip
    finally:
        slurm.start_controller()
    job = stack.wait_for_end(job_id)
    assert (job["status"], len(job["attempts"])) == ("succeeded", 1)


def test_what_waits_in_slurms_queue_says_so_and_can_be_cancelled(
    stack: Any, tmp_path: Path, slurm: SlurmCluster, slurm_cluster_id: str
) -> None:
    # Not its nodes: where the platform has seen them drained, it does not hand the job to Slurm.
    slurm.run("scontrol", "update", "PartitionName=main", "State=DOWN")
    try:
        job_id = submit(stack, tmp_path, "slurm")
        wait_until(lambda: any(each["explanation"] for each in attempts(stack, job_id)), "it waits, and says why", 60)
        (attempt,) = attempts(stack, job_id)
        assert attempt["phase"] == "pending"
        assert attempt["launched_at"] is None
        stack.json("cancel", job_id)
        assert stack.wait_for_end(job_id)["reason"]["code"] == "stopped_by_user"
    finally:
        slurm.run("scontrol", "update", "PartitionName=main", "State=UP")
