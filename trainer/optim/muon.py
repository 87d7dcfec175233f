"""Muon: momentum whose matrix is made orthogonal before it is applied (Jordan et al. 2024), on sharded matrices."""

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from trainer.contract.optimisation import MuonSpec
from trainer.optim.gather_scatter import GatherScatter
from trainer.optim.orthogonal import orthogonalize, working_dtype
from trainer.optim.sharded_param import ShardedParam
from trainer.optim.state_offload import OptimizerStateOffload, state_like

MAX_BATCH_ELEMENTS = 2**26
"""Maximum number of elements of matrices processed together; a larger single matrix is processed alone."""


class Muon:
    """Muon over the shards of `params`, matrices [R, C] or stacks [N, R, C]; gradients are read from
    `param.shard.grad`.
    """

    def __init__(self, params: Sequence[ShardedParam], spec: MuonSpec, *, offload: bool = False) -> None:
        """Assign matrices to ranks; a collective of all ranks that hold parts of the same matrices."""
        self._spec = spec
        self._momentum = {param.name: state_like(param.shard, offload=offload) for param in params}
        by_axes: dict[tuple[str, ...], list[ShardedParam]] = {}
        for param in params:
            by_axes.setdefault(_work_axes(param), []).append(param)
        self._gather_scatters = []
        for axes, some in by_axes.items():
            group = some[0].param_layout.mesh.group(*axes) if axes else None
            device = some[0].shard.device
            state_offload = OptimizerStateOffload(
                [[self._momentum[param.name]] for param in some], device, offload=offload
            )
            self._gather_scatters.append((some, GatherScatter(some, group, working_dtype(device)), state_offload))

    def step(self, learning_rate: float, scale: Tensor, is_finite: Tensor) -> None:
        """Update the shards with gradients divided by `scale`; where `is_finite` is false nothing changes. A
        collective.
        """
        for params, gather_scatter, state_offload in self._gather_scatters:
            advanced = [
                self._advance(param, momentum, scale, is_finite)
                for (momentum,), param in zip(state_offload.buckets(), params, strict=True)
            ]
            full_tensors = gather_scatter.gather(advanced)
            for batch in _batches_by_shape(full_tensors):
                together = orthogonalize(torch.cat([full_tensors[index] for index in batch]), self._spec.iterations)
                for index, whole in zip(
                    batch, together.split([len(full_tensors[index]) for index in batch]), strict=True
                ):
                    full_tensors[index] = whole
            for param, part in zip(params, gather_scatter.scatter(full_tensors), strict=True):
                self._apply(param, part, learning_rate, is_finite)

    def state_tensors(self) -> dict[str, Tensor]:
        """Return `momentum/NAME` of each parameter, like its shard."""
        for _, _, state_offload in self._gather_scatters:
            state_offload.synchronize()
        return {f"momentum/{name}": momentum for name, momentum in self._momentum.items()}

    def _advance(self, param: ShardedParam, momentum: Tensor, scale: Tensor, is_finite: Tensor) -> Tensor:
        """Update the momentum. Return the update to orthogonalise, like the shard."""
        assert param.shard.grad is not None
        gradient = param.shard.grad / scale
        advanced = momentum.lerp(gradient, 1.0 - self._spec.momentum)
        torch.where(is_finite, advanced, momentum, out=momentum)
        return gradient.lerp(advanced, self._spec.momentum) if self._spec.nesterov else advanced

    def _apply(self, param: ShardedParam, part: Tensor, learning_rate: float, is_finite: Tensor) -> None:
        rate = learning_rate * param.group_config.learning_rate_factor
        decayed = param.shard * (1.0 - rate * param.group_config.weight_decay)
        updated = decayed.sub_(part.view_as(decayed), alpha=rate * self._scale(param))
        torch.where(is_finite, updated, param.shard, out=param.shard)

    def _scale(self, param: ShardedParam) -> float:
        """Return the multiplier of an orthogonal update, see `MuonSpec.scale`."""
        rows, columns = param.param_layout.shape[-2:]
        if self._spec.scale == "spectral":
            return math.sqrt(max(1.0, rows / columns))
        return 0.2 * math.sqrt(max(rows, columns))


def _work_axes(param: ShardedParam) -> tuple[str, ...]:
    """Return the mesh axes whose ranks share the work on the same matrices.

    These are the axes over which the rows and columns are sharded, and at ZeRO 0 the axes of replicas too, except for
    experts. Replicas of sharded matrices compute redundantly, since the network between them is slower.
    """
    first, mesh = len(param.param_layout.shape) - 2, param.param_layout.mesh
    axes = [axis for cut in param.param_layout.dim_shards if cut.dimension >= first for axis in cut.axes]
    return tuple(axes) if mesh.sizes.zero or first else ("replicate", "context", *axes)


def _batches_by_shape(full_tensors: Sequence[Tensor]) -> Iterator[list[int]]:
    """Yield the indices of matrices of one shape, in batches of at most MAX_BATCH_ELEMENTS elements."""
    by_shape: dict[tuple[int, ...], list[int]] = {}
    for index, whole in enumerate(full_tensors):
        by_shape.setdefault(tuple(whole.shape[-2:]), []).append(index)
    for indices in by_shape.values():
        batch: list[int] = []
        for index in indices:
            if batch and sum(full_tensors[each].numel() for each in (*batch, index)) > MAX_BATCH_ELEMENTS:
                yield batch
                batch = []
            batch.append(index)
        yield batch
