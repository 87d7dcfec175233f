"""In which layers a gradient is large, and how far updates change each: sums over the parameters of each layer, the
same on every mesh."""

from collections import defaultdict
from collections.abc import Sequence
from math import isfinite, sqrt

import torch
from torch import Tensor
from torch.nn import functional

from trainer.optim.step import ShardOptimizer
from trainer.parallel.mesh import Mesh, all_reduce_world
from trainer.parallel.weights import Weights

_LISTED = 3  # layers that a text names


def layer_names(num_layers: int) -> list[str]:
    """Return the layers of a model, in the order in which the backward pass reaches them."""
    blocks = [f"blocks.{number}.{half}" for number in reversed(range(num_layers)) for half in ("mlp", "attention")]
    return ["head", "norm", *blocks, "embedding"]


def layer_of(parameter: str) -> str:
    """Return the layer of a parameter, by its name in checkpoints. The norms of a block belong to its attention or its
    MLP, by what they normalise."""
    first, *rest = parameter.split(".")
    if first != "blocks":
        return first
    return f"blocks.{rest[0]}.{'attention' if rest[1].startswith('attention') else 'mlp'}"


class Layers:
    """The layers of the complete model, `names`, and which of this rank's trained parameters belong to each."""

    def __init__(self, weights: Weights, num_layers: int) -> None:
        self.names = layer_names(num_layers)
        members: dict[str, list[int]] = defaultdict(list)
        for number, name in enumerate(weights.trainable):
            members[layer_of(weights.layouts[name].name)].append(number)
        padding, longest = len(weights.trainable), max(map(len, members.values()))
        rows = [members[name] + [padding] * (longest - len(members[name])) for name in self.names]
        self._members = torch.tensor(rows, device=weights.mesh.device)  # [layers, longest]

    def sums(self, values: Tensor) -> Tensor:
        """Return the sum of `values` over the parameters of each layer, [layers], 0 where this rank has none. `values`:
        of this rank's trained parameters, in their order.

        Each sum is computed in a fixed order, and a value that is not finite affects its own layer only.
        """
        return functional.pad(values, (0, 1))[self._members].sum(dim=1)

    def largest(self, squares: Sequence[float]) -> str:
        """Return as text the layers with the largest shares of the squared norm; if it is not finite in some, those
        in the order of the backward pass. `squares`: the squared norm of each layer; no text if all are 0."""
        broken = [name for name, square in zip(self.names, squares, strict=True) if not isfinite(square)]
        if broken:
            others = f" and {len(broken) - _LISTED} more" if len(broken) > _LISTED else ""
            return f"not finite in {', '.join(broken[:_LISTED])}{others}"
        total = sum(squares)
        ranked = sorted(zip(squares, self.names, strict=True), key=lambda each: -each[0])
        return ", ".join(f"{name} {square / total:.0%}" for square, name in ranked[:_LISTED] if square > 0)


class UpdateMeter:
    """Measures the updates of each layer every `every_steps` steps; never if that is None.

    What the parameters were before the update is stored in host memory, since the device may have no room for it.
    """

    def __init__(self, optimizer: ShardOptimizer, layers: Layers, mesh: Mesh, every_steps: int | None) -> None:
        self._optimizer, self._layers, self._mesh, self._every_steps = optimizer, layers, mesh, every_steps
        self._before: list[Tensor] = []

    def is_due(self, step: int) -> bool:
        """Return whether the update of `step` (from 0) is measured."""
        return self._every_steps is not None and (step + 1) % self._every_steps == 0

    def begin(self, step: int) -> None:
        """Store the parameters before the update of `step`, if it is measured."""
        if self.is_due(step):
            self._before = [shard.to("cpu", copy=True) for shard in self._optimizer.shards]

    def ratios(self) -> dict[str, float]:
        """Return the norm of the update since `begin` divided by that of the parameters before it, by layer, without
        layers that have no trained parameters or only zeros; a collective that waits for the device."""
        norms: list[tuple[Tensor, Tensor]] = []
        for shard, stored in zip(self._optimizer.shards, self._before, strict=True):
            before = stored.to(shard.device)
            norms.append((torch.linalg.vector_norm(shard - before), torch.linalg.vector_norm(before)))
        self._before = []
        sums = [self._layers.sums(self._optimizer.squares(torch.stack(column))) for column in zip(*norms, strict=True)]
        updates, weights = all_reduce_world(torch.stack(sums), self._mesh).tolist()
        return {
            name: sqrt(update / weight)
            for name, update, weight in zip(self._layers.names, updates, weights, strict=True)
            if weight
        }
