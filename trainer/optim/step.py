"""AdamW on this rank's shards, with clipping and the skip decision folded into the fused kernel.

The kernel divides gradients by `grad_scale` and leaves parameters, moments and step counters bitwise
unchanged where `found_inf` is set, both read on the device: clipping costs no pass over memory and a skip no
wait. Both decisions come from sums over all ranks, so every rank decides alike.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from trainer.contract.optimisation import OptimizerSpec
from trainer.parallel.data import local_tensor
from trainer.parallel.layout import Placement


class ShardOptimizer:
    """Works on plain local tensors that share memory with the (possibly sharded) parameters."""

    def __init__(
        self, named: Mapping[str, nn.Parameter], placements: Mapping[str, Placement], spec: OptimizerSpec
    ) -> None:
        self._clip = spec.gradient_clip
        self.names = list(named)
        self._parameters = list(named.values())
        self._locals = [local_tensor(parameter).detach() for parameter in self._parameters]
        # What several ranks hold alike is counted once in a sum over all ranks.
        shares = torch.tensor([placements[name].replicas ** -0.5 for name in self.names])
        self._shares = shares.to(self._locals[0].device)
        # Norms and other one-dimensional parameters are not decayed: shrinking a gain is no regularisation.
        decayed = [shard for shard, full in zip(self._locals, self._parameters, strict=True) if full.ndim > 1]
        others = [shard for shard, full in zip(self._locals, self._parameters, strict=True) if full.ndim <= 1]
        groups = [{"params": decayed, "weight_decay": spec.weight_decay}, {"params": others, "weight_decay": 0.0}]
        self.adamw = torch.optim.AdamW(
            [group for group in groups if group["params"]],
            lr=spec.learning_rate,
            betas=(spec.beta1, spec.beta2),
            eps=spec.epsilon,
            fused=True,
        )
        self._one = torch.ones((), device=self._locals[0].device)

    def gradient_square_sum(self) -> Tensor:
        """This rank's share of the sum of squares of all gradients, a scalar; call after each backward."""
        for shard, parameter in zip(self._locals, self._parameters, strict=True):
            assert parameter.grad is not None, "every parameter takes part in every step"
            shard.grad = local_tensor(parameter.grad)
        norms = torch._foreach_norm([shard.grad for shard in self._locals])
        return (torch.stack(norms) * self._shares).square().sum()

    def step(self, learning_rate: float, gradient_norm: Tensor, is_finite: Tensor) -> None:
        """One update, or none at all where `is_finite` is false. `gradient_norm` is over all ranks, unclipped."""
        for group in self.adamw.param_groups:
            group["lr"] = learning_rate
        scale = self._one if self._clip is None else (gradient_norm / self._clip).clamp(min=1.0)
        self.adamw.grad_scale = torch.where(is_finite, scale, self._one)
        self.adamw.found_inf = (~is_finite).to(torch.float32)
        self.adamw.step()

    def zero_gradients(self) -> None:
        for shard, parameter in zip(self._locals, self._parameters, strict=True):
            parameter.grad = None
            shard.grad = None

    def state_tensors(self) -> dict[str, Tensor]:
        """Moments and step counters by name, made (as zeros) if no step has been taken yet."""
        tensors = {}
        for name, shard in zip(self.names, self._locals, strict=True):
            state = self._state(shard)
            for moment in ("exp_avg", "exp_avg_sq", "step"):
                tensors[f"{moment}/{name}"] = state[moment]
        return tensors

    def _state(self, shard: Tensor) -> dict[str, Tensor]:
        state = self.adamw.state[shard]
        if not state:
            state["step"] = torch.zeros((), dtype=torch.float32, device=shard.device)
            state["exp_avg"] = torch.zeros_like(shard)
            state["exp_avg_sq"] = torch.zeros_like(shard)
        return state
