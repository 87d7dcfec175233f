"""The training samples of a run: the source, shard and row of each sample number, and the rows themselves."""

import hashlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from trainer.contract.training import TrainingSpec
from trainer.data.mixture import Mixture
from trainer.data.packing import Rows
from trainer.data.source import PreparedSource, Source
from trainer.storage.base import Storage


class Corpus:
    """The training samples of a run. Sample n is a pure function of (seed, data, n)."""

    def __init__(self, places: Sequence[PreparedSource], training: TrainingSpec, storage: Storage) -> None:
        data, length = training.data, training.sequence_length
        self.sources = [Source(place, "train", data, length, storage) for place in places]
        self._samplers = [source.sampler(training.seed) for source in self.sources]
        self._packing = data.packing
        self._mixture = Mixture([part.weight for part in data.parts])

    @property
    def is_packed(self) -> bool:
        """Whether rows have padding, so that not every target is counted."""
        return self._packing != "none"

    @property
    def fingerprint(self) -> str:
        """Return the fingerprint of all sources; a checkpoint is resumed only with the same."""
        found = [source.index.fingerprint for source in self.sources]
        return found[0] if len(found) == 1 else hashlib.sha256("/".join(found).encode()).hexdigest()

    @property
    def skipped_rows(self) -> int:
        """Return the number of requested samples that were replaced because their shard is damaged."""
        return sum(source.skipped_rows for source in self.sources)

    def places(self, samples: NDArray[np.int64]) -> list[tuple[int, int, int]]:
        """Return (source, shard, row) of each of `samples`, which are numbered from 0 over the run."""
        sources, numbers = self._mixture(samples)
        shards, rows = np.empty_like(samples), np.empty_like(samples)
        for which in np.unique(sources).tolist():
            chosen = sources == which
            shards[chosen], rows[chosen], _ = self._samplers[which](numbers[chosen])
        return list(zip(sources.tolist(), shards.tolist(), rows.tolist(), strict=True))

    def named_places(self, samples: NDArray[np.int64]) -> list[tuple[str, str, int]]:
        """Return the names of source and shard, and the row in the shard, of each of `samples`."""
        found = []
        for which, shard, row in self.places(samples):
            source = self.sources[which]
            found.append((source.name, source.index.shards[source.split][shard].name, row))
        return found

    def in_shard_order(self, samples: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the samples of a step in the order of their places in the windows of their sources.

        Ranks that get neighbouring parts of this order read few shards each, and the same ones for a window.
        """
        sources, numbers = self._mixture(samples)
        places = np.empty(len(samples))
        for which in np.unique(sources).tolist():
            chosen = sources == which
            places[chosen] = self._samplers[which](numbers[chosen])[2]
        in_order: NDArray[np.int64] = samples[np.argsort(places, kind="stable")]
        return in_order

    def rows(self, samples: NDArray[np.int64]) -> Rows:
        """Return the rows of `samples`, [len(samples), S]. Raises TrainerError (DATA_ERROR, STORAGE_ERROR)."""
        return concatenate_rows([self.sources[source].row(shard, row) for source, shard, row in self.places(samples)])

    def prefetch(self, sample: int, sequences: int, start: int, stop: int) -> None:
        """Fetch in the background the shards of samples `start` to `stop`, in shard order, of the step of `sequences`
        that begins at `sample`, and of the steps after it."""
        # Places are spread evenly at random: the k-th of n is within two standard deviations of k / n, 1 / sqrt(n).
        margin = sequences**-0.5
        low, high = start / sequences - margin, stop / sequences + margin
        numbers = self._mixture.before(sample)
        for source, sampler, number in zip(self.sources, self._samplers, numbers, strict=True):
            source.prefetch(sampler.coming_shards(number, low, high))

    def close(self) -> None:
        """Close every source."""
        for source in self.sources:
            source.close()


def concatenate_rows(rows: Sequence[Rows]) -> Rows:
    """Concatenate rows of the same packing to one batch."""
    is_packed = rows[0].documents_BS is not None
    return Rows(
        np.concatenate([row.tokens_BS for row in rows]),
        np.concatenate([row.targets_BS for row in rows]),
        np.concatenate([row.documents_BS for row in rows]) if is_packed else None,
        np.concatenate([row.positions_BS for row in rows]) if is_packed else None,
    )
