"""The mesh of ranks: this rank's coordinates, the process groups along the axes, and small collectives of the loop."""

import datetime
import gc
import os
from itertools import product

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from trainer.contract.cost import GROUP_AXES
from trainer.contract.parallelism import MeshSizes

COLLECTIVE_TIMEOUT = datetime.timedelta(minutes=10)

GRID = ("pipeline", "replicate", "shard", "context", "tensor")  # outermost first
TOKEN_AXES = ("replicate", "shard", "context")
"""The axes whose ranks train on different tokens: the gradient of every parameter is summed over them."""
_GROUPS = (*GROUP_AXES, ("expert",), ("expert_shard",), ("expert_replicate",))


class Mesh:
    """A grid of ranks with the axes GRID; consecutive ranks differ along the last axis. A group of one rank is None.

    `param_device`: where parameters are allocated; the meta device in a dry run.
    """

    def __init__(
        self, rank: int, world_size: int, local_rank: int, device: torch.device, sizes: MeshSizes | None = None
    ) -> None:
        self.rank, self.world_size, self.local_rank, self.device = rank, world_size, local_rank, device
        self.param_device = device
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
        """Return this rank's index among its peers along `axes`, the outermost axis first."""
        return self.peers(*axes).index(self.rank)

    def peers(self, *axes: str) -> list[int]:
        """Return the ranks that differ from this one only along `axes`, itself included.

        `expert` and `expert_shard` divide the shard x context ranks (replicate x context ranks at ZeRO 0); consecutive
        ones have different experts.
        """
        if axes in (("expert",), ("expert_shard",), ("expert_replicate",)):
            return self._expert_peers(axes[0])
        assert set(axes) <= set(GRID), axes
        coordinates = [range(self.sizes.named[axis]) if axis in axes else [self._place[axis]] for axis in GRID]
        return [int(self._grid[place]) for place in product(*coordinates)]

    def _expert_peers(self, axis: str) -> list[int]:
        sharded_axes = ("shard", "context") if self.sizes.zero else ("replicate", "context")
        ranks = self.peers(*sharded_axes)
        mine, inner = ranks.index(self.rank), self.sizes.expert
        if axis == "expert":
            start = mine // inner * inner
            return ranks[start : start + inner]
        if axis == "expert_shard" or not self.sizes.zero:
            return ranks[mine % inner :: inner]
        return self.peers("replicate")

    def create_process_groups(self) -> None:
        """Create all process groups, in the same order on every rank; a collective, before any group is used.

        Each rank creates only its own groups, and torch names a group after its ranks and the number of groups that the
        rank has created before. A rank that skips a group would wait forever for the next one.
        """
        for axes in _GROUPS:
            ranks = tuple(self.peers(*axes))
            if (len(ranks) > 1 or self.sizes.zero) and ranks not in self._groups:
                self._groups[ranks] = self._create_group(ranks)
        if self.sizes.pipeline > 2:
            ends = self.pipeline_ends()
            if self.rank in ends:
                self._groups[ends] = self._create_group(ends)
            else:
                self._create_group((self.rank,))  # so that all ranks have created the same number of groups

    def pipeline_ends(self) -> tuple[int, ...]:
        """Return the first and the last rank of this rank's pipeline."""
        pipeline = self.peers("pipeline")
        return pipeline[0], pipeline[-1]

    def group(self, *axes: str) -> dist.ProcessGroup | None:
        """Return the process group of this rank's peers along `axes`; None for a single rank."""
        ranks = tuple(self.peers(*axes))
        return self._groups[ranks] if len(ranks) > 1 else None

    def pipeline_ends_group(self) -> dist.ProcessGroup | None:
        """Return the group of the first and last rank of this rank's pipeline; None on other ranks or without one."""
        ends = self.pipeline_ends()
        return self._groups[ends] if self.sizes.pipeline > 1 and self.rank in ends else None

    def device_mesh(self, *axes: tuple[str, ...]) -> DeviceMesh:
        """Return a DeviceMesh of this rank's peers, with one dimension for each tuple of axes (one or two).

        FSDP needs one even for a single rank.
        """
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

    def _create_group(self, ranks: tuple[int, ...]) -> dist.ProcessGroup:
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
    """Initialise the default process group, and return a mesh that replicates over all ranks.

    `store` must be new to this worker group, for example by a prefix. `single_node`: gloo uses the loopback interface.
    """
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
    """Destroy the process groups.

    Delete model and optimizer first: a sharded tensor that outlives its group aborts the process at exit.
    """
    gc.enable()
    gc.collect()
    if dist.is_initialized():
        dist.destroy_process_group()


def all_reduce_sum(values: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    """Sum `values` over the group, in place, and return them; without a group they are unchanged."""
    if group is not None:
        dist.all_reduce(values, group=group)
    return values


def all_reduce_world(values: Tensor, mesh: Mesh) -> Tensor:
    """Sum `values` over all ranks, in place, and return them."""
    if mesh.world_size > 1:
        dist.all_reduce(values)
    return values
