"""A prepared data set on disk: shards of tokens, the lengths of their documents, the tokenizer, and the index.

`dataset.json`                  the index, written last
`tokenizer.json`                the tokenizer
`<split>.documents`             tokens of each document, uint32, in order of the shards
`<split>-00000-00000.tokens` .. shards: tokens of whole documents, one after another, each with its end of text; the
                                first number is that of the unit it was prepared in

A document longer than a shard is cut into several. Shards are as large as one encrypted part, so that a shard is one
object in the store. Only the shards are streamed; the rest is small and on every node.
"""

import hashlib
import json
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO, overload

import numpy as np
from numpy.typing import NDArray

from trainer.contract.manifest import PART_PLAINTEXT_BYTES, is_file_name

INDEX_NAME = "dataset.json"
TOKENIZER_NAME = "tokenizer.json"
SPLITS = ("train", "validation")
MAX_SHARD_BYTES = PART_PLAINTEXT_BYTES
LENGTH_DTYPE = np.dtype("<u4")


@dataclass(frozen=True)
class Shard:
    """`first_token` counts from the start of the split; `sha256` is of the file."""

    name: str
    first_token: int
    tokens: int
    documents: int
    sha256: str

    def after(self, others: Sequence["Shard"]) -> "Shard":
        """Return the same shard, which follows `others` in its split."""
        return replace(self, first_token=others[-1].first_token + others[-1].tokens if others else 0)


@dataclass(frozen=True)
class DatasetIndex:
    """The index of a prepared folder. `dtype`: uint16 if all ids fit, else uint32. `documents`: number of documents of
    the text, before long ones are cut; `text_bytes`: its UTF-8 bytes, by split; `end_of_text`: id of the token after
    each document. `is_masked`: tokens have a loss mask (see `masks`); documents are then conversations, which end as
    their chat template defines. `has_pairs`: documents are pairs of answers, the chosen one first, each with its
    prompt. `has_labels`: documents are answers with a label, each with its prompt."""

    fingerprint: str
    vocab_size: int
    documents: int
    dtype: str
    shards: dict[str, list[Shard]]
    text_bytes: dict[str, int]
    end_of_text: int
    is_masked: bool = False
    has_pairs: bool = False
    has_labels: bool = False

    @property
    def train_tokens(self) -> int:
        """Return the tokens of the training split."""
        return sum(shard.tokens for shard in self.shards["train"])

    @property
    def validation_tokens(self) -> int:
        """Return the tokens of the validation split."""
        return sum(shard.tokens for shard in self.shards["validation"])

    def write(self, folder: Path) -> None:
        """Write the index. Write it last: a folder without it is incomplete."""
        partial = folder / f".{INDEX_NAME}.partial"
        partial.write_text(json.dumps(asdict(self)))
        partial.replace(folder / INDEX_NAME)

    @classmethod
    def read(cls, folder: Path) -> "DatasetIndex":
        """Raise ValueError for an index that names a shard outside the folder."""
        fields = json.loads((folder / INDEX_NAME).read_text())
        shards = {split: [Shard(**shard) for shard in found] for split, found in fields.pop("shards").items()}
        for shard in (shard for found in shards.values() for shard in found):
            if not is_file_name(shard.name):
                raise ValueError(f"{folder / INDEX_NAME}: {shard.name!r} is not the plain name of a shard's file")
        return cls(shards=shards, **fields)


def token_dtype(vocab_size: int) -> str:
    """Return the smallest unsigned type for token ids of a vocabulary."""
    return "uint16" if vocab_size <= 2**16 else "uint32"


def documents_name(split: str) -> str:
    """Return the file name of the document lengths of a split."""
    return f"{split}.documents"


def file_names(index: DatasetIndex) -> list[str]:
    """Return the names of all files of the folder, the index last."""
    shards = [shard.name for split in SPLITS for shard in index.shards[split]]
    return [*shards, *map(documents_name, SPLITS), TOKENIZER_NAME, INDEX_NAME]


