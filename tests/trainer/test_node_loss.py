"""A node is lost with all that it had in memory, and a spare one continues from the copies on another node."""

import signal
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.trainer.agent_api import AgentApi
from tests.trainer.runs import platform_run, tiny_training
from tests.trainer.test_nodes import agent, log
from tests.trainer.test_shadow import holders
from trainer.contract import node_rendezvous
from trainer.contract.run import ProcessLayout, RunConfig

STEPS, KILLED_AT = 400, 20


def two_nodes(spare_nodes: int, steps: int = STEPS, **training: Any) -> tuple[Any, ...]:
    """A run without stored checkpoints: (its configuration, keys, objects)."""
    run, keys, objects = platform_run(
        tiny_training(steps=steps, **training), checkpoint={"every_steps": 1000, "shadow_every_steps": 1}
    )
    layout = ProcessLayout(nodes=2, processes_per_node=1)
    changes = {"layout": layout, "spare_nodes": spare_nodes, "heartbeat_seconds": 0.5}
    return RunConfig.model_validate({**run.model_dump(), **changes}), keys, objects


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[int, float]]:
    """The losses of the run on two nodes without spare ones, which sends no copies."""
    folder = tmp_path_factory.mktemp("undisturbed")
    run, keys, objects = two_nodes(spare_nodes=0)
    with AgentApi(run, keys, objects) as api:
        agents = [agent(api, folder, index) for index in range(2)]
        try:
            assert [each.wait(120) for each in agents] == [0, 0], log(api)
        finally:
            for process in agents:
                process.kill()
                process.wait()
        assert not any("checkpoint/replica_age_steps" in point["values"] for point in api.points())
        yield api.losses()


@pytest.mark.slow
@pytest.mark.parametrize(("lost", "kind"), [(1, "plain"), (0, "plain"), (1, "altered")])
def test_a_lost_node_costs_at_most_a_step_and_changes_no_number(
    undisturbed: dict[int, float], tmp_path: Path, lost: int, kind: str
) -> None:
    """If the first node is lost, the second gets its rank, and the spare one the rank of the second."""
    run, keys, objects = two_nodes(spare_nodes=1)
    with AgentApi(run, keys, objects) as api:
        program = ("tests.trainer.replica_agent", kind)
        agents = [agent(api, tmp_path, index, program) for index in range(3)]
        try:
            api.wait_for(lambda: any(beat["step"] >= KILLED_AT for beat in api.heartbeats), 120)
            started = [process.pid for each in agents for process in processes_of_tree(each.pid)]
            agents[lost].send_signal(signal.SIGKILL)
            assert [agents[index].wait(120) for index in range(3) if index != lost] == [0, 0], log(api)
        finally:
            for process in agents:
                process.kill()
                process.wait()
        (restored,) = api.events("checkpoint.restored")
        (restart,) = api.events("generation.started")
        assert (restored["tier"], restored["ranks"]) == ("peer", "1" if lost == 1 else "0, 1")
        steps_lost = restart["step"] - restored["step"]
        assert steps_lost in ((0, 1) if kind == "plain" else (1, 2)), "with the newest copy altered, one more"
        reasons = {event["because"] for event in api.events("shadow.skipped")}
        assert ("its content does not have its digest" in reasons) == (kind == "altered")
        assert api.checkpoints == api.checkpoints[-1:], "only that at the end"
        assert {end["end_class"] for end in api.ends} == {"completed"}
        assert {step: loss for step, loss in undisturbed.items() if api.losses().get(step) != loss} == {}
        ages = [point["values"].get("checkpoint/replica_age_steps") for point in api.points()]
        assert min(age for age in ages if age is not None) <= 2
    psutil.wait_procs([psutil.Process(pid) for pid in started if psutil.pid_exists(pid)], timeout=60)
    assert not holders() & set(started), "nothing is left in memory"


@pytest.mark.slow
def test_training_does_not_wait_for_a_node_that_takes_no_copies(undisturbed: dict[int, float], tmp_path: Path) -> None:
    run, keys, objects = two_nodes(spare_nodes=1)
    with AgentApi(run, keys, objects) as api:
        agents = [agent(api, tmp_path, index, ("tests.trainer.replica_agent", "stuck")) for index in range(3)]
        try:
            assert [each.wait(120) for each in agents] == [0, 0, 0], log(api)
        finally:
            for process in agents:
                process.kill()
                process.wait()
        assert api.losses() == undisturbed
        assert not any("checkpoint/replica_age_steps" in point["values"] for point in api.points()), "none has arrived"


