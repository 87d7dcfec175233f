"""Updates of this rank's shards, taken or skipped as one.

Whether a step is taken, and how much its gradients are clipped, comes from sums over all ranks, so every rank decides
alike; both are read on the device, so that no step waits for them. Where a step is skipped, no bit of parameters,
moments or counters changes.
"""

from collections.abc import Mapping, Sequence
from typing import assert_never, get_args

import torch
from torch import Tensor, nn

from trainer.contract.optimisation import OptimizerSpec
from trainer.optim.adamw import AdamW
from trainer.optim.muon import Muon
from trainer.optim.param_groups import Rule, treatment
from trainer.optim.sharded_param import Member
from trainer.parallel.data import local_tensor
from trainer.parallel.layout import Placement


class ShardOptimizer:
    """Works on plain local tensors that share memory with the (possibly sharded) parameters."""

    def __init__(
        self, named: Mapping[str, nn.Parameter], placements: Mapping[str, Placement], spec: OptimizerSpec
    ) -> None:
        """Collective where Muon meets sharded matrices."""
        self._clip = spec.gradient_clip
        self._members = [
            Member(
                name, parameter, local_tensor(parameter).detach(), placements[name],
                treatment(placements[name].name, len(placements[name].shape), spec),
            )
            for name, parameter in named.items()
        ]  # fmt: skip
        # In the same order on all ranks: Muon's constructor is collective.
        rules: tuple[Rule, ...] = get_args(Rule)
        by_rule = {rule: [each for each in self._members if each.treatment.rule == rule] for rule in rules}
        self._rules = [_updates(rule, members, spec) for rule, members in by_rule.items() if members]
        device = self._members[0].shard.device
        # What several ranks hold alike is counted once in a sum over all ranks.
        self._shares = torch.tensor([each.placement.replicas**-0.5 for each in self._members], device=device)
        self._one = torch.ones((), device=device)

    def gradient_square_sum(self) -> Tensor:
        """This rank's share of the sum of squares of all gradients, a scalar; call after each backward."""
        gradients = []
        for member in self._members:
            assert member.parameter.grad is not None, f"{member.name} took no part in the step"
            member.shard.grad = local_tensor(member.parameter.grad)
            gradients.append(member.shard.grad)
        return (torch.stack(torch._foreach_norm(gradients)) * self._shares).square().sum()

    def step(self, learning_rate: float, gradient_norm: Tensor, is_finite: Tensor) -> None:
        """One update, or none at all where `is_finite` is false. `gradient_norm` is over all ranks, unclipped."""
        scale = self._one if self._clip is None else (gradient_norm / self._clip).clamp(min=1.0)
        scale = torch.where(is_finite, scale, self._one)
        for rule in self._rules:
            rule.step(learning_rate, scale, is_finite)

    def zero_gradients(self) -> None:
        for member in self._members:
            member.parameter.grad = None
            member.shard.grad = None

    def state_tensors(self) -> dict[str, Tensor]:
        """All state as `kind/parameter`, zeros before the first step: each like the parameter's shard, or a scalar."""
        return {name: tensor for rule in self._rules for name, tensor in rule.state_tensors().items()}


def _updates(rule: Rule, members: Sequence[Member], spec: OptimizerSpec) -> AdamW | Muon:
    """Return what updates `members` by `rule`. Collective where Muon meets sharded matrices."""
    match rule:
        case "adamw":
            return AdamW(members, spec)
        case "muon":
            return Muon(members, spec.muon, offload=spec.offload)
        case unknown:
            assert_never(unknown)
