"""This rank's place in the grid of ranks, the process groups along its axes, and the few collectives the loop needs."""

import datetime
import gc
import os
from itertools import product

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from trainer.contract.parallelism import MeshSizes

COLLECTIVE_TIMEOUT = datetime.timedelta(minutes=10)

GRID = ("pipeline", "replicate", "shard", "context", "tensor")  # outermost first
SEQUENCES = ("replicate", "shard", "context")
"""The axes whose ranks see different tokens: what every parameter's gradient is summed over."""
_GROUPS = (
    ("pipeline",), ("replicate",), ("context",), ("tensor",), ("shard", "context"), ("replicate", "shard"), SEQUENCES,
    ("shard", "context", "tensor"), ("replicate", "context", "tensor"),
    ("expert",), ("expert_shard",), ("expert_replicate",),
)  # fmt: skip


class Mesh:
    """Ranks lie in the order of GRID, the last axis nearest. A group of one rank is None and costs nothing."""

    def __init__(
        self, rank: int, world_size: int, local_rank: int, device: torch.device, sizes: MeshSizes | None = None
    ) -> None:
        self.rank, self.world_size, self.local_rank, self.device = rank, world_size, local_rank, device
        self.parameters_on = device  # the meta device where a mesh is only tried out
        self.sizes = sizes or MeshSizes(replicate=world_size)
        assert self.sizes.world == world_size, f"{self.sizes} is not {world_size} ranks"
        self._grid = torch.arange(world_size).view(*self.sizes.named.values())
        self._place = dict(zip(GRID, (self._grid == rank).nonzero()[0].tolist(), strict=True))
        self._groups: dict[tuple[int, ...], dist.ProcessGroup] = {}

    @property
    def axes(self) -> dict[str, int]:
        """Return the size of each axis by name."""
        return self.sizes.axes

    def with_sizes(self, sizes: MeshSizes) -> "Mesh":
        """Return a mesh of the same ranks with other sizes."""
        return Mesh(self.rank, self.world_size, self.local_rank, self.device, sizes)

    def size(self, *axes: str) -> int:
        """Return the number of ranks along these axes."""
        return len(self.peers(*axes))

    def coordinate(self, *axes: str) -> int:
        """Return this rank's number among its peers along `axes`, outermost first."""
        return self.peers(*axes).index(self.rank)

    def peers(self, *axes: str) -> list[int]:
        """Return the ranks that differ from this one along `axes` only, itself among them. `expert` and `expert_shard`
        divide the ranks that parameters are sharded over (replicated over, at stage 0): neighbours have different
        experts."""
        if axes in (("expert",), ("expert_shard",), ("expert_replicate",)):
            return self._expert_peers(axes[0])
        assert set(axes) <= set(GRID), axes
        coordinates = [range(self.sizes.named[axis]) if axis in axes else [self._place[axis]] for axis in GRID]
        return [int(self._grid[place]) for place in product(*coordinates)]

    def _expert_peers(self, axis: str) -> list[int]:
        spread_over = ("shard", "context") if self.sizes.zero else ("replicate", "context")
        ranks = self.peers(*spread_over)
        mine, inner = ranks.index(self.rank), self.sizes.expert
        if axis == "expert":
            start = mine // inner * inner
            return ranks[start : start + inner]
        if axis == "expert_shard" or not self.sizes.zero:
            return ranks[mine % inner :: inner]
        return self.peers("replicate")

    def form_groups(self) -> None:
        """Create all process groups, in the same order on every rank; a collective, before any group is used.

        Each rank forms only its own groups, so torch names them after their ranks and the number of groups that the
        rank formed before: a rank that left one out would wait for ever for the next.
        """
        for axes in _GROUPS:
            ranks = tuple(self.peers(*axes))
            if (len(ranks) > 1 or self.sizes.zero) and ranks not in self._groups:
                self._groups[ranks] = self._formed(ranks)
        if self.sizes.pipeline > 2:
            ends = self.pipeline_ends()
            if self.rank in ends:
                self._groups[ends] = self._formed(ends)
            else:
                self._formed((self.rank,))  # for the count

    def pipeline_ends(self) -> tuple[int, ...]:
        """Return the first and the last rank of this rank's pipeline."""
        pipeline = self.peers("pipeline")
        return pipeline[0], pipeline[-1]

    def group(self, *axes: str) -> dist.ProcessGroup | None:
        """Of this rank's peers along `axes`; None where it is alone."""
        ranks = tuple(self.peers(*axes))
        return self._groups[ranks] if len(ranks) > 1 else None

    def group_of_ends(self) -> dist.ProcessGroup | None:
        """Of the two ends of this rank's pipeline; None on the ranks between them, and without a pipeline."""
        ends = self.pipeline_ends()
        return self._groups[ends] if self.sizes.pipeline > 1 and self.rank in ends else None

    def device_mesh(self, *axes: tuple[str, ...]) -> DeviceMesh:
        """Return a DeviceMesh with one dimension for each tuple of axes, around this rank; FSDP wants one even for a
        single rank."""
        shape = [self.size(*each) for each in axes]
        groups = [self._groups[tuple(self.peers(*each))] for each in axes]
        names = tuple("_".join(each) for each in axes)
        if len(axes) == 1:
            return DeviceMesh.from_group(groups[0], self.device.type, mesh_dim_names=names)
        outer, inner = (self.peers(*each) for each in axes)
        # Two dimensions: row i is what the i-th outer peer has along the inner axes.
        steps = torch.tensor(outer)[:, None] - self.rank
        ranks = (steps + torch.tensor(inner)[None, :]).view(shape)
        return DeviceMesh.from_group(groups, self.device.type, mesh=ranks, mesh_dim_names=names)

    def _formed(self, ranks: tuple[int, ...]) -> dist.ProcessGroup:
        if len(ranks) == self.world_size:
            assert dist.group.WORLD is not None
            return dist.group.WORLD
        return dist.new_group(list(ranks), use_local_synchronization=True)


def choose_device(local_rank: int) -> torch.device:
    """Return the device of a local rank, and make it current."""
    if torch.cuda.is_available():
        device = torch.device("cuda", local_rank)
        torch.cuda.set_device(device)
        return device
    return torch.device("cpu")


def join(rank: int, world_size: int, local_rank: int, store: dist.Store, *, single_node: bool) -> Mesh:
    """Form the process group over `store`, whose keys no earlier generation has used."""
    device = choose_device(local_rank)
    if single_node:
        # Otherwise gloo resolves the host's name, which may be missing or point to a slow interface.
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group(
        "nccl" if device.type == "cuda" else "gloo",
        store=store,
        rank=rank,
        world_size=world_size,
        timeout=COLLECTIVE_TIMEOUT,
        device_id=device if device.type == "cuda" else None,
    )
    return Mesh(rank, world_size, local_rank, device)


def leave() -> None:
    """Callers drop model and optimizer first: a sharded tensor that outlives its group aborts the process at exit."""
    gc.enable()
    gc.collect()
    if dist.is_initialized():
        dist.destroy_process_group()


def sum_over(values: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    """In place; a rank that is alone pays nothing."""
    if group is not None:
        dist.all_reduce(values, group=group)
    return values


def sum_over_ranks(values: Tensor, mesh: Mesh) -> Tensor:
    """In place, over the whole world; a run of one process pays nothing."""
    if mesh.world_size > 1:
        dist.all_reduce(values)
    return values
