"""The order of a data set's rows: sample n is a pure function of (seed, fingerprint, n).

Each epoch shuffles the shards, cuts their order into windows, and shuffles the rows within each window. So a run needs
the shards of one window at a time, and an epoch contains each row once. The only state is the number of the step,
whatever the number of ranks. Which rank gets which samples of a step follows from where in their window they lie, so
that a node reads a part of its shards, and not all of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from trainer.data.permutation import Permutation


@dataclass(frozen=True)
class _Epoch:
    shards: NDArray[np.int64]  # in this epoch's order
    first_row: NDArray[np.int64]  # of each shard in that order, and the total: [num_shards + 1]
    windows: NDArray[np.int64]  # first row of each window, and the total: [num_windows + 1]


class Sampler:
    """The order in which the rows of all shards are read."""

    def __init__(self, rows: Sequence[int], seed: int, fingerprint: str, shards_per_window: int) -> None:
        """`rows`: how many each shard has; at least one has some."""
        self._rows = np.asarray(rows, dtype=np.int64)
        self.num_rows = int(self._rows.sum())
        self._per_window = shards_per_window
        self._key = f"{seed}/{fingerprint}"
        self._epoch = lru_cache(maxsize=4)(self._make_epoch)
        self._order = lru_cache(maxsize=16)(self._make_order)

    def __call__(self, samples: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
        """Return (shard, row in the shard, place in the window) of each of `samples`, numbered from 0 over all epochs.

        The place is the share of the window's rows, in the order of its shards, that lie before: 0 or more, below 1.
        """
        epochs, positions = np.divmod(samples, self.num_rows)
        shards, rows, places = np.empty_like(samples), np.empty_like(samples), np.empty(len(samples))
        for number in np.unique(epochs).tolist():
            epoch = self._epoch(number)
            of_epoch = np.flatnonzero(epochs == number)
            windows = np.searchsorted(epoch.windows, positions[of_epoch], side="right") - 1
            for window in np.unique(windows).tolist():
                chosen = of_epoch[windows == window]
                start, stop = epoch.windows[window : window + 2]
                row = start + self._order(number, window)(positions[chosen] - start)
                which = np.searchsorted(epoch.first_row, row, side="right") - 1
                shards[chosen], rows[chosen] = epoch.shards[which], row - epoch.first_row[which]
                places[chosen] = (row - start) / (stop - start)
        return shards, rows, places

    def coming_shards(self, sample: int, low: float = 0.0, high: float = 1.0) -> list[int]:
        """Return the shards of the window of `sample` and of the next window, in this order, that have rows at places
        from `low` to `high`."""
        number, position = divmod(sample, self.num_rows)
        epoch = self._epoch(number)
        window = int(np.searchsorted(epoch.windows, position, side="right")) - 1
        this = self._shards_at(epoch, window, low, high)
        if window + 2 < len(epoch.windows):
            return this + self._shards_at(epoch, window + 1, low, high)
        return this + self._shards_at(self._epoch(number + 1), 0, low, high)

    def _shards_at(self, epoch: _Epoch, window: int, low: float, high: float) -> list[int]:
        first = window * self._per_window
        start, stop = epoch.windows[window : window + 2]
        bounds = (epoch.first_row[first : first + self._per_window + 1] - start) / (stop - start)
        found = (bounds[1:] > low) & (bounds[:-1] <= high)
        shards: list[int] = epoch.shards[first : first + self._per_window][found].tolist()
        return shards

    def _make_epoch(self, number: int) -> _Epoch:
        usable = np.flatnonzero(self._rows)
        order = usable[Permutation(len(usable), f"{self._key}/{number}/shards")(np.arange(len(usable)))]
        first_row = np.concatenate([[0], np.cumsum(self._rows[order])])
        starts = first_row[np.arange(0, len(order), self._per_window)]
        return _Epoch(order, first_row, np.append(starts, first_row[-1]))

    def _make_order(self, epoch: int, window: int) -> Permutation:
        bounds = self._epoch(epoch).windows
        # The first window's key is the epoch's own: a data set of one shard keeps the order it always had.
        key = f"{self._key}/{epoch}" if window == 0 else f"{self._key}/{epoch}/{window}"
        return Permutation(int(bounds[window + 1] - bounds[window]), key)


def split_range(count: int, num_shares: int, which: int) -> tuple[int, int]:
    """Return (start, stop) of share `which` of `count` items; shares differ by at most 1, longer ones first."""
    size, longer = divmod(count, num_shares)
    start = which * size + min(which, longer)
    return start, start + size + (which < longer)
