"""The mesh's arithmetic agrees with its definition, builds no list of the world, and its timeouts are kept."""

import datetime
from itertools import product

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from tests.trainer.ranks import RankPool
from trainer.contract.parallelism import MeshSizes
from trainer.parallel.mesh import GRID, Mesh

CPU = torch.device("cpu")
AXES = [(axis,) for axis in GRID] + [
    ("shard", "context"),
    ("replicate", "shard", "context"),
    ("context", "tensor"),
    GRID,
]


@st.composite
def meshes(draw: st.DrawFn) -> Mesh:
    """Return the mesh of a random rank."""
    numbers = draw(st.lists(st.integers(1, 4), min_size=5, max_size=5))
    sizes = dict(zip(GRID, numbers, strict=True))
    zero = draw(st.sampled_from([0, 3]))
    room = (sizes["shard"] if zero else sizes["replicate"]) * sizes["context"]
    expert = draw(st.sampled_from([each for each in range(1, room + 1) if room % each == 0]))
    chosen = MeshSizes(**sizes, zero=zero, expert=expert)
    return Mesh(draw(st.integers(0, chosen.world - 1)), chosen.world, 0, CPU, chosen)


def peers_by_definition(mesh: Mesh, axes: tuple[str, ...]) -> list[int]:
    """Return the ranks whose coordinates differ from the rank's own only along `axes`."""
    sizes = [mesh.sizes.named[axis] for axis in GRID]
    places = list(product(*map(range, sizes)))  # of each rank
    mine = places[mesh.rank]
    others = [at for at, axis in enumerate(GRID) if axis not in axes]
    return [rank for rank, place in enumerate(places) if all(place[at] == mine[at] for at in others)]


@given(mesh=meshes())
def test_peers_sizes_and_coordinates_agree_with_the_definition(mesh: Mesh) -> None:
    for axes in AXES:
        expected = peers_by_definition(mesh, axes)
        assert list(mesh.peers(*axes)) == expected
        assert (mesh.size(*axes), mesh.coordinate(*axes)) == (len(expected), expected.index(mesh.rank))


@given(mesh=meshes())
def test_experts_divide_the_data_ranks(mesh: Mesh) -> None:
    pool = peers_by_definition(mesh, ("shard", "context") if mesh.sizes.zero else ("replicate", "context"))
    start = pool.index(mesh.rank) // mesh.sizes.expert * mesh.sizes.expert
    assert list(mesh.peers("expert")) == pool[start : start + mesh.sizes.expert]
    assert list(mesh.peers("expert_shard")) == pool[pool.index(mesh.rank) % mesh.sizes.expert :: mesh.sizes.expert]
    for axis in ("expert", "expert_shard", "expert_replicate"):
        ranks = mesh.peers(axis)
        assert (mesh.size(axis), mesh.coordinate(axis)) == (len(ranks), ranks.index(mesh.rank))


def test_sizes_and_coordinates_of_ten_thousand_ranks_list_no_ranks() -> None:
    sizes = MeshSizes(pipeline=16, replicate=10, shard=8, tensor=8, zero=1)
    mesh = Mesh(10_239, sizes.world, 0, CPU, sizes)
    assert [mesh.size(*axes) for axes in AXES] == [16, 10, 8, 1, 8, 8, 80, 8, 10_240]
    assert mesh.coordinate(*GRID) == 10_239
    assert mesh._peers == {}
    for _ in range(1000):
        mesh.peers("shard", "context")
    assert sum(map(len, mesh._peers.values())) == 8


def wait_alone(mesh: Mesh, axes: tuple[str, ...]) -> str:
    """Call a collective of rank 0 in which rank 1 takes no part, with a short timeout; return rank 0's error."""
    mesh = mesh.with_sizes(MeshSizes(replicate=2, shard=mesh.world_size // 2, zero=3))
    mesh.create_process_groups()
    mesh.set_timeout(datetime.timedelta(seconds=1))
    store = dist.distributed_c10d._get_default_store()
    if mesh.rank > 0:
        store.wait(["over"], datetime.timedelta(minutes=5))
        return ""
    try:
        dist.all_reduce(torch.ones(1), group=mesh.group(*axes) if axes else None)
    except RuntimeError as error:
        return str(error)
    finally:
        store.set("over", "")
    return "no error"


@pytest.mark.parametrize(("world", "axes"), [(2, ()), (2, ("replicate",)), (4, ("shard",))])
def test_a_hanging_rank_is_noticed_after_the_timeout_of_the_phase(world: int, axes: tuple[str, ...]) -> None:
    with RankPool(world) as pool:
        assert "imed out" in pool.run(world, wait_alone, axes)[0]
