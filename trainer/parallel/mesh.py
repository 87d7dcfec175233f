"""The mesh of ranks: this rank's coordinates, the process groups along the axes, and small collectives of the loop."""

import gc
import os
from datetime import timedelta
from math import prod

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.distributed_c10d import _set_pg_timeout

from trainer.contract.cost import GROUP_AXES
from trainer.contract.parallelism import MeshSizes
from trainer.contract.timeouts import STARTUP_TIMEOUT
from trainer.parallel import gloo

GRID = ("pipeline", "replicate", "shard", "context", "tensor")  # outermost first
TOKEN_AXES = ("replicate", "shard", "context")
"""The axes whose ranks train on different tokens: the gradient of every parameter is summed over them."""
_EXPERT_AXES = (("expert",), ("expert_shard",), ("expert_replicate",))
_GROUPS = (*GROUP_AXES, *_EXPERT_AXES)


class Mesh:
    """A grid of ranks with the axes GRID; consecutive ranks differ along the last axis. A group of one rank is None.

    `param_device`: where parameters are allocated; the meta device in a dry run. `store`: the key-value store by which
    the ranks joined, new to this worker group; without other ranks, it may be None.
    """

    def __init__(
        self,
        rank: int,
        world_size: int,
        local_rank: int,
        device: torch.device,
        sizes: MeshSizes | None = None,
        store: dist.Store | None = None,
    ) -> None:
        self.store = store
        self.rank, self.world_size, self.local_rank, self.device = rank, world_size, local_rank, device
        self.param_device = device
        self.sizes = sizes or MeshSizes(replicate=world_size)
        assert self.sizes.world == world_size, f"{self.sizes} is not {world_size} ranks"
        self._sizes = self.sizes.named
        self._places: dict[str, int] = {}
        self._strides: dict[str, int] = {}
        rest, stride = rank, 1
        for axis in reversed(GRID):
            rest, self._places[axis] = divmod(rest, self._sizes[axis])
            self._strides[axis], stride = stride, stride * self._sizes[axis]
        self._peers: dict[tuple[str, ...], tuple[int, ...]] = {}
        self._groups: dict[tuple[str, ...], dist.ProcessGroup] = {}
        self._ends_group: dist.ProcessGroup | None = None

    @property
    def axes(self) -> dict[str, int]:
        """Return the size of each axis by name."""
        return self.sizes.axes

    def with_sizes(self, sizes: MeshSizes) -> "Mesh":
        """Return a mesh of the same ranks with other sizes."""
        return Mesh(self.rank, self.world_size, self.local_rank, self.device, sizes, self.store)

    def open_store(self, prefix: str) -> dist.PrefixStore:
        """Return the store for keys with a prefix. The first rank, which waits for the others, has a connection of its
        own: on that of the process groups, the wait would hold up the collectives."""
        assert self.store is not None, "ranks that train have joined by a store"
        return dist.PrefixStore(prefix, self.store.clone() if self.rank == 0 else self.store)

    def size(self, *axes: str) -> int:
        """Return the number of ranks along these axes."""
        if axes in _EXPERT_AXES:
            return self._expert_places(axes[0])[0]
        return prod(self._sizes[axis] for axis in self._key(axes))

    def coordinate(self, *axes: str) -> int:
        """Return this rank's index among its peers along `axes`, the outermost axis first."""
        if axes in _EXPERT_AXES:
            return self._expert_places(axes[0])[1]
        index = 0
        for axis in self._key(axes):
            index = index * self._sizes[axis] + self._places[axis]
        return index

    def data_moved_by(self, shift: int) -> list[int]:
        """Return, for each rank, the rank of which it has the data when the data of each data rank moves to the one
        `shift` places before it."""
        inner, data = self._sizes["context"] * self._sizes["tensor"], self._sizes["replicate"] * self._sizes["shard"]
        found = []
        for rank in range(self.world_size):
            outer, place = divmod(rank, inner)
            stage, coordinate = divmod(outer, data)
            found.append((stage * data + (coordinate + shift) % data) * inner + place)
        return found

    def peers(self, *axes: str) -> tuple[int, ...]:
        """Return the ranks that differ from this one only along `axes`, itself included, in ascending order.

        `expert` and `expert_shard` divide the shard x context ranks (replicate x context ranks at ZeRO 0); consecutive
        ones have different experts. The ranks are listed once for each set of axes: a list may have the size of the
        world, and each parameter asks for some.
        """
        key = self._key(axes)
        if key not in self._peers:
            self._peers[key] = self._expert_peers(key[0]) if key in _EXPERT_AXES else self._grid_peers(key)
        return self._peers[key]

    def _key(self, axes: tuple[str, ...]) -> tuple[str, ...]:
        """Return the axes in the order of the grid, without those of one rank; equal keys have equal peers."""
        if axes in _EXPERT_AXES:
            return axes
        assert set(axes) <= set(GRID), axes
        return tuple(axis for axis in GRID if axis in axes and self._sizes[axis] > 1)

    def _grid_peers(self, axes: tuple[str, ...]) -> tuple[int, ...]:
        ranks = [self.rank - sum(self._places[axis] * self._strides[axis] for axis in axes)]
        for axis in axes:
            steps = range(0, self._sizes[axis] * self._strides[axis], self._strides[axis])
            ranks = [rank + step for rank in ranks for step in steps]
        return tuple(ranks)

    @property
    def _expert_ranks(self) -> tuple[str, str]:
        """Return the axes whose ranks divide the experts among them."""
        return ("shard", "context") if self.sizes.zero else ("replicate", "context")

    def _expert_places(self, axis: str) -> tuple[int, int]:
        """Return (number of ranks, this rank's index) along an axis of experts."""
        if axis == "expert_replicate" and self.sizes.zero:
            return self.size("replicate"), self.coordinate("replicate")
        outer, inner = divmod(self.coordinate(*self._expert_ranks), self.sizes.expert)
        if axis == "expert":
            return self.sizes.expert, inner
        return self.size(*self._expert_ranks) // self.sizes.expert, outer

    def _expert_peers(self, axis: str) -> tuple[int, ...]:
        if axis == "expert_replicate" and self.sizes.zero:
            return self.peers("replicate")
        ranks = self.peers(*self._expert_ranks)
        outer, inner = divmod(self.coordinate(*self._expert_ranks), self.sizes.expert)
        if axis == "expert":
            return ranks[outer * self.sizes.expert : (outer + 1) * self.sizes.expert]
        return ranks[inner :: self.sizes.expert]

    def create_process_groups(self) -> None:
        """Create all process groups, in the same order on every rank; a collective, before any group is used.

        Each rank creates only its own groups, and torch names a group after its ranks and the number of groups that the
        rank has created before. A rank that skips a group would wait forever for the next one.
        """
        created: dict[tuple[int, ...], dist.ProcessGroup] = {}
        for axes in _GROUPS:
            ranks = self.peers(*axes)
            if len(ranks) > 1 or self.sizes.zero:
                if ranks not in created:
                    created[ranks] = self._create_group(ranks)
                self._groups[self._key(axes)] = created[ranks]
        if self.sizes.pipeline > 2:
            ends = self.pipeline_ends()
            # A rank between the ends creates a group of its own, so that all ranks have created the same number.
            group = self._create_group(ends if self.rank in ends else (self.rank,))
            self._ends_group = group if self.rank in ends else None
        elif self.sizes.pipeline == 2:
            self._ends_group = self.group("pipeline")

    def set_timeout(self, timeout: timedelta) -> None:
        """Set how long collectives that start from now on wait for other ranks.

        Both backends read the timeout of their group whenever a collective starts (`setTimeout` in torch's
        ProcessGroupGloo.hpp and ProcessGroupNCCL.hpp).
        """
        for group in {dist.group.WORLD, *self._groups.values(), self._ends_group} - {None}:
            _set_pg_timeout(timeout, group)

    def pipeline_ends(self) -> tuple[int, ...]:
        """Return the first and the last rank of this rank's pipeline."""
        pipeline = self.peers("pipeline")
        return pipeline[0], pipeline[-1]

    def group(self, *axes: str) -> dist.ProcessGroup | None:
        """Return the process group of this rank's peers along `axes`; None for a single rank."""
        return self._groups[self._key(axes)] if self.size(*axes) > 1 else None

    def pipeline_ends_group(self) -> dist.ProcessGroup | None:
        """Return the group of the first and last rank of this rank's pipeline; None on other ranks or without one."""
        return self._ends_group

    def device_mesh(self, *axes: tuple[str, ...]) -> DeviceMesh:
        """Return a DeviceMesh of this rank's peers, with one dimension for each tuple of axes (one or two).

        FSDP needs one even for a single rank.
        """
        shape = [self.size(*each) for each in axes]
        groups = [self._groups[self._key(each)] for each in axes]
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
        # Without a timeout torch takes the backend's default, not that of the group of all ranks.
        return dist.new_group(list(ranks), timeout=STARTUP_TIMEOUT, use_local_synchronization=True)


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
        "nccl" if device.type == "cuda" else gloo.register(),
        store=store,
        rank=rank,
        world_size=world_size,
        timeout=STARTUP_TIMEOUT,
        device_id=device if device.type == "cuda" else None,
    )
    return Mesh(rank, world_size, local_rank, device, store=store)


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
