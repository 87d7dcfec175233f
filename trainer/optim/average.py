"""An exponential moving average of the trained parameters, sharded as they are."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from trainer.optim.sharded_param import ShardedParam


class WeightAverage:
    """The average of each trained parameter's shard, in fp32. It begins with the values that the parameters begin
    with."""

    def __init__(self, params: Sequence[ShardedParam], decay: float) -> None:
        self._decay = decay
        self._pairs = [(torch.zeros_like(param.shard), param.shard) for param in params]
        self._names = [param.name for param in params]

    def reset(self) -> None:
        """Set the average to the parameters."""
        for average, parameter in self._pairs:
            average.copy_(parameter)

    def update(self, step: int, is_applied: Tensor) -> None:
        """Move the average towards the parameters after 0-based `step`, or leave it unchanged where `is_applied` is
        false."""
        weight = is_applied.float() * (1.0 - decay_at(self._decay, step))
        for average, parameter in self._pairs:
            average.lerp_(parameter, weight)

    def state_tensors(self) -> dict[str, Tensor]:
        """Return the average by `ema/parameter`."""
        return {f"ema/{name}": average for name, (average, _) in zip(self._names, self._pairs, strict=True)}

    @contextmanager
    def exchanged(self) -> Iterator[None]:
        """Exchange the values of the parameters and of their average, and exchange them back at the end: no bit of
        either changes."""
        self._exchange()
        try:
            yield
        finally:
            self._exchange()

    def _exchange(self) -> None:
        for average, parameter in self._pairs:
            before = parameter.clone()  # one parameter at a time
            parameter.copy_(average)
            average.copy_(before)


def decay_at(decay: float, step: int) -> float:
    """Return the decay of 0-based `step`: min(decay, (1 + n) / (10 + n)) after n steps, as TensorFlow's
    `ExponentialMovingAverage` has it, so that the first values, which are random in a new model, soon count little."""
    return min(decay, (2 + step) / (11 + step))
