"""Which source gives sample n: a table of fixed length that repeats, so that any sample is found without counting.

Each source has its share of the table's places, spread evenly: the j-th of its c places is at (j + 1/2) / c. So after
any number of samples each source has given its share of them, to within a few.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

PLACES = 4096
"""A weight is kept to within 1/8192 of the whole; no source with a weight is left without a place."""


class Mixture:
    """The source of each sample of a mixture, and its number within the source."""

    def __init__(self, weights: Sequence[float]) -> None:
        counts = _apportion(np.asarray(weights, dtype=np.float64))
        source = np.repeat(np.arange(len(counts)), counts)
        within = np.concatenate([np.arange(count) for count in counts])
        order = np.argsort((within + 0.5) / counts[source], kind="stable")
        self._source, self._within, self._counts = source[order], within[order], counts
        given = self._source[:, None] == np.arange(len(counts))
        self._before = np.concatenate([np.zeros((1, len(counts)), dtype=np.int64), np.cumsum(given, axis=0)])

    def __call__(self, samples: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(source, how many samples it gave before) of each of `samples`, numbered from 0 over the whole run."""
        rounds, places = np.divmod(samples, len(self._source))
        source = self._source[places]
        return source, rounds * self._counts[source] + self._within[places]

    def before(self, sample: int) -> list[int]:
        """How many samples each source gives before sample `sample`."""
        rounds, place = divmod(sample, len(self._source))
        given: list[int] = (rounds * self._counts + self._before[place]).tolist()
        return given


def _apportion(weights: NDArray[np.float64]) -> NDArray[np.int64]:
    """Whole numbers of sum PLACES (1 for a lone source) in proportion: largest remainders, at least one each."""
    if len(weights) == 1:
        return np.ones(1, dtype=np.int64)
    exact = weights / weights.sum() * PLACES
    counts: NDArray[np.int64] = np.maximum(np.floor(exact).astype(np.int64), 1)
    while counts.sum() < PLACES:
        counts[np.argmax(exact - counts)] += 1
    while counts.sum() > PLACES:
        counts[np.argmax(np.where(counts > 1, counts - exact, -np.inf))] -= 1
    return counts
