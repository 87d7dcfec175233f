"""AdamW on this rank's shards, with clipping and the skip decision folded into torch's fused kernel.

The kernel divides gradients by `grad_scale` and leaves parameters and moments bitwise unchanged where `found_inf` is
set, both read on the device: clipping costs no pass over memory and a skip no wait.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import torch
from torch import Tensor

from trainer.contract.cost import MAX_OFFLOAD_BUCKET_ELEMENTS
from trainer.contract.optimisation import OptimizerSpec
from trainer.optim.sharded_param import ShardedParam
from trainer.optim.state_offload import OptimizerStateOffload, state_like

MOMENTS = ("exp_avg", "exp_avg_sq")
_GroupSettings = tuple[float, float]  # factor of the rate, decay


@dataclass(frozen=True)
class Piece:
    """The slice `part` of a parameter's flattened shard; None: the complete shard in its own shape."""

    param: ShardedParam
    part: slice | None = None

    def of(self, tensor: Tensor) -> Tensor:
        """Return this piece of a tensor like the shard, as a view."""
        return tensor if self.part is None else tensor.view(-1)[self.part]


class AdamW:
    """AdamW over the shards of `params`; gradients are read from `param.shard.grad`."""

    def __init__(self, params: Sequence[ShardedParam], spec: OptimizerSpec) -> None:
        self._params, self._spec = params, spec
        device = params[0].shard.device
        self._step = torch.zeros((), dtype=torch.float32, device=device)  # all are updated together
        self._moments = {
            param.name: [state_like(param.shard, offload=spec.offload) for _ in MOMENTS] for param in params
        }
        self._buckets = list(_buckets(params, offload=spec.offload))
        moments = [
            [piece.of(self._moments[piece.param.name][which]) for which in range(len(MOMENTS)) for piece in bucket]
            for bucket in self._buckets
        ]
        self._state_offload = OptimizerStateOffload(moments, device, offload=spec.offload)

    def step(self, learning_rate: float, scale: Tensor, is_finite: Tensor) -> None:
        """Update the shards with gradients divided by `scale`; where `is_finite` is false nothing changes."""
        skipped = (~is_finite).to(torch.float32)
        self._step += 1
        for moments, bucket in zip(self._state_offload.buckets(), self._buckets, strict=True):
            config, count = bucket[0].param.group_config, len(bucket)
            torch._fused_adamw_(
                [piece.of(piece.param.shard) for piece in bucket],
                [piece.of(_gradient(piece.param)) for piece in bucket],
                moments[:count], moments[count:], [], [self._step] * count,
                lr=learning_rate * config.learning_rate_factor, weight_decay=config.weight_decay,
                beta1=self._spec.beta1, beta2=self._spec.beta2, eps=self._spec.epsilon,
                amsgrad=False, maximize=False, grad_scale=scale, found_inf=skipped,
            )  # fmt: skip
        self._step -= skipped

    def state_tensors(self) -> dict[str, Tensor]:
        """Return `exp_avg/NAME` and `exp_avg_sq/NAME`, like the shard, and the scalar `step/NAME` of each parameter."""
        self._state_offload.synchronize()
        tensors: dict[str, Tensor] = {}
        for param in self._params:
            state = dict(zip(MOMENTS, self._moments[param.name], strict=True)) | {"step": self._step}
            tensors |= {f"{kind}/{param.name}": state[kind] for kind in (*MOMENTS, "step")}
        return tensors


def _gradient(param: ShardedParam) -> Tensor:
    assert param.shard.grad is not None
    return param.shard.grad


def _buckets(params: Sequence[ShardedParam], *, offload: bool) -> Iterator[list[Piece]]:
    """Yield the pieces that one kernel call updates: of equal settings, and with offload of limited size."""

    def group_settings(param: ShardedParam) -> _GroupSettings:
        return param.group_config.learning_rate_factor, param.group_config.weight_decay

    for _, group in groupby(sorted(params, key=group_settings), key=group_settings):
        if not offload:
            yield [Piece(param) for param in group]
            continue
        bucket: list[Piece] = []
        for param in group:
            size = param.shard.numel()
            if bucket and size + sum(piece.param.shard.numel() for piece in bucket) > MAX_OFFLOAD_BUCKET_ELEMENTS:
                yield bucket
                bucket = []
            if size <= MAX_OFFLOAD_BUCKET_ELEMENTS:
                bucket.append(Piece(param))
            else:
                starts = range(0, size, MAX_OFFLOAD_BUCKET_ELEMENTS)
                yield from ([Piece(param, slice(start, start + MAX_OFFLOAD_BUCKET_ELEMENTS))] for start in starts)
        if bucket:
            yield bucket
