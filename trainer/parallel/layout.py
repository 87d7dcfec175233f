"""The layout of each parameter on the mesh: which dimensions are sharded over which axes, and how to gather it.

Parameters are sharded twice: tensor and expert parallelism leave a plain local tensor on each rank, which FSDP shards
along one dimension (by `torch.chunk`) as a DTensor. Offsets and shape of the local box describe both.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Shard

from trainer.data.sampler import split_range
from trainer.models.decoder import initial_value
from trainer.parallel.mesh import Mesh

_SHARDED_DIM_0 = (
    "query.weight", "key.weight", "value.weight", "gate.weight", "up.weight", "embedding.weight", "head.weight",
    "query_wide_norm.weight", "key_wide_norm.weight", "query.bias", "key.bias", "value.bias", "attention.sinks",
    "query.lora_b", "key.lora_b", "value.lora_b", "gate.lora_b", "up.lora_b",
    "query_b.weight", "key_value_b.weight", "query_b.lora_b", "key_value_b.lora_b",
)  # fmt: skip
_SHARDED_DIM_1 = ("attention.output.weight", "down.weight", "attention.output.lora_a", "down.lora_a")


@dataclass(frozen=True)
class DimShard:
    """A dimension that is sharded: shard `which` of `parts`, over the ranks along the mesh axes `axes`.

    `by_chunk`: shards have the sizes of `torch.chunk`; else they differ by at most 1, longer ones first.
    """

    dimension: int
    parts: int
    which: int
    axes: tuple[str, ...]
    by_chunk: bool = False

    def bounds(self, size: int) -> tuple[int, int]:
        """Return (start, end) of this part of a dimension of `size`."""
        return self.bounds_of(size, self.which)

    def bounds_of(self, size: int, which: int) -> tuple[int, int]:
        """Return (start, end) of part `which` of a dimension of `size`."""
        if not self.by_chunk:
            return split_range(size, self.parts, which)
        rows = -(-size // self.parts)
        return min(size, which * rows), min(size, (which + 1) * rows)


def is_expert(name: str) -> bool:
    """Return whether a parameter's name is that of an expert."""
    return ".experts." in name


def model_shards(name: str, mesh: Mesh) -> list[DimShard]:
    """Return how tensor and expert parallelism shard the parameter of this name."""
    dim_shards = []
    if is_expert(name) and mesh.sizes.expert > 1:
        dim_shards.append(DimShard(0, mesh.sizes.expert, mesh.coordinate("expert"), ("expert",)))
    if mesh.sizes.tensor > 1:
        dimension = _tensor_dimension(name)
        if dimension is not None:
            dim_shards.append(DimShard(dimension, mesh.sizes.tensor, mesh.coordinate("tensor"), ("tensor",)))
    return dim_shards


def _tensor_dimension(name: str) -> int | None:
    if is_expert(name):
        return 2 if name.endswith("down") else 1
    if name.endswith(_SHARDED_DIM_0):
        return 0
    return 1 if name.endswith(_SHARDED_DIM_1) else None


@dataclass(frozen=True)
class ParamLayout:
    """This rank's shard of a parameter: the box of `local_shape` at `offsets` of the full `shape`.

    `name`: the parameter's name in checkpoints. `replica_ranks`: the ranks of this pipeline stage with the same shard,
    itself included. `copies`: number of stages that have the parameter, 2 for an embedding tied across stages.
    """

    name: str
    shape: tuple[int, ...]
    offsets: tuple[int, ...]
    local_shape: tuple[int, ...]
    replica_ranks: tuple[int, ...]
    copies: int
    dim_shards: tuple[DimShard, ...]
    mesh: Mesh

    @property
    def replicas(self) -> int:
        """Return the number of ranks that have this shard."""
        return len(self.replica_ranks) * self.copies

    def is_original(self, name: str) -> bool:
        """Return whether checkpoints store the stage's parameter `name`; False for the tied copy in the head's
        stage."""
        return name == self.name

    def local_view(self, full: Tensor) -> Tensor:
        """Return this rank's part of a tensor of the full shape, as a view."""
        for dimension, (offset, size) in enumerate(zip(self.offsets, self.local_shape, strict=True)):
            full = full.narrow(dimension, offset, size)
        return full

    def gather(self, shard: Tensor) -> Tensor:
        """Return the full tensor on every rank; a collective of all ranks that have parts of it."""
        sizes = list(self.shape)
        for cut in self.dim_shards:
            sizes[cut.dimension] = cut.bounds(sizes[cut.dimension])[1] - cut.bounds(sizes[cut.dimension])[0]
        for number in reversed(range(len(self.dim_shards))):
            cut = self.dim_shards[number]
            size = self.shape[cut.dimension]
            for earlier in self.dim_shards[:number]:
                if earlier.dimension == cut.dimension:
                    low, high = earlier.bounds(size)
                    size = high - low
            shard = _gather_cut(shard, cut, size, self.mesh)
        return shard