def unit_documents_name(split: str, unit: int) -> str:
    """Return the file name of the document lengths of a split of a unit, until the units are joined."""
    return documents_name(f"{split}-{unit:05d}")


def join_document_lengths(folder: Path, split: str, units: int) -> None:
    """Join the document lengths of all units of a split to one file."""
    with (folder / documents_name(split)).open("wb") as joined:
        for unit in range(units):
            path = folder / unit_documents_name(split, unit)
            with path.open("rb") as file:
                shutil.copyfileobj(file, joined)
            path.unlink()


class DocumentLengths(Sequence[NDArray[np.int64]]):
    """The tokens of each document, by shard. Read from the file when a shard's are asked for: a trillion tokens have a
    billion documents."""

    def __init__(self, folder: Path, index: DatasetIndex, split: str) -> None:
        """Open the file. Raises ValueError if it does not match the index."""
        name = documents_name(split)
        counts = [shard.documents for shard in index.shards[split]]
        self._begins = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
        listed = (folder / name).stat().st_size // LENGTH_DTYPE.itemsize
        if not counts or listed != self._begins[-1]:
            raise ValueError(f"{name} lists {listed} documents, but the index counts {self._begins[-1]}")
        self._lengths = np.memmap(folder / name, dtype=LENGTH_DTYPE, mode="r")

    def __len__(self) -> int:
        return len(self._begins) - 1

    @overload
    def __getitem__(self, shard: int) -> NDArray[np.int64]: ...

    @overload
    def __getitem__(self, shard: slice) -> Sequence[NDArray[np.int64]]: ...

    def __getitem__(self, shard: int | slice) -> NDArray[np.int64] | Sequence[NDArray[np.int64]]:
        if isinstance(shard, slice):
            return [self[number] for number in range(*shard.indices(len(self)))]
        if not 0 <= shard < len(self):
            raise IndexError(shard)
        return self._lengths[self._begins[shard] : self._begins[shard + 1]].astype(np.int64)


class ShardWriter:
    """Writes the shards of one split of one unit, and their documents' lengths to a file of the unit's own; at most one
    shard of tokens is in memory."""

    def __init__(self, folder: Path, split: str, unit: int, dtype: str, shard_bytes: int = MAX_SHARD_BYTES) -> None:
        self._folder, self._name, self._dtype = folder, f"{split}-{unit:05d}", np.dtype(dtype).newbyteorder("<")
        self._capacity = shard_bytes // self._dtype.itemsize
        self._pending: list[NDArray[np.integer]] = []
        self._pending_tokens = 0
        self._lengths: IO[bytes] = (folder / unit_documents_name(split, unit)).open("wb")
        self.shards: list[Shard] = []

    def add(self, ids: Sequence[int] | NDArray[np.integer]) -> None:
        """Add the tokens of a document, its end of text included."""
        tokens = np.asarray(ids, dtype=self._dtype)
        if self._pending_tokens + len(tokens) > self._capacity:
            self._finish_shard()
        for start in range(0, len(tokens), self._capacity):
            if start:
                self._finish_shard()
            self._pending.append(tokens[start : start + self._capacity])
            self._pending_tokens += len(self._pending[-1])

    def close(self) -> list[Shard]:
        """Finish the last shard. Return all shards."""
        self._finish_shard()
        self._lengths.close()
        return self.shards

    def _finish_shard(self) -> None:
        if not self._pending:
            return
        content = np.concatenate(self._pending).tobytes()
        name = f"{self._name}-{len(self.shards):05d}.tokens"
        (self._folder / name).write_bytes(content)
        self._lengths.write(np.array([len(document) for document in self._pending], dtype=LENGTH_DTYPE).tobytes())
        shard = Shard(name, 0, self._pending_tokens, len(self._pending), hashlib.sha256(content).hexdigest())
        self.shards.append(shard.after(self.shards))
        self._pending, self._pending_tokens = [], 0
