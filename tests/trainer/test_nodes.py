"""Runs of several nodes: who gets which ranks, and what follows when a node is lost."""

import os
import signal
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest

from tests.chaos.faults.worker import LASTING_BIT
from tests.trainer.agent_api import TOKEN, AgentApi
from tests.trainer.runs import platform_run, tiny_training
from trainer.contract import environment as names
from trainer.contract.node_rendezvous import (
    JoinRequest,
    arrange,
    choose_num_nodes,
    count_missing,
    hops,
    spans,
    stages_of_nodes,
)
from trainer.contract.parallelism import MeshSizes
from trainer.contract.preflight import PreflightReport
from trainer.contract.run import ProcessLayout, RunConfig

ROOT = Path(__file__).resolve().parents[2]


def join(index: int, *topology: str, name: str = "") -> JoinRequest:
    return JoinRequest(
        node_index=index, name=name or f"n{index:02}", address="127.0.0.1", store_port=1, topology=list(topology)
    )


def names_of(joins: list[JoinRequest]) -> list[str]:
    return [each.name for each in joins]


def test_neighbours_in_rank_are_neighbours_below_the_switches() -> None:
    scattered = [join(0, "top", "b"), join(1, "top", "a"), join(2, "top", "b"), join(3, "top", "a")]
    assert names_of(arrange(scattered, 4)) == ["n01", "n03", "n00", "n02"]


def test_stages_of_one_pipeline_are_neighbours_and_replicas_lie_across() -> None:
    scattered = [join(0, "b"), join(1, "a"), join(2, "b"), join(3, "a")]
    placed = arrange(scattered, 4, stages=2)
    # Node ranks 0 and 2 are the stages of one pipeline, 1 and 3 those of the other.
    assert [each.topology for each in placed] == [["a"], ["b"], ["a"], ["b"]]
    sizes = MeshSizes(pipeline=2, replicate=2, tensor=2)
    assert spans(sizes, 2, placed) == {"pipeline": (2, 1), "replicate": (2, 3), "tensor": (1, 0)}
    plain = arrange(scattered, 4)
    assert spans(sizes, 2, plain)["pipeline"] == (2, 3)


def test_nodes_beyond_those_that_are_needed_are_spare_by_their_index() -> None:
    assert names_of(arrange([join(3, "a"), join(1, "b"), join(0, "c"), join(2, "a")], 2)) == ["n01", "n00"]


def seconds(count: float | None) -> timedelta | None:
    return None if count is None else timedelta(seconds=count)


@pytest.mark.parametrize(
    ("joined", "expected", "needed", "fewest", "waited", "missing"),
    [
        (1, 4, 4, 4, None, 3),
        (4, 4, 4, 4, 0, 0),
        (4, 5, 4, 4, 9, 1),  # a spare node, for a moment
        (4, 5, 4, 4, 10, 0),
        (5, 5, 4, 4, 0, 0),
        (3, 4, 4, 4, None, 1),  # it may not shrink, however long it waits
        (1, 4, 4, 2, None, 3),
        (2, 4, 4, 2, 14, 2),
        (2, 4, 4, 2, 15, 0),
        (3, 5, 4, 2, 15, 0),
        (3, 3, 4, 2, 0, 0),  # the fourth has left for good: nothing to wait for
        (2, 3, 4, 2, 1, 1),
        (4, 5, 4, 2, 1, 1),
    ],
)
def test_what_a_round_waits_for(
    joined: int, expected: int, needed: int, fewest: int, waited: float | None, missing: int
) -> None:
    assert count_missing(2, joined, expected, needed, fewest, seconds(waited)) == missing


@pytest.mark.parametrize(("joined", "waited", "missing"), [(1, None, 3), (2, 119, 2), (2, 120, 0), (3, 120, 0)])
def test_the_first_round_waits_longer(joined: int, waited: float | None, missing: int) -> None:
    assert count_missing(1, joined, 4, 4, 2, seconds(waited)) == missing


@pytest.mark.parametrize(("joined", "fitting", "placed"), [(9, {8}, 8), (8, {8}, 8), (7, {6, 4}, 6), (5, {4}, 4)])
def test_a_round_has_the_largest_number_of_nodes_that_fits(joined: int, fitting: set[int], placed: int) -> None:
    assert choose_num_nodes(joined, 8, 4, fitting.__contains__) == placed