@pytest.mark.slow
@pytest.mark.parametrize(("nodes", "lost"), [(2, 1), (3, 0)])
def test_without_a_spare_node_the_run_continues_on_fewer_nodes_with_the_same_samples(
    tmp_path: Path, nodes: int, lost: int
) -> None:
    """Each step has the same samples in the same order, so its loss is that of the undisturbed run."""
    training = tiny_training(steps=120, tokens_per_step=64 * 6)
    run, keys, objects = platform_run(training, checkpoint={"every_steps": 10, "shadow_every_steps": 1})
    changes = {"layout": ProcessLayout(nodes=nodes, processes_per_node=1), "heartbeat_seconds": 0.5}
    run = RunConfig.model_validate({**run.model_dump(), **changes})
    losses: list[dict[int, float]] = []
    for min_nodes in (None, nodes - 1):
        work = tmp_path / str(min_nodes)
        work.mkdir()
        with AgentApi(run.model_copy(update={"min_nodes": min_nodes}), keys, dict(objects)) as api:
            agents = [agent(api, work, index) for index in range(nodes)]
            others = [each for index, each in enumerate(agents) if index != lost or min_nodes is None]
            try:
                if min_nodes is not None:
                    api.wait_for(lambda: len(api.checkpoints) >= 2, 120)
                    agents[lost].send_signal(signal.SIGKILL)
                assert [each.wait(200) for each in others] == [0] * len(others), log(api)
            finally:
                for process in agents:
                    process.kill()
                    process.wait()
            losses.append(api.losses())
    assert [event["nodes"] for event in api.events("attempt.shrunk")] == [nodes - 1]
    assert [len(placed) for _, placed in sorted(api.placed.items())] == [nodes, nodes - 1]
    assert {each["round"]: len(each["nodes"]) for each in api.events("nodes.placed")} == {1: nodes, 2: nodes - 1}
    assert {end["end_class"] for end in api.ends} == {"completed"}
    assert sorted(losses[1]) == list(range(1, 121))
    assert losses[1] == pytest.approx(losses[0], abs=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(("lost", "zero"), [([1], 0), ([0], 3), ([2, 1], 3)])
def test_the_node_that_is_left_continues_from_the_copies_of_two(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: list[int], zero: int
) -> None:
    """There is no stored checkpoint: its own copy and that of the lost node's rank, which it holds, are the state. Of
    three nodes, one is lost after the other."""
    monkeypatch.setattr(node_rendezvous, "SHRINK_TIMEOUT", timedelta(seconds=1))
    losses: list[dict[int, float]] = []
    for min_nodes in (None, 1):
        run, keys, objects = two_nodes(0, 100, parallelism={"zero": zero}, tokens_per_step=64 * 6)
        nodes = len(lost) + 1
        layout = ProcessLayout(nodes=nodes, processes_per_node=1)
        run = run.model_copy(update={"layout": layout, "heartbeat_seconds": 0.1})
        work = tmp_path / str(min_nodes)
        work.mkdir()
        with AgentApi(run.model_copy(update={"min_nodes": min_nodes}), keys, objects) as api:
            agents = [agent(api, work, index, ("tests.trainer.replica_agent", "plain")) for index in range(nodes)]
            others = [each for index, each in enumerate(agents) if index not in lost or min_nodes is None]
            try:
                for generation, index in enumerate(lost if min_nodes is not None else []):
                    wait_for_steps(api, generation)
                    agents[index].send_signal(signal.SIGKILL)
                assert [each.wait(120) for each in others] == [0] * len(others), log(api)
            finally:
                for process in agents:
                    process.kill()
                    process.wait()
            losses.append(api.losses())
            assert len(api.checkpoints) == 1, "only that at the end"
    assert [event["nodes"] for event in api.events("attempt.shrunk")] == [*range(len(lost), 0, -1)]
    restored = api.events("checkpoint.restored")
    ranks = [", ".join(map(str, range(left))) for left in range(len(lost), 0, -1)]
    assert [(each["tier"], each["ranks"]) for each in restored] == [("peer", each) for each in ranks]
    for place, each in enumerate(restored):
        before = max(event["step"] for event in api.events("generation.started") if event["generation"] == place + 1)
        assert before - each["step"] in (0, 1)
    assert losses[1] == pytest.approx(losses[0], abs=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(("lost", "zero"), [(1, 0), (0, 3)])
def test_the_run_grows_when_the_lost_node_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: int, zero: int
) -> None:
    """There is no stored checkpoint: the state of the node that was left is divided between both."""
    monkeypatch.setattr(node_rendezvous, "SHRINK_TIMEOUT", timedelta(seconds=1))
    losses: list[dict[int, float]] = []
    for min_nodes in (None, 1):
        run, keys, objects = two_nodes(0, 160, parallelism={"zero": zero}, tokens_per_step=64 * 48)
        run = run.model_copy(update={"min_nodes": min_nodes, "heartbeat_seconds": 0.1})
        work = tmp_path / str(min_nodes)
        work.mkdir()
        with AgentApi(run, keys, objects) as api:
            agents = [agent(api, work, index) for index in range(2)]
            try:
                if min_nodes is not None:
                    wait_for_steps(api, 0)
                    agents[lost].send_signal(signal.SIGKILL)
                    agents[lost].wait(20)
                    wait_for_steps(api, 1)
                    agents[lost] = agent(api, work, lost)
                assert [each.wait(120) for each in agents] == [0, 0], log(api)
            finally:
                for process in agents:
                    process.kill()
                    process.wait()
            losses.append(api.losses())
            assert len(api.checkpoints) == 1, "only that at the end"
    assert {each["round"]: len(each["nodes"]) for each in api.events("nodes.placed")} == {1: 2, 2: 1, 3: 2}
    assert api.events("attempt.grown") == [{"round": 3, "nodes": 2, "of": 2, "before": 1}]
    assert len(api.events("attempt.shrunk")) == 1
    grown = next(each for each in api.events("generation.started") if each["generation"] == 2)
    assert grown["because"] == "a node has joined: the run continues on more nodes"
    restored = api.events("checkpoint.restored")[-1]
    assert grown["step"] - restored["step"] in (0, 1)
    assert {end["end_class"] for end in api.ends} == {"completed"}
    assert losses[1] == pytest.approx(losses[0], abs=1e-6)


@pytest.mark.slow
def test_the_run_begins_without_a_node_that_does_not_start_and_grows_when_it_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_rendezvous, "START_TIMEOUT", timedelta(seconds=1))
    losses: list[dict[int, float]] = []
    for min_nodes in (None, 1):
        run, keys, objects = two_nodes(0, 160, tokens_per_step=64 * 48)
        run = run.model_copy(update={"min_nodes": min_nodes, "heartbeat_seconds": 0.1})
        work = tmp_path / str(min_nodes)
        work.mkdir()
        with AgentApi(run, keys, objects) as api:
            agents = [agent(api, work, 1)]
            try:
                if min_nodes is not None:
                    wait_for_steps(api, 0)
                agents.append(agent(api, work, 0))
                assert [each.wait(120) for each in agents] == [0, 0], log(api)
            finally:
                for process in agents:
                    process.kill()
                    process.wait()
            losses.append(api.losses())
    assert {each["round"]: each["nodes"] for each in api.events("nodes.placed")} == {
        1: ["node1"],
        2: ["node0", "node1"],
    }
    assert api.events("attempt.shrunk") == [{"round": 1, "nodes": 1, "of": 2}]
    assert api.events("attempt.grown") == [{"round": 2, "nodes": 2, "of": 2, "before": 1}]
    assert losses[1] == pytest.approx(losses[0], abs=1e-6)


def wait_for_steps(api: AgentApi, generation: int) -> None:
    """Wait until a worker group has taken some steps, so that its copies have arrived on other nodes."""

    def has_taken() -> bool:
        before = [beat["step"] for beat in api.heartbeats if beat["generation"] < generation]
        since = [beat["step"] for beat in api.heartbeats if beat["generation"] == generation]
        return max(since, default=0) >= max(before, default=0) + KILLED_AT

    api.wait_for(has_taken, 120)


def processes_of_tree(pid: int) -> list[psutil.Process]:
    """Return a process and all that it has started."""
    return [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
