"""A node that Slurm has lost is replaced by a batch job of one node, on a real Slurm."""

import json
from dataclasses import replace

import pytest

from athanor.backends.base import Handle, Phase, Presence
from athanor.backends.plan import LaunchPlan
from athanor.backends.slurm.script import RAN_BEFORE
from deploy.local.handle import wait_until
from tests.backends.cases.slurm import SlurmCase
from tests.slurm.cluster import SlurmCluster


def started(case: SlurmCase, plan: LaunchPlan) -> Handle:
    """Submit an attempt, and wait until all of its agents run."""
    handle = case.backend.submit(case.backend.render(plan))
    wait_until(lambda: case.starts(handle) == plan.nodes + plan.spare_nodes, "all agents have started", 30)
    return handle


def lose(case: SlurmCase, cluster: SlurmCluster, handle: Handle, node: str) -> None:
    """Cut the power of a node, and wait until Slurm has removed it from the job."""
    cluster.configure(node_timeout_seconds=3)
    try:
        cluster.kill_node(node)
        wait_until(lambda: node not in case.observe(handle).nodes, "Slurm found out", 60)
    finally:
        cluster.configure(node_timeout_seconds=8)


def replaced(case: SlurmCase, plan: LaunchPlan, handle: Handle, avoid: tuple[str, ...]) -> Handle:
    """Request a replacement of the second node twice, and wait until its agent runs."""
    asked = case.backend.render_replacement(replace(plan, avoid_nodes=avoid), node_index=1, number=1)
    starts = case.starts(handle)
    replacement = case.backend.submit(asked)
    assert case.backend.submit(asked) == replacement
    assert replacement.backend_name == handle.backend_name
    assert replacement.backend_id not in ("0", handle.backend_id)
    wait_until(lambda: case.starts(handle) == starts + 1, "the agent runs on another node", 30)
    return replacement


@pytest.mark.parametrize("way", ["slurm_commands", "slurm_rest"])
def test_a_replacement_belongs_to_the_attempt(request: pytest.FixtureRequest, slurm: SlurmCluster, way: str) -> None:
    case: SlurmCase = request.getfixturevalue(way)
    plan = case.plan(nodes=2, min_nodes=1)
    handle = started(case, plan)
    before = case.observe(handle).nodes
    replacement = replaced(case, plan, handle, before)
    for known in (handle, Handle(handle.backend_name), replacement):
        wait_until(lambda: len(case.observe(known).nodes) == 3, "it is one of the attempt's nodes", 30)  # noqa: B023 - called within this iteration
        seen = case.observe(known)
        assert (seen.presence, seen.phase, seen.nodes[:2]) == (Presence.PRESENT, Phase.RUNNING, before)
    environment = json.loads((case.signals / f"environment-{handle.backend_name}-1").read_text())
    assert (environment["ATHANOR_NODE_INDEX"], environment["ATHANOR_NODE_NAME"]) == ("1", seen.nodes[2])
    assert case.backend.list_ours() == {handle.backend_name}
    case.backend.cancel(handle, force=True)
    case.until(handle, Presence.FINISHED, 60)
    wait_until(lambda: not case.backend.list_ours(), "both jobs have ended", 30)


@pytest.mark.parametrize("way", ["slurm_commands", "slurm_rest"])
def test_a_replacement_that_has_ended_is_not_reported(
    request: pytest.FixtureRequest, slurm: SlurmCluster, way: str
) -> None:
    case: SlurmCase = request.getfixturevalue(way)
    plan = case.plan(nodes=2, min_nodes=1)
    handle = started(case, plan)
    slurm.run("scontrol", "update", "PartitionName=main", "State=DOWN")
    try:
        waiting = case.backend.submit(case.backend.render_replacement(plan, node_index=1, number=1))
        assert case.observe(handle).replacements == {(1, 1)}
        slurm.run("scancel", waiting.backend_id)
        wait_until(lambda: case.observe(handle).replacements == frozenset(), "it has been cancelled", 30)
        assert case.observe(handle).phase is Phase.RUNNING
        second = case.backend.submit(case.backend.render_replacement(plan, node_index=1, number=2))
        assert second.backend_id not in (waiting.backend_id, handle.backend_id)
        assert case.observe(handle).replacements == {(1, 2)}
    finally:
        slurm.run("scontrol", "update", "PartitionName=main", "State=UP")
        case.backend.cancel(handle, force=True)


@pytest.mark.slow
def test_a_lost_node_is_replaced_in_the_same_attempt(slurm_commands: SlurmCase, slurm: SlurmCluster) -> None:
    case = slurm_commands
    plan = case.plan(nodes=2, min_nodes=2, spare_nodes=1)
    handle = started(case, plan)
    first, second, third = case.observe(handle).nodes
    lose(case, slurm, handle, third)
    lose(case, slurm, handle, second)
    replaced(case, plan, handle, (first,))
    wait_until(lambda: len(case.observe(handle).nodes) == 2, "it is one of the attempt's nodes", 30)
    seen = case.observe(handle).nodes
    assert seen[0] == first
    assert seen[1] not in (first, second, third)
    case.finish(handle)
    ended = case.until(handle, Presence.FINISHED, 60)
    assert (ended.exit_status, ended.cause, ended.nodes) == (0, None, seen), "both agents count as ended well"
    assert case.starts(handle) == 4
    assert "hello from the program" in case.backend.logs(handle).text.partition("the replacement of a lost node")[2]


def test_a_replacement_that_waits_is_not_taken_for_the_attempt(slurm_commands: SlurmCase, slurm: SlurmCluster) -> None:
    """Nor does it run when the attempt is over, which the attempt's own job does not wait for."""
    case = slurm_commands
    plan = case.plan(nodes=2, min_nodes=1)
    handle = started(case, plan)
    slurm.run("scontrol", "update", "PartitionName=main", "State=DOWN")
    try:
        waiting = case.backend.submit(case.backend.render_replacement(plan, node_index=1, number=1))
        assert waiting.backend_id != handle.backend_id
        for known in (handle, Handle(handle.backend_name), waiting):
            seen = case.observe(known)
            assert (seen.phase, len(seen.nodes), seen.replacements) == (Phase.RUNNING, 2, {(1, 1)})
        assert case.backend.submit(case.backend.render(plan)) == handle
        case.finish(handle)
        for known in (handle, Handle(handle.backend_name), waiting):
            assert case.until(known, Presence.FINISHED, 60).exit_status == 0
    finally:
        slurm.run("scontrol", "update", "PartitionName=main", "State=UP")
    ended = f"ExitCode={RAN_BEFORE}:0"
    wait_until(lambda: ended in slurm.run("scontrol", "show", "job", waiting.backend_id), "it has ended", 30)
    assert case.starts(handle) == 2
    assert case.observe(waiting).exit_status == 0
