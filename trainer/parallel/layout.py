"""Where each parameter's shard lies in the whole: which axes cut it, and how to get the whole back.

Two cuts follow one another: tensor and expert ranks hold plain local tensors, a part of the model each; FSDP splits
what is left along one dimension (by `torch.chunk`), as a DTensor. A box (offsets and shape) describes both.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Shard

from trainer.data.sampler import share
from trainer.models.decoder import initial_value
from trainer.parallel.mesh import Mesh

_ROWS = ("query.weight", "key.weight", "value.weight", "gate.weight", "up.weight", "embedding.weight", "head.weight",
         "query.lora_b", "key.lora_b", "value.lora_b", "gate.lora_b", "up.lora_b")  # fmt: skip
_COLUMNS = ("attention.output.weight", "down.weight", "attention.output.lora_a", "down.lora_a")


@dataclass(frozen=True)
class Cut:
    """Part `which` of `parts` of dimension `dimension`, `axes` the mesh axes of the ranks that have the others."""

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
            return share(size, self.parts, which)
        rows = -(-size // self.parts)
        return min(size, which * rows), min(size, (which + 1) * rows)


def is_expert(name: str) -> bool:
    """Return whether a parameter's name is that of an expert."""
    return ".experts." in name


def model_cuts(name: str, mesh: Mesh) -> list[Cut]:
    """How tensor and expert parallelism cut the parameter of this name."""
    cuts = []
    if is_expert(name) and mesh.sizes.expert > 1:
        cuts.append(Cut(0, mesh.sizes.expert, mesh.coordinate("expert"), ("expert",)))
    if mesh.sizes.tensor > 1:
        dimension = _tensor_dimension(name)
        if dimension is not None:
            cuts.append(Cut(dimension, mesh.sizes.tensor, mesh.coordinate("tensor"), ("tensor",)))
    return cuts


def _tensor_dimension(name: str) -> int | None:
    if is_expert(name):
        return 2 if name.endswith("down") else 1
    if name.endswith(_ROWS):
        return 0
    return 1 if name.endswith(_COLUMNS) else None


@dataclass(frozen=True)
class ParamLayout:
    """A rank's shard of one parameter: `shape` is the whole, the shard starts at `offsets` and has `local_shape`.

    `holders` are the ranks of this stage that have the very same shard; `copies` is 2 for a tied embedding of which
    another stage has a copy. `name` is that under which checkpoints know it.
    """

    name: str
    shape: tuple[int, ...]
    offsets: tuple[int, ...]
    local_shape: tuple[int, ...]
    holders: tuple[int, ...]
    copies: int
    cuts: tuple[Cut, ...]
    mesh: Mesh

    @property
    def replicas(self) -> int:
        """How often this shard is held in the world."""
        return len(self.holders) * self.copies

    def is_original(self, name: str) -> bool:
        """Whether the parameter that a stage calls `name` is the one that checkpoints are written from."""
        return name == self.name

    def part_of(self, whole: Tensor) -> Tensor:
        """Return this rank's part of a tensor of the full shape; shares its memory."""
        for dimension, (offset, size) in enumerate(zip(self.offsets, self.local_shape, strict=True)):
            whole = whole.narrow(dimension, offset, size)
        return whole

    def gather(self, shard: Tensor) -> Tensor:
        """Return the full tensor on every rank: a collective of all ranks that hold parts of it, in the same order
        everywhere."""
        sizes = list(self.shape)
        for cut in self.cuts:
            sizes[cut.dimension] = cut.bounds(sizes[cut.dimension])[1] - cut.bounds(sizes[cut.dimension])[0]
        for number in reversed(range(len(self.cuts))):
            cut = self.cuts[number]
            size = self.shape[cut.dimension]
            for earlier in self.cuts[:number]:
                if earlier.dimension == cut.dimension:
                    low, high = earlier.bounds(size)
                    size = high - low
            shard = _gather_cut(shard, cut, size, self.mesh)
        return shard


def _gather_cut(shard: Tensor, cut: Cut, size: int, mesh: Mesh) -> Tensor:
    bounds = [cut.bounds_of(size, which) for which in range(cut.parts)]
    longest = max(high - low for low, high in bounds)
    moved = shard.movedim(cut.dimension, 0)
    padded = moved.new_zeros(longest, *moved.shape[1:])
    padded[: moved.shape[0]] = moved
    everybodys = [torch.empty_like(padded) for _ in range(cut.parts)]
    group = mesh.group(*cut.axes)
    dist.all_gather(everybodys, padded, group=group)
    pieces = [part[: high - low] for part, (low, high) in zip(everybodys, bounds, strict=True)]
    return torch.cat(pieces).movedim(0, cut.dimension)


def param_layout(name: str, parameter: Tensor, whole_shape: Iterable[int], mesh: Mesh, copies: int = 1) -> ParamLayout:
    """Of a (sharded) parameter; `copies`: stages that hold it, for a tied embedding."""
    shape = tuple(whole_shape)
    cuts = model_cuts(name, mesh)
    sequence_axes = ("expert_shard",) if is_expert(name) else ("shard", "context")
    if isinstance(parameter, DTensor):
        (sharding,) = [each for each in parameter.placements if isinstance(each, Shard)]
        parts = mesh.size(*sequence_axes)
        if parts > 1:
            cuts.append(Cut(sharding.dim, parts, mesh.coordinate(*sequence_axes), sequence_axes, by_chunk=True))
    offsets, sizes = [0] * len(shape), list(shape)
    for cut in cuts:
        low, high = cut.bounds(sizes[cut.dimension])
        offsets[cut.dimension] += low
        sizes[cut.dimension] = high - low
    return ParamLayout(
        name, shape, tuple(offsets), tuple(sizes), tuple(_holders(name, cuts, mesh)), copies, tuple(cuts), mesh
    )


def _holders(name: str, cuts: list[Cut], mesh: Mesh) -> list[int]:
    """Ranks of this stage that differ only along axes that do not cut the parameter."""
    if is_expert(name):
        return mesh.peers("expert_replicate")
    axes = ["replicate"] if mesh.sizes.zero else ["replicate", "shard", "context"]
    if all(cut.axes != ("tensor",) for cut in cuts):
        axes.append("tensor")
    return mesh.peers(*axes)


def cut_parameters(model: nn.Module, mesh: Mesh) -> dict[str, tuple[int, ...]]:
    """Leave of each parameter what tensor and expert parallelism leave this rank; the whole shapes by name.

    The model is on the meta device: nothing is copied.
    """
    shapes = {}
    for name, parameter in list(model.named_parameters()):
        shapes[name] = tuple(parameter.shape)
        local = parameter.data
        for cut in model_cuts(name, mesh):
            low, high = cut.bounds(local.shape[cut.dimension])
            local = local.narrow(cut.dimension, low, high - low)
        owner, _, attribute = name.rpartition(".")
        if local.shape != parameter.shape:
            setattr(
                model.get_submodule(owner), attribute, nn.Parameter(torch.empty_like(local), parameter.requires_grad)
            )
    return shapes


def initial_part(param_layout: ParamLayout, num_layers: int, seed: int) -> Tensor:
    """Return the initial value of a rank's shard: the same model on any mesh. A head that shares the embedding's weight
    on another stage begins as the embedding does."""
    return param_layout.part_of(initial_value(param_layout.name, param_layout.shape, num_layers, seed))
