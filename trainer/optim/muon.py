"""Muon: momentum whose matrix is made orthogonal before it is applied (Jordan et al. 2024), on sharded matrices."""

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from trainer.contract.optimisation import MuonSpec
from trainer.optim.gather_scatter import Exchange
from trainer.optim.orthogonal import orthogonalised, working_dtype
from trainer.optim.sharded_param import Member
from trainer.optim.state_offload import Residence, state_like

LARGEST_BATCH = 2**26
"""Maximum number of elements of matrices processed together; a larger single matrix is processed alone."""


class Muon:
    """Updates `members`, matrices [R, C] or stacks of them [N, R, C]; their gradients lie on the shards."""

    def __init__(self, members: Sequence[Member], spec: MuonSpec, *, offload: bool = False) -> None:
        """Collective: the ranks that hold parts of the same matrices agree who works on which."""
        self._spec = spec
        self._momentum = {member.name: state_like(member.shard, offload=offload) for member in members}
        by_axes: dict[tuple[str, ...], list[Member]] = {}
        for member in members:
            by_axes.setdefault(_axes_that_share(member), []).append(member)
        self._exchanges = []
        for axes, some in by_axes.items():
            group = some[0].placement.mesh.group(*axes) if axes else None
            device = some[0].shard.device
            residence = Residence([[self._momentum[member.name]] for member in some], device, offload=offload)
            self._exchanges.append((some, Exchange(some, group, working_dtype(device)), residence))

    def step(self, learning_rate: float, scale: Tensor, is_finite: Tensor) -> None:
        """One update with gradients divided by `scale`, or none at all where `is_finite` is false."""
        for members, exchange, residence in self._exchanges:
            advanced = [
                self._advance(member, momentum, scale, is_finite)
                for (momentum,), member in zip(residence.visit(), members, strict=True)
            ]
            wholes = exchange.wholes(advanced)
            for batch in _alike(wholes):
                together = orthogonalised(torch.cat([wholes[index] for index in batch]), self._spec.iterations)
                for index, whole in zip(batch, together.split([len(wholes[index]) for index in batch]), strict=True):
                    wholes[index] = whole
            for member, part in zip(members, exchange.parts(wholes), strict=True):
                self._apply(member, part, learning_rate, is_finite)

    def state_tensors(self) -> dict[str, Tensor]:
        """`momentum` of each member, like its shard."""
        for _, _, residence in self._exchanges:
            residence.settle()
        return {f"momentum/{name}": momentum for name, momentum in self._momentum.items()}

    def _advance(self, member: Member, momentum: Tensor, scale: Tensor, is_finite: Tensor) -> Tensor:
        """Advance the momentum and return what is to be made orthogonal, both like the shard."""
        assert member.shard.grad is not None
        gradient = member.shard.grad / scale
        advanced = momentum.lerp(gradient, 1.0 - self._spec.momentum)
        torch.where(is_finite, advanced, momentum, out=momentum)
        return gradient.lerp(advanced, self._spec.momentum) if self._spec.nesterov else advanced

    def _apply(self, member: Member, part: Tensor, learning_rate: float, is_finite: Tensor) -> None:
        rate = learning_rate * member.treatment.learning_rate_factor
        decayed = member.shard * (1.0 - rate * member.treatment.weight_decay)
        updated = decayed.sub_(part.view_as(decayed), alpha=rate * self._scale(member))
        torch.where(is_finite, updated, member.shard, out=member.shard)

    def _scale(self, member: Member) -> float:
        """See `MuonSpec.scale`."""
        rows, columns = member.placement.shape[-2:]
        if self._spec.scale == "spectral":
            return math.sqrt(max(1.0, rows / columns))
        return 0.2 * math.sqrt(max(rows, columns))


def _axes_that_share(member: Member) -> tuple[str, ...]:
    """The mesh axes whose ranks hold parts of the same matrices, or where nothing is sharded all of them.

    Replicas of sharded matrices have slow ways between them, and work for themselves. A stack of experts that is cut
    between experts needs nobody.
    """
    first, mesh = len(member.placement.shape) - 2, member.placement.mesh
    axes = [axis for cut in member.placement.cuts if cut.dimension >= first for axis in cut.axes]
    return tuple(axes) if mesh.sizes.zero or first else ("replicate", "context", *axes)


def _alike(wholes: Sequence[Tensor]) -> Iterator[list[int]]:
    """Indices of matrices of one shape, few enough to be processed together."""
    by_shape: dict[tuple[int, ...], list[int]] = {}
    for index, whole in enumerate(wholes):
        by_shape.setdefault(tuple(whole.shape[-2:]), []).append(index)
    for indices in by_shape.values():
        batch: list[int] = []
        for index in indices:
            if batch and sum(wholes[each].numel() for each in (*batch, index)) > LARGEST_BATCH:
                yield batch
                batch = []
            batch.append(index)
        yield batch
