"""AdamW on this rank's shards, with clipping and the skip decision folded into the fused kernel.

The kernel divides gradients by `grad_scale` and leaves parameters, moments and step counters bitwise
unchanged where `found_inf` is set, both read on the device: clipping costs no pass over memory and a skip no
wait.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from trainer.contract.optimisation import OptimizerSpec
from trainer.optim.member import Member

MOMENTS = ("exp_avg", "exp_avg_sq")


class AdamW:
    """Updates `members`; their gradients lie on the shards."""

    def __init__(self, members: Sequence[Member], spec: OptimizerSpec) -> None:
        self._members = members
        by_treatment: dict[tuple[float, float], list[Tensor]] = {}
        for member in members:
            key = (member.treatment.learning_rate_factor, member.treatment.weight_decay)
            by_treatment.setdefault(key, []).append(member.shard)
        self._factors = [factor for factor, _ in by_treatment]
        self._adamw = torch.optim.AdamW(
            [{"params": shards, "weight_decay": decay} for (_, decay), shards in by_treatment.items()],
            betas=(spec.beta1, spec.beta2),
            eps=spec.epsilon,
            fused=True,
        )

    def step(self, learning_rate: float, scale: Tensor, is_finite: Tensor) -> None:
        """One update with gradients divided by `scale`, or none at all where `is_finite` is false."""
        for factor, group in zip(self._factors, self._adamw.param_groups, strict=True):
            group["lr"] = learning_rate * factor
        self._adamw.grad_scale = scale
        self._adamw.found_inf = (~is_finite).to(torch.float32)
        self._adamw.step()

    def state_tensors(self) -> dict[str, Tensor]:
        """`exp_avg`, `exp_avg_sq` (like the shard) and `step` (a scalar) of each member."""
        tensors = {}
        for member in self._members:
            state = self._adamw.state[member.shard]
            if not state:
                state["step"] = torch.zeros((), dtype=torch.float32, device=member.shard.device)
                for moment in MOMENTS:
                    state[moment] = torch.zeros_like(member.shard)
            tensors |= {f"{kind}/{member.name}": state[kind] for kind in (*MOMENTS, "step")}
        return tensors
