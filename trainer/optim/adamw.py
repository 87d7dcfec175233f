"""AdamW on this rank's shards, with clipping and the skip decision folded into torch's fused kernel.

The kernel divides gradients by `grad_scale` and leaves parameters and moments bitwise unchanged where `found_inf` is
set, both read on the device: clipping costs no pass over memory and a skip no wait.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import torch
from torch import Tensor

from trainer.contract.cost import OFFLOADED_BUCKET_NUMBERS
from trainer.contract.optimisation import OptimizerSpec
from trainer.optim.sharded_param import Member
from trainer.optim.state_offload import Residence, state_like

MOMENTS = ("exp_avg", "exp_avg_sq")
_Treatment = tuple[float, float]  # factor of the rate, decay


@dataclass(frozen=True)
class Piece:
    """`part` of a member's numbers in their order; None: all of them, in their own shape."""

    member: Member
    part: slice | None = None

    def of(self, tensor: Tensor) -> Tensor:
        return tensor if self.part is None else tensor.view(-1)[self.part]


class AdamW:
    """Updates `members`; their gradients lie on the shards."""

    def __init__(self, members: Sequence[Member], spec: OptimizerSpec) -> None:
        self._members, self._spec = members, spec
        device = members[0].shard.device
        self._step = torch.zeros((), dtype=torch.float32, device=device)  # all are updated together
        self._moments = {
            member.name: [state_like(member.shard, offload=spec.offload) for _ in MOMENTS] for member in members
        }
        self._buckets = list(_buckets(members, offload=spec.offload))
        moments = [
            [piece.of(self._moments[piece.member.name][which]) for which in range(len(MOMENTS)) for piece in bucket]
            for bucket in self._buckets
        ]
        self._residence = Residence(moments, device, offload=spec.offload)

    def step(self, learning_rate: float, scale: Tensor, is_finite: Tensor) -> None:
        """One update with gradients divided by `scale`, or none at all where `is_finite` is false."""
        skipped = (~is_finite).to(torch.float32)
        self._step += 1
        for moments, bucket in zip(self._residence.visit(), self._buckets, strict=True):
            treatment, count = bucket[0].member.treatment, len(bucket)
            torch._fused_adamw_(
                [piece.of(piece.member.shard) for piece in bucket],
                [piece.of(_gradient(piece.member)) for piece in bucket],
                moments[:count], moments[count:], [], [self._step] * count,
                lr=learning_rate * treatment.learning_rate_factor, weight_decay=treatment.weight_decay,
                beta1=self._spec.beta1, beta2=self._spec.beta2, eps=self._spec.epsilon,
                amsgrad=False, maximize=False, grad_scale=scale, found_inf=skipped,
            )  # fmt: skip
        self._step -= skipped

    def state_tensors(self) -> dict[str, Tensor]:
        """`exp_avg`, `exp_avg_sq` (like the shard) and `step` (a scalar) of each member."""
        self._residence.settle()
        tensors: dict[str, Tensor] = {}
        for member in self._members:
            state = dict(zip(MOMENTS, self._moments[member.name], strict=True)) | {"step": self._step}
            tensors |= {f"{kind}/{member.name}": state[kind] for kind in (*MOMENTS, "step")}
        return tensors


def _gradient(member: Member) -> Tensor:
    assert member.shard.grad is not None
    return member.shard.grad


def _buckets(members: Sequence[Member], *, offload: bool) -> Iterator[list[Piece]]:
    """All that one call of the kernel updates: what is treated alike; of offloaded state no more than fits the room."""

    def treatment(member: Member) -> _Treatment:
        return member.treatment.learning_rate_factor, member.treatment.weight_decay

    for _, alike in groupby(sorted(members, key=treatment), key=treatment):
        if not offload:
            yield [Piece(member) for member in alike]
            continue
        bucket: list[Piece] = []
        for member in alike:
            size = member.shard.numel()
            if bucket and size + sum(piece.member.shard.numel() for piece in bucket) > OFFLOADED_BUCKET_NUMBERS:
                yield bucket
                bucket = []
            if size <= OFFLOADED_BUCKET_NUMBERS:
                bucket.append(Piece(member))
            else:
                starts = range(0, size, OFFLOADED_BUCKET_NUMBERS)
                yield from ([Piece(member, slice(start, start + OFFLOADED_BUCKET_NUMBERS))] for start in starts)
        if bucket:
            yield bucket