def _gather_cut(shard: Tensor, cut: DimShard, size: int, mesh: Mesh) -> Tensor:
    bounds = [cut.bounds_of(size, which) for which in range(cut.parts)]
    longest = max(high - low for low, high in bounds)
    moved = shard.movedim(cut.dimension, 0)
    padded = moved.new_zeros(longest, *moved.shape[1:])
    padded[: moved.shape[0]] = moved
    gathered = [torch.empty_like(padded) for _ in range(cut.parts)]
    group = mesh.group(*cut.axes)
    dist.all_gather(gathered, padded, group=group)
    pieces = [part[: high - low] for part, (low, high) in zip(gathered, bounds, strict=True)]
    return torch.cat(pieces).movedim(0, cut.dimension)


def param_layout(
    name: str, parameter: Tensor | None, whole_shape: Iterable[int], mesh: Mesh, copies: int = 1
) -> ParamLayout:
    """Return the layout of a parameter of the full shape `whole_shape`, which FSDP may have sharded already; None for a
    matrix in 4 bits, which it does not shard.

    `copies`: number of stages that have it, for a tied embedding.
    """
    shape = tuple(whole_shape)
    dim_shards = model_shards(name, mesh)
    sequence_axes = ("expert_shard",) if is_expert(name) else ("shard", "context")
    if isinstance(parameter, DTensor):
        (sharding,) = [each for each in parameter.placements if isinstance(each, Shard)]
        parts = mesh.size(*sequence_axes)
        if parts > 1:
            dim_shards.append(
                DimShard(sharding.dim, parts, mesh.coordinate(*sequence_axes), sequence_axes, by_chunk=True)
            )
    offsets, sizes = [0] * len(shape), list(shape)
    for cut in dim_shards:
        low, high = cut.bounds(sizes[cut.dimension])
        offsets[cut.dimension] += low
        sizes[cut.dimension] = high - low
    return ParamLayout(
        name,
        shape,
        tuple(offsets),
        tuple(sizes),
        _holders(name, dim_shards, mesh),
        copies,
        tuple(dim_shards),
        mesh,
    )


def _holders(name: str, dim_shards: list[DimShard], mesh: Mesh) -> tuple[int, ...]:
    """Return the ranks of this stage that differ only along axes over which the parameter is not sharded."""
    if is_expert(name):
        return mesh.peers("expert_replicate")
    axes = ["replicate"] if mesh.sizes.zero else ["replicate", "shard", "context"]
    if all(cut.axes != ("tensor",) for cut in dim_shards):
        axes.append("tensor")
    return mesh.peers(*axes)


def shard_parameters(model: nn.Module, mesh: Mesh) -> dict[str, tuple[int, ...]]:
    """Replace each parameter by this rank's shard under tensor and expert parallelism. Return the full shapes by name.

    The model must be on the meta device; new parameters are not initialised.
    """
    shapes = {}
    for name, parameter in list(model.named_parameters()):
        shapes[name] = tuple(parameter.shape)
        local = parameter.data
        for cut in model_shards(name, mesh):
            low, high = cut.bounds(local.shape[cut.dimension])
            local = local.narrow(cut.dimension, low, high - low)
        owner, _, attribute = name.rpartition(".")
        if local.shape != parameter.shape:
            setattr(
                model.get_submodule(owner), attribute, nn.Parameter(torch.empty_like(local), parameter.requires_grad)
            )
    return shapes


def initial_shard(param_layout: ParamLayout, num_layers: int, seed: int) -> Tensor:
    """Return the initial value of a rank's shard; the complete model is the same on any mesh.

    The head's copy of a tied embedding gets the embedding's values.
    """
    place = param_layout
    return initial_value(place.name, place.shape, num_layers, seed, place.offsets, place.local_shape)
