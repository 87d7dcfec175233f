"""Which sequence is sample i of step s: a pure function of (seed, fingerprint, s, i), whatever the world size.

The state of the data order is one integer, the step. Each epoch is its own permutation of all sequences.
"""

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from trainer.contract.optimisation import StepSizes
from trainer.data.permutation import Permutation


class Sampler:
    def __init__(self, num_sequences: int, sizes: StepSizes, seed: int, fingerprint: str) -> None:
        self.num_sequences, self.sizes = num_sequences, sizes
        self._seed, self._fingerprint = seed, fingerprint
        self._epoch_order = lru_cache(maxsize=4)(self._make_epoch_order)

    def sequences(self, step: int, start: int, stop: int) -> NDArray[np.int64]:
        """Sequence numbers of samples `start` .. `stop`-1 of step `step` (0-based)."""
        assert 0 <= start <= stop <= self.sizes.at(step)
        positions = self.sizes.before(step) + np.arange(start, stop, dtype=np.int64)
        epochs, offsets = np.divmod(positions, self.num_sequences)
        chosen = np.empty_like(positions)
        for epoch in np.unique(epochs):
            of_epoch = epochs == epoch
            chosen[of_epoch] = self._epoch_order(int(epoch))(offsets[of_epoch])
        return chosen

    def _make_epoch_order(self, epoch: int) -> Permutation:
        return Permutation(self.num_sequences, f"{self._seed}/{self._fingerprint}/{epoch}")


def share(count: int, num_shares: int, which: int) -> tuple[int, int]:
    """Bounds [start, stop) of share `which` of `count` things; shares differ by one at most, longer first."""
    size, longer = divmod(count, num_shares)
    start = which * size + min(which, longer)
    return start, start + size + (which < longer)


def num_sequences(num_tokens: int, sequence_length: int) -> int:
    """Sequences of `sequence_length` inputs, each with the token after it as last target."""
    return (num_tokens - 1) // sequence_length
