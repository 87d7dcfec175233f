"""Exact and near duplicates among all documents, and equal prompts with different answers.

Near duplicates: one-permutation MinHash (Li, Owen, Zhang, 2012) with empty bins filled from the next ones (Shrivastava,
Li, 2014), over runs of five words; candidates agree in a band of four of 128 values (of 16 bits each), and are near
duplicates if 75 % of all values agree, which estimates the Jaccard similarity of their sets of runs. Signatures are in
a temporary file, 256 bytes per document.
"""

import tempfile
from array import array
from collections.abc import Iterator
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from trainer.data.documents import Place
from trainer.data_report.ngrams import Hashes, mix, ngram_hashes

SHINGLE_WORDS, BINS, BAND = 5, 128, 4
MIN_SIMILARITY = 0.75
MIN_WORDS = 20
"""Documents with fewer words are not compared for near duplicates: few runs say little."""
_BIN_SHIFT = np.uint64(64 - 7)
_EMPTY = np.uint64(2**64 - 1)
_PAIRS = 65_536  # compared at a time


def text_hash(text: str) -> int:
    """Return 64 bits of a text."""
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little")


def signature(words: Hashes) -> NDArray[np.uint16]:
    """Return the MinHash values of a document with the hashes `words` of its words, [BINS]."""
    shingles = ngram_hashes(words, SHINGLE_WORDS)
    lowest = np.full(BINS, _EMPTY)
    np.minimum.at(lowest, (shingles >> _BIN_SHIFT).astype(np.intp), shingles << np.uint64(7))
    filled = np.flatnonzero(lowest != _EMPTY)
    nearest = filled[np.searchsorted(filled, np.arange(BINS)) % len(filled)]
    distance = ((nearest - np.arange(BINS)) % BINS).astype(np.uint64)
    return (mix(lowest[nearest] + distance) >> np.uint64(48)).astype(np.uint16)


class _Places:
    """Places of documents, 12 bytes each."""

    def __init__(self) -> None:
        self._names: dict[str, int] = {}
        self._objects, self._rows = array("i"), array("q")

    def add(self, place: Place) -> None:
        self._objects.append(self._names.setdefault(place.object, len(self._names)))
        self._rows.append(place.row)
        self._listed: list[str] | None = None

    def __getitem__(self, number: int) -> Place:
        if self._listed is None:
            self._listed = list(self._names)
        return Place(self._listed[self._objects[number]], self._rows[number])


class Duplicates:
    """The documents of a source: `add` each, then read the pairs."""

    def __init__(self) -> None:
        self._places, self._texts = _Places(), array("Q")
        self._signed = array("q")  # numbers of the documents that have a signature
        self._signatures = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the object

    def add(self, place: Place, text: str, words: Hashes) -> None:
        """Add a document with the hashes of its words."""
        if len(words) >= MIN_WORDS:
            self._signed.append(len(self._texts))
            self._signatures.write(signature(words).tobytes())
        self._places.add(place)
        self._texts.append(text_hash(text))

    def exact(self) -> Iterator[tuple[Place, Place]]:
        """Yield (copy, its original) of each document that has the text of an earlier one, in order."""
        first = self._first_of_each()
        for number in np.flatnonzero(first != np.arange(len(first))).tolist():
            yield self._places[number], self._places[int(first[number])]

    def near(self) -> Iterator[tuple[Place, Place, float]]:
        """Yield (document, a similar earlier one, estimated similarity), in order, without exact copies."""
        self._signatures.flush()
        numbers = np.asarray(self._signed, dtype=np.int64)
        first = self._first_of_each()
        if not len(numbers):
            return
        values = np.memmap(self._signatures, dtype=np.uint16, mode="r", shape=(len(numbers), BINS))
        originals = np.flatnonzero(first[numbers] == numbers)
        best = np.zeros(len(numbers), dtype=np.float32)
        similar_to = np.full(len(numbers), -1, dtype=np.int64)
        for start in range(0, BINS, BAND):
            keys = np.ascontiguousarray(values[originals, start : start + BAND]).view(np.uint64)[:, 0]
            for earlier, later in _candidates(keys, originals):
                similarity = (values[earlier] == values[later]).mean(axis=1, dtype=np.float32)
                is_better = (similarity >= MIN_SIMILARITY) & (similarity > best[later])
                best[later[is_better]], similar_to[later[is_better]] = similarity[is_better], earlier[is_better]
        for number in np.flatnonzero(similar_to >= 0).tolist():
            pair = int(numbers[number]), int(numbers[similar_to[number]])
            yield self._places[pair[0]], self._places[pair[1]], float(best[number])

    def _first_of_each(self) -> NDArray[np.int64]:
        """Return the number of the first document with the same text, for each document."""
        return _first_of_equal(np.asarray(self._texts, dtype=np.uint64))


def _candidates(keys: Hashes, numbers: NDArray[np.int64]) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Yield (earlier, later) of pairs with equal keys: each with the first of its group, and with the one before."""
    order = np.argsort(keys, kind="stable")
    is_equal = keys[order[1:]] == keys[order[:-1]]
    later = np.flatnonzero(is_equal) + 1
    starts = np.maximum.accumulate(np.where(np.append(True, ~is_equal), np.arange(len(order)), 0))
    for earlier in (starts[later], later - 1):
        for start in range(0, len(later), _PAIRS):
            chosen = slice(start, start + _PAIRS)
            yield numbers[order[earlier[chosen]]], numbers[order[later[chosen]]]


def _first_of_equal(values: Hashes) -> NDArray[np.int64]:
    _, first, inverse = np.unique(values, return_index=True, return_inverse=True)
    found: NDArray[np.int64] = first[inverse].astype(np.int64)
    return found


class Prompts:
    """Prompts and answers of conversations, for equal prompts with different answers."""

    def __init__(self) -> None:
        self._places, self._prompts, self._all = _Places(), array("Q"), array("Q")

    def add(self, place: Place, prompt: str, conversation: str) -> None:
        """Add a conversation: what comes before the first answer, and all of it."""
        self._places.add(place)
        self._prompts.append(text_hash(prompt))
        self._all.append(text_hash(conversation))

    def conflicts(self) -> Iterator[tuple[Place, Place]]:
        """Yield (conversation, an earlier one with the same prompt and another answer), in order, without copies."""
        conversations = np.asarray(self._all, dtype=np.uint64)
        first, copied = _first_of_equal(np.asarray(self._prompts, dtype=np.uint64)), _first_of_equal(conversations)
        numbers = np.arange(len(first))
        is_conflict = (copied == numbers) & (conversations != conversations[first])
        for number in np.flatnonzero(is_conflict).tolist():
            yield self._places[number], self._places[int(first[number])]
