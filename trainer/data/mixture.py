"""The source of each sample of a mixture, by a table of fixed length that repeats.

Each source has a number of entries in proportion to its weight, evenly spaced: the j-th of c entries is at (j + 1/2) /
c. So after any number of samples each source has contributed its share of them, to within a few.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

TABLE_SIZE = 4096
"""Entries of the table. A share is exact to 1/8192; each source has at least one entry."""


class Mixture:
    """The source of each sample of a mixture, and its number within the source."""

    def __init__(self, weights: Sequence[float]) -> None:
        counts = _apportion(np.asarray(weights, dtype=np.float64))
        source = np.repeat(np.arange(len(counts)), counts)
        within = np.concatenate([np.arange(count) for count in counts])
        order = np.argsort((within + 0.5) / counts[source], kind="stable")
        self._source, self._within, self._counts = source[order], within[order], counts
        contributed = self._source[:, None] == np.arange(len(counts))
        self._before = np.concatenate([np.zeros((1, len(counts)), dtype=np.int64), np.cumsum(contributed, axis=0)])

    def __call__(self, samples: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return (source, number within the source) of each of `samples`, which are numbered from 0 over the run."""
        rounds, places = np.divmod(samples, len(self._source))
        source = self._source[places]
        return source, rounds * self._counts[source] + self._within[places]

    def before(self, sample: int) -> list[int]:
        """Return how many samples each source contributes before sample `sample`."""
        rounds, place = divmod(sample, len(self._source))
        contributed: list[int] = (rounds * self._counts + self._before[place]).tolist()
        return contributed


def _apportion(weights: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return integers in proportion to `weights` that add up to TABLE_SIZE (1 for a single source), at least 1 each.

    Remainders are apportioned to the largest first.
    """
    if len(weights) == 1:
        return np.ones(1, dtype=np.int64)
    exact = weights / weights.sum() * TABLE_SIZE
    counts: NDArray[np.int64] = np.maximum(np.floor(exact).astype(np.int64), 1)
    while counts.sum() < TABLE_SIZE:
        counts[np.argmax(exact - counts)] += 1
    while counts.sum() > TABLE_SIZE:
        counts[np.argmax(np.where(counts > 1, counts - exact, -np.inf))] -= 1
    return counts
