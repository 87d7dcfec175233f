"""Read rows of a prepared data set."""

import json
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from trainer.contract.data import DataSpec
from trainer.contract.encryption import DecryptionError, Encryptor
from trainer.contract.manifest import DatasetManifest
from trainer.contract.run import EndClass
from trainer.data.cache import CorruptShard, Fetch, ShardCache
from trainer.data.packing import DocumentRows, Rows, StreamRows
from trainer.data.sampler import Sampler
from trainer.data.shards import DatasetIndex, DocumentLengths
from trainer.errors import TrainerError
from trainer.storage.base import MissingObject, Storage
from trainer.storage.encrypted import get_decrypted

OnCorrupt = Callable[[str, CorruptShard], None]


@dataclass(frozen=True)
class PreparedSource:
    """A prepared data set: its folder on the node, and the manifest of files that can be fetched from the store."""

    name: str
    folder: Path
    manifest: DatasetManifest | None  # None: the folder holds all of it
    key: str = field(repr=False)

    def fetcher(self, storage: Storage) -> Fetch | None:
        """Return a function that fetches a file from the store, None if the folder holds all files."""
        if self.manifest is None:
            return None
        files = {file.path: file for file in self.manifest.files}
        encryptor = Encryptor(self.key)

        def fetch(name: str) -> bytes:
            try:
                return get_decrypted(storage, encryptor, files[name])
            except (DecryptionError, MissingObject) as error:
                raise CorruptShard(name, str(error)) from error

        return fetch


class Source:
    """One split of a prepared data set under one way of packing."""

    def __init__(self, place: PreparedSource, split: str, data: DataSpec, length: int, storage: Storage) -> None:
        self.name, self.split = place.name, split
        self.index = DatasetIndex.read(place.folder)
        self._data, self._length = data, length
        self.rows = row_counts(place.folder, self.index, split, data, length)
        shards = self.index.shards[split]
        limit = data.cache_bytes // len(data.parts)
        fetch = place.fetcher(storage)
        self._cache = ShardCache(place.folder, shards, self.index.dtype, fetch, limit, 2 * data.shuffle_shards)
        self._lengths = None if data.packing == "none" else DocumentLengths(place.folder, self.index, split)
        self._packed = lru_cache(maxsize=2 * data.shuffle_shards)(self._pack)
        self._skipped_shards: set[int] = set()
        self.on_corrupt: OnCorrupt = lambda source, error: None
        self.skipped_rows = 0

    @property
    def num_rows(self) -> int:
        """Return the number of rows over all shards."""
        return sum(self.rows)

    def sampler(self, seed: int) -> Sampler:
        """Return the order in which the rows are read."""
        return Sampler(self.rows, seed, self.index.fingerprint, self._data.shuffle_shards)

    def row(self, shard: int, row: int) -> Rows:
        """Return a row, [1, S].

        Raises TrainerError (DATA_ERROR) for a shard that is damaged in the store. With `on_corrupt: skip` it returns
        row `row` (modulo its number of rows) of the next intact shard instead, and `skipped_rows` counts it.
        """
        for offset in range(len(self.rows)):
            chosen = (shard + offset) % len(self.rows)
            if not self.rows[chosen]:
                continue
            try:
                found = self._read(chosen, row % self.rows[chosen])
            except CorruptShard as error:
                self._report_corrupt(chosen, error)
                continue
            self.skipped_rows += offset > 0
            return found
        raise TrainerError(
            EndClass.DATA_ERROR, f"every shard of the {self.split} split of {self.name} is damaged in the store"
        )

    def prefetch(self, shards: list[int]) -> None:
        """Fetch shards in the background, in this order."""
        self._cache.prefetch(shards)

    def close(self) -> None:
        """Close the shard cache."""
        self._cache.close()

    def _read(self, shard: int, row: int) -> Rows:
        tokens = self._cache.tokens(shard)
        if self._data.packing == "documents":
            index = self.index
            return self._packed(shard).read(
                tokens,
                row,
                index.end_of_text,
                is_masked=index.is_masked,
                has_pairs=index.has_pairs,
                has_labels=index.has_labels,
            )
        return StreamRows(self._length).read(tokens, row)

    def _pack(self, shard: int) -> DocumentRows:
        assert self._lengths is not None, "documents are packed"
        return DocumentRows(self._lengths[shard], self._length, self._data.long_documents)

    def _report_corrupt(self, shard: int, error: CorruptShard) -> None:
        if self._data.on_corrupt == "fail":
            raise TrainerError(
                EndClass.DATA_ERROR,
                f"shard {error.name} of {self.name} is damaged: {error.problem}; "
                "tokenise it again with `athanor dataset prepare NAME --again`, "
                "or train without it with training.data.on_corrupt: skip",
            ) from error
        if shard not in self._skipped_shards:
            self._skipped_shards.add(shard)
            self.on_corrupt(self.name, error)


def row_counts(folder: Path, index: DatasetIndex, split: str, data: DataSpec, length: int) -> list[int]:
    """Return the number of rows of each shard. Those of packed documents are cached in the folder."""
    if data.packing == "none":
        return [StreamRows(length).count(shard.tokens) for shard in index.shards[split]]
    suffix = "" if data.long_documents == "cut" else f"-{data.long_documents}"
    path = folder / f"{split}-rows-{length}{suffix}.json"
    try:
        return [int(count) for count in json.loads(path.read_text())]
    except FileNotFoundError:
        lengths = DocumentLengths(folder, index, split)
        counts = [DocumentRows(each, length, data.long_documents).count for each in lengths]
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    partial.write_text(json.dumps(counts))
    partial.replace(path)
    return counts


def select_evenly_spaced(source: Source, count: int) -> list[tuple[int, int]]:
    """Return (shard, row) of `count` rows at equal distances over the split, or of all rows if there are fewer."""
    total = source.num_rows
    count = min(count, total)
    first_row: NDArray[np.int64] = np.concatenate([[0], np.cumsum(source.rows)])
    chosen = (np.arange(count, dtype=np.int64) * total) // max(1, count)
    shards = np.searchsorted(first_row, chosen, side="right") - 1
    return [(int(shard), int(row)) for shard, row in zip(shards, chosen - first_row[shards], strict=True)]
