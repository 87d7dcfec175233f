"""Copies in memory are read by another number of ranks, on another mesh, bit for bit."""

import zlib
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from deploy.local.handle import wait_until
from tests.trainer.equality import Case, built
from tests.trainer.ranks import RankPool
from tests.trainer.runs import platform_run, tiny_training
from trainer.agent.replica_server import ReplicaServer
from trainer.checkpoint.copy_layout import Progress
from trainer.checkpoint.shadow import ShadowCheckpoints
from trainer.checkpoint.state import Shard, live_shards
from trainer.checkpoint.writer import Identity
from trainer.contract.run import MetricPoint, ProcessLayout, RunConfig
from trainer.optim.step import ShardOptimizer
from trainer.parallel.mesh import Mesh
from trainer.resilience.peer_link import Peers, secret_of
from trainer.resilience.shadow_memory import ShadowMemory

SECRET = secret_of("key", "att_1")
STEPS = (7, 9)
RANKS = 4


class Events:
    """Stands in for a reporter."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, dict[str, Any]]] = []

    def event(self, kind: str, **data: Any) -> None:
        self.seen.append((kind, data))

    def flush_events(self) -> None:
        """Send nothing."""


def expected(shard: Shard, step: int) -> torch.Tensor:
    """Return what a shard has after `step` steps: its part of a tensor of which each element is another number.
    Numbers of steps, which have no dimensions, are equal."""
    whole = torch.arange(max(1, torch.Size(shard.shape).numel())).view(shard.shape)
    for dimension, (offset, size) in enumerate(zip(shard.offsets, shard.tensor.shape, strict=True)):
        whole = whole.narrow(dimension, offset, size)
    return (whole + zlib.crc32(f"{shard.stored if shard.shape else None} {step}".encode()) % 1000).to(
        shard.tensor.dtype
    )


def prepare(
    mesh: Mesh, case: Case, server: tuple[str, int], held: list, restart_count: int, memory: ShadowMemory
) -> tuple[ShadowCheckpoints, list[Shard], Events]:
    """Return the shadow checkpoints of a rank, each of which is a node, and its state. One agent stands for all."""
    model, _ = built(mesh, case.spec())
    weights, open_store = model.weights, mesh.open_store
    weights.mesh.open_store = lambda prefix: open_store(f"{restart_count}/{prefix}")  # as each group has
    shards = live_shards(weights, ShardOptimizer(weights.trainable, weights.layouts, case.spec().optimizer))
    run, _, _ = platform_run(tiny_training(steps=20), checkpoint={"every_steps": 1000, "shadow_every_steps": 1})
    layout = ProcessLayout(nodes=mesh.world_size, processes_per_node=1)
    run = RunConfig.model_validate({**run.model_dump(), "layout": layout, "min_nodes": 1})
    domains = [(str(node),) for node in range(mesh.world_size)]
    peers = Peers(*server, SECRET, held if mesh.rank == 0 else [], 0, domains)
    assignment = SimpleNamespace(run=run, shadow=memory, peers=peers, restart_count=restart_count, corrupted=None)
    events = Events()
    return (
        ShadowCheckpoints(assignment, weights.mesh, Identity("spec", "data"), weights, shards, events),
        shards,
        events,
    )


def make_copies(mesh: Mesh, case: Case, server: tuple[str, int]) -> None:
    """On each rank of the first group: send the copies of both steps."""
    memory = ShadowMemory.create("test", 4)
    shadows, shards, _ = prepare(mesh, case, server, [], 0, memory)
    assert shadows.restore(None) is None
    assert shadows.is_sent_to_nodes or mesh.world_size == 1
    for step in STEPS:
        for shard in shards:
            shard.tensor.copy_(expected(shard, step))
        points = [MetricPoint(time=datetime.now(UTC), step=step, values={"train/loss": 1.0})] if mesh.rank == 0 else []
        shadows.take(step, shards, Progress(last_saved=3, metrics={"best": 2.0}, points=points))
        shadows.wait()
        wait_until(lambda: shadows.is_replicated, "the copy has not arrived", 30)
        shadows.report_replicated(step, mesh.world_size)
    memory.close()


def restore_copies(mesh: Mesh, case: Case, server: tuple[str, int], held: list) -> tuple[Any, ...]:
    """On each rank of the second group: return the step, progress, which shards are wrong, and the events."""
    memory = ShadowMemory.create("test", 4)
    shadows, shards, events = prepare(mesh, case, server, held, 1, memory)
    generator = torch.get_rng_state()
    restored = shadows.restore(None)
    assert torch.equal(torch.get_rng_state(), generator), "another mesh has other random numbers"
    if restored is None:
        complete = [header.step for header in memory.headers() if header.text is not None]
        return None, None, complete, events.seen
    wrong = [shard.stored for shard in shards if not torch.equal(shard.tensor, expected(shard, restored.step))]
    # What was put together is a copy of this group, from which the next group of as many ranks continues.
    again, shards, _ = prepare(mesh, case, server, [], 2, memory)
    assert again.restore(None).step == restored.step
    wrong += [shard.stored for shard in shards if not torch.equal(shard.tensor, expected(shard, restored.step))]
    memory.close()
    return restored.step, restored.progress, wrong, events.seen


@pytest.fixture(scope="module")
def pool() -> Iterator[RankPool]:
    with RankPool(RANKS) as pool:
        yield pool


@pytest.fixture
def server() -> Iterator[ReplicaServer]:
    server = ReplicaServer("127.0.0.1", SECRET, expected_ranks=100)
    server.begin_round(1)
    yield server
    server.close()


def copy_by(pool: RankPool, case: Case, server: ReplicaServer) -> None:
    pool.run(case.world, make_copies, case, (server.host, server.port))
    assert len(server.held()) == len(STEPS) * case.world
    server.begin_round(2)


def restore_by(pool: RankPool, case: Case, server: ReplicaServer, held: list | None = None) -> list[tuple[Any, ...]]:
    return pool.run(
        case.world, restore_copies, case, (server.host, server.port), server.held() if held is None else held
    )


MESHES = [
    (Case("dense", 2, {"zero": 3}), Case("dense", 1, {})),
    (Case("tied", 3, {"zero": 3}), Case("tied", 2, {"zero": 1})),
    (Case("moe", 4, {"tensor": 2, "zero": 3}), Case("moe", 2, {"expert": 2, "zero": 0})),
    (Case("tied", 4, {"pipeline": 2, "zero": 3, "micro_batch_sequences": 2}), Case("tied", 3, {"zero": 3})),
    (Case("dense", 2, {"zero": 3}, training={"optimizer": {"name": "muon"}}),
     Case("dense", 4, {"zero": 3, "replicate": 2}, training={"optimizer": {"name": "muon"}})),
]  # fmt: skip


@pytest.mark.parametrize(("before", "after"), MESHES, ids=str)
def test_a_state_is_the_same_on_another_number_of_ranks(
    pool: RankPool, server: ReplicaServer, before: Case, after: Case
) -> None:
    copy_by(pool, before, server)
    found = restore_by(pool, after, server)
    assert [(step, wrong) for step, _, wrong, _ in found] == [(9, [])] * after.world
    first, *others = [progress for _, progress, _, _ in found]
    assert (first.last_saved, first.metrics, [point.step for point in first.points]) == (3, {"best": 2.0}, [9])
    assert all(each == first.model_copy(update={"points": []}) for each in others)
    ranks = ", ".join(map(str, range(after.world)))
    (restored,) = [data for kind, data in found[0][3] if kind == "checkpoint.restored"]
    assert (restored["step"], restored["tier"], restored["ranks"]) == (9, "peer", ranks)
    assert bool(server.held()) == (after.world > 1), "a node that sends no copies needs those it held no longer"


def flip_a_bit(server: ReplicaServer, rank: int, step: int) -> None:
    for replica in server._replicas:
        for slot, copy in replica.of_slots.items():
            if (replica.rank, copy.step) == (rank, step):
                replica.memory.data(slot)[1000] ^= 1


def without(rank: int, *steps: int) -> Callable[[ReplicaServer], list]:
    """Return a function that returns what the agents hold, but for the copies of a rank."""
    return lambda server: [(of, copy) for of, copy in server.held() if of != rank or copy.step not in steps]


@pytest.mark.parametrize(
    ("zero", "lacks", "step", "because"),
    [
        (3, without(1, 9), 7, "no node holds a copy that has model/"),
        (3, without(1, 7, 9), None, "no node holds a copy that has model/"),
        (3, without(0, 9), 7, "no node holds the copy of rank 0 of 2"),
        (0, without(1, 9), 9, ""),  # the other rank has all of it
    ],
)
def test_the_newest_state_of_which_all_parts_are_there_is_used(
    pool: RankPool, server: ReplicaServer, zero: int, lacks: Callable, step: int | None, because: str
) -> None:
    copy_by(pool, Case("dense", 2, {"zero": zero}), server)
    ((found, _, wrong, events),) = restore_by(pool, Case("dense", 1, {}), server, lacks(server))
    assert (found, wrong) == (step, [])
    skipped = {data["step"]: data["because"] for kind, data in events if kind == "shadow.skipped"}
    assert sorted(skipped) == [each for each in STEPS if each > (step or 0)]
    assert all(each.startswith(because) for each in skipped.values())


def test_if_no_state_is_complete_nothing_is_left_of_what_ranks_have_read(pool: RankPool, server: ReplicaServer) -> None:
    """One of two ranks can read its part. The group trains again from an older state, so its copies are others."""
    copy_by(pool, Case("dense", 3, {"zero": 3}), server)
    for step in STEPS:
        flip_a_bit(server, 2, step)
    found = restore_by(pool, Case("dense", 2, {"zero": 3}), server)
    assert [(step, complete) for step, _, complete, _ in found] == [(None, [])] * 2


def test_a_damaged_copy_is_skipped(pool: RankPool, server: ReplicaServer) -> None:
    copy_by(pool, Case("dense", 3, {"zero": 3}), server)
    flip_a_bit(server, 2, 9)
    found = restore_by(pool, Case("dense", 2, {"zero": 3}), server)
    assert [(step, wrong) for step, _, wrong, _ in found] == [(7, [])] * 2
    (skipped,) = [data for kind, data in found[0][3] if kind == "shadow.skipped"]
    assert skipped["step"] == 9
    assert skipped["because"] == "its content does not have its digest"
