"""The optimizer step over this rank's shards, applied or skipped for all parameters together.

Whether a step is skipped, and how gradients are clipped, follows from sums over all ranks, so all ranks agree; both are
read on the device, so the host waits for neither. A skipped step leaves parameters, moments and counters bitwise
unchanged.
"""

from collections.abc import Mapping, Sequence
from typing import assert_never, get_args

import torch
from torch import Tensor, nn

from trainer.contract.optimisation import EmaSpec, OptimizerSpec
from trainer.optim.adamw import AdamW
from trainer.optim.average import WeightAverage
from trainer.optim.muon import Muon
from trainer.optim.param_groups import Algorithm, param_group_config
from trainer.optim.sharded_param import ShardedParam
from trainer.parallel.data import local_tensor
from trainer.parallel.layout import ParamLayout


class ShardOptimizer:
    """Updates local tensors that share memory with the (possibly sharded) parameters."""

    def __init__(
        self,
        named: Mapping[str, nn.Parameter],
        layouts: Mapping[str, ParamLayout],
        spec: OptimizerSpec,
        ema: EmaSpec | None = None,
    ) -> None:
        """Build one optimizer per algorithm; a collective if Muon updates sharded matrices. `ema`: average the
        parameters too."""
        self._clip = spec.gradient_clip
        self._params = [
            ShardedParam(
                name, parameter, local_tensor(parameter).detach(), layouts[name],
                param_group_config(layouts[name].name, len(layouts[name].shape), spec),
            )
            for name, parameter in named.items()
        ]  # fmt: skip
        # In the same order on all ranks: Muon's constructor is collective.
        algorithms: tuple[Algorithm, ...] = get_args(Algorithm)
        by_algorithm = {
            algorithm: [each for each in self._params if each.group_config.algorithm == algorithm]
            for algorithm in algorithms
        }
        self._optimizers = [_updates(algorithm, params, spec) for algorithm, params in by_algorithm.items() if params]
        self.average = None if ema is None else WeightAverage(self._params, ema.decay)
        device = self._params[0].shard.device
        # What several ranks hold alike is counted once in a sum over all ranks.
        self._shares = torch.tensor([each.param_layout.replicas**-0.5 for each in self._params], device=device)
        self._one = torch.ones((), device=device)

    def gradient_squares(self) -> Tensor:
        """Return this rank's share of the sum of squares of each parameter's gradient, [parameters], in the order of
        `named`; call after each backward. All shares of all ranks add up to the squared norm."""
        gradients = []
        for param in self._params:
            assert param.parameter.grad is not None, f"{param.name} took no part in the step"
            param.shard.grad = local_tensor(param.parameter.grad)
            gradients.append(param.shard.grad)
        return self.squares(torch.stack(torch._foreach_norm(gradients)))

    @property
    def shards(self) -> list[Tensor]:
        """Return this rank's part of each parameter, in the order of `named`; they share its memory."""
        return [param.shard for param in self._params]

    def squares(self, norms: Tensor) -> Tensor:
        """Return this rank's share of each squared norm, [parameters]; the shares of all ranks add up. `norms`: of
        tensors like the shards, [parameters]."""
        return (norms * self._shares).square()

    def step(self, learning_rate: float, gradient_norm: Tensor, is_finite: Tensor) -> None:
        """Update the parameters, or nothing where `is_finite` is false, but not their average. `gradient_norm`: over
        all ranks, before clipping.
        """
        scale = self._one if self._clip is None else (gradient_norm / self._clip).clamp(min=1.0)
        scale = torch.where(is_finite, scale, self._one)
        for optimizer in self._optimizers:
            optimizer.step(learning_rate, scale, is_finite)

    def zero_gradients(self) -> None:
        """Drop all gradients."""
        for param in self._params:
            param.parameter.grad = None
            param.shard.grad = None

    def state_tensors(self) -> dict[str, Tensor]:
        """Return all state by `kind/parameter`: each like the parameter's shard, or a scalar; zeros before the first
        step.
        """
        found = {name: tensor for each in self._optimizers for name, tensor in each.state_tensors().items()}
        return found if self.average is None else found | self.average.state_tensors()


def _updates(algorithm: Algorithm, params: Sequence[ShardedParam], spec: OptimizerSpec) -> AdamW | Muon:
    """Return what updates `params` by `algorithm`. Collective where Muon meets sharded matrices."""
    match algorithm:
        case "adamw":
            return AdamW(params, spec)
        case "muon":
            return Muon(params, spec.muon, offload=spec.offload)
        case unknown:
            assert_never(unknown)