@pytest.mark.parametrize(
    ("sizes", "per_node", "stages"),
    [
        (MeshSizes(pipeline=4, replicate=2), 2, 4),
        (MeshSizes(pipeline=4, replicate=2), 4, 1),
        (MeshSizes(replicate=8), 2, 1),
    ],
)
def test_a_pipeline_falls_into_stages_of_nodes_only_when_each_is_whole_nodes(
    sizes: MeshSizes, per_node: int, stages: int
) -> None:
    assert stages_of_nodes(sizes, per_node) == stages


def test_hops_count_the_switches_between() -> None:
    assert hops(join(0, "t", "a"), join(0, "t", "a")) == 0
    assert hops(join(0, "t", "a"), join(1, "t", "a")) == 1
    assert hops(join(0, "t", "a"), join(1, "t", "b")) == 3
    assert hops(join(0), join(1)) == 3  # nothing is known: the worst is assumed


def agent(
    api: AgentApi, work: Path, index: int, program: tuple[str, ...] = ("trainer.agent",), more_code: str = ""
) -> "subprocess.Popen[bytes]":
    environment = {
        **os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [more_code, str(ROOT)])),
        names.AGENT_URL: api.url, names.ATTEMPT_TOKEN: TOKEN,
        names.NODE_INDEX: str(index), names.NODE_NAME: f"node{index}", names.NODE_ADDRESS: "127.0.0.1",
        names.WORK_DIR: str(work / f"node{index}"),
    }  # fmt: skip
    (work / f"node{index}").mkdir(exist_ok=True)  # it may be started again
    log = (work / f"log{index}").open("wb")
    return subprocess.Popen([sys.executable, "-m", *program], env=environment, stdout=log, stderr=log)


def log(api: AgentApi) -> str:
    return "\n".join(line["text"] for line in api.records("logs", "lines"))[-6000:]


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["killed", "GPU", "slow", "corrupts"])
def test_a_spare_node_takes_the_place_of_one_that_is_lost(tmp_path: Path, fault: str) -> None:
    """Three agents for a run of two nodes. The second is killed in the middle with all its processes, has a fault of
    its GPU, is slow, or computes a wrong gradient, and the same when it computes it again; the run continues on the
    first and the third, from the copies in the memory of the first or the checkpoint that it has stored because of the
    slow node, and ends as if nothing had been."""
    training = tiny_training(steps=60)
    run, keys, objects = platform_run(training, checkpoint={"every_steps": 5, "shadow_every_steps": 1})
    with AgentApi(run, keys, dict(objects)) as api:
        whole = agent(api, tmp_path, 0)
        assert whole.wait(120) == 0
        expected = api.losses()
    layout = ProcessLayout(nodes=2, processes_per_node=1)
    run = RunConfig.model_validate({**run.model_dump(), "layout": layout, "spare_nodes": 1, "heartbeat_seconds": 0.5})
    (tmp_path / "cluster").mkdir()
    (tmp_path / "records").mkdir()
    kinds = {"GPU": ("gpu", "step"), "slow": ("slow", "backward"), "corrupts": (LASTING_BIT, "backward")}
    kind = kinds.get(fault, ("", ""))
    program = ("tests.chaos.faults.agent", str(tmp_path / "records"), *kind, "60")
    with AgentApi(run, keys, objects) as api:
        agents = [agent(api, tmp_path / "cluster", index, program) for index in range(3)]
        try:
            if fault == "killed":
                api.wait_for(lambda: len(api.checkpoints) >= 2, 120)
                agents[1].send_signal(signal.SIGKILL)
            else:
                assert agents[1].wait(180) == 0, log(api)
            assert agents[0].wait(120) == 0, log(api)
            assert agents[2].wait(120) == 0, log(api)
        finally:
            for process in agents:
                process.kill()
                process.wait()
        assert [[each.node_index for each in nodes] for _, nodes in sorted(api.placed.items())] == [[0, 1], [0, 2]]
        skipped = {event["because"] for event in api.events("shadow.skipped") if event["rank"] == 1}
        assert skipped <= {"this rank has no copy of it"}, "its new node has only what was sent"
        restored = [(event["tier"], event["ranks"]) for event in api.events("checkpoint.restored")]
        assert restored == ([("stored", "")] if fault == "slow" else [("peer", "1")])
        restarts = {(event["node"], event["end_class"]) for event in api.events("generation.started")}
        assert (("node1", "gpu_fault") in restarts) == (fault == "GPU")
        assert (("node1", "slow_node") in restarts) == (fault == "slow")
        assert (("node1", "node_unfit") in restarts) == (fault == "corrupts")
        corrupted = [(event["ranks"], event["node"]) for event in api.events("gradient.corrupted")]
        assert corrupted == ([("1", "node1")] if fault == "corrupts" else [])
        assert {end["end_class"] for end in api.ends} == {"completed"}
        assert len(api.models) == 1
        assert api.losses() == pytest.approx(expected, rel=1e-5)


def processes_of(agent_pid: int) -> tuple[int, int]:
    """Return the pids of an agent's fork server, and of its rank: of the server's children the busiest."""
    parents, seconds = {}, {}
    for place in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = place.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        child = int(place.parent.name)
        parents[child], seconds[child] = int(fields[1]), int(fields[11]) + int(fields[12])
    ranks = [child for child, parent in parents.items() if parents.get(parent) == agent_pid]
    rank = max(ranks, key=seconds.__getitem__)
    return parents[rank], rank


IMPATIENT = """
from trainer.contract import timeouts

timeouts.HANG_SECONDS = 6.0
"""


@pytest.mark.slow
@pytest.mark.parametrize("stopped", ["fork server", "rank"])
def test_what_hangs_on_one_node_is_restarted_and_the_other_node_is_not_blamed(tmp_path: Path, stopped: str) -> None:
    training = tiny_training(steps=300)  # more than end within the time that a server may be stopped
    (tmp_path / "code").mkdir()
    (tmp_path / "code/sitecustomize.py").write_text(IMPATIENT)
    run, keys, objects = platform_run(training, processes=2, checkpoint={"every_steps": 5, "shadow_every_steps": 1})
    with AgentApi(run, keys, dict(objects)) as api:
        assert agent(api, tmp_path, 0).wait(120) == 0
        expected = api.losses()
    layout = ProcessLayout(nodes=2, processes_per_node=1)
    changes = {"layout": layout, "max_restarts_in_place": 1, "heartbeat_seconds": 0.5}
    run = RunConfig.model_validate({**run.model_dump(), **changes})
    (tmp_path / "cluster").mkdir()
    with AgentApi(run, keys, objects) as api:
        agents = [agent(api, tmp_path / "cluster", index, more_code=str(tmp_path / "code")) for index in range(2)]
        try:
            api.wait_for(lambda: len(api.checkpoints) >= 2, 120)
            os.kill(processes_of(agents[1].pid)[stopped == "rank"], signal.SIGSTOP)
            assert [each.wait(180) for each in agents] == [0, 0], log(api)
        finally:
            for process in agents:
                process.kill()
                process.wait()
        stalled = api.events("progress.stalled")
        assert {(event["node"], *event["ranks"]) for event in stalled if event["is_hang"]} <= {("node1", 1), ("node0",)}
        assert ("node1", 1) in {(event["node"], *event["ranks"]) for event in stalled}
        assert {event["tier"] for event in api.events("checkpoint.restored")} == {"shadow"}
        assert {end["end_class"] for end in api.ends} == {"completed"}
        assert api.losses() == expected


OTHER_VERSION = """
import importlib.metadata as metadata

real = metadata.version
metadata.version = lambda name: "0.0.9" if name == "athanor" else real(name)
"""


@pytest.mark.slow
def test_a_node_with_other_versions_is_replaced_and_the_rest_are_measured(tmp_path: Path) -> None:
    """Four agents for a run of three nodes. The second has another version of the trainer."""
    run, keys, objects = platform_run(tiny_training(steps=6))
    changes = {"layout": ProcessLayout(nodes=3, processes_per_node=1), "spare_nodes": 1, "heartbeat_seconds": 0.5}
    run = RunConfig.model_validate({**run.model_dump(), **changes, "preflight": True})
    (tmp_path / "code").mkdir()
    (tmp_path / "code/sitecustomize.py").write_text(OTHER_VERSION)
    with AgentApi(run, keys, objects) as api:
        more = {1: str(tmp_path / "code")}
        agents = [agent(api, tmp_path, index, more_code=more.get(index, "")) for index in range(4)]
        try:
            assert [each.wait(180) for each in agents] == [0, 0, 0, 0], log(api)
        finally:
            for process in agents:
                process.kill()
                process.wait()
        assert [{each.node_index for each in nodes} for _, nodes in sorted(api.placed.items())] == [
            {0, 1, 2},
            {0, 2, 3},
        ]
        left = [event for event in api.events("generation.started") if event["end_class"] == "node_unfit"]
        assert [event["node"] for event in left] == ["node1"]
        assert "0.0.9 on node1; install the same on all nodes" in left[0]["because"]
        (event,) = api.events("preflight.completed")
        report = PreflightReport.model_validate(event["report"])
        assert (report.ranks, report.nodes) == (3, 3)
        assert {each.name: each.count for each in report.measures}["pairs, each way"] == 2
        assert {end["end_class"] for end in api.ends} == {"completed"}
