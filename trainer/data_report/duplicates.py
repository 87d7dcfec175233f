"""Exact and near duplicates among all documents, and equal prompts with different answers.

Near duplicates: one-permutation MinHash (Li, Owen, Zhang, 2012) with empty bins filled from the next ones (Shrivastava,
Li, 2014), over runs of five words; candidates agree in a band of four of 128 values (of 16 bits each), and are near
duplicates if 75 % of all values agree, which estimates the Jaccard similarity of their sets of runs. Signatures are in
a temporary file, 256 bytes per document.
"""

import tempfile
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from trainer.data.documents import Place
from trainer.data_report.ngrams import Hashes, Words, mix

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


@dataclass(frozen=True)
class Fingerprints:
    """What is compared of documents. `texts`: hashes of their texts, [documents]. `signed`: the documents that have a
    signature; `signatures`: their MinHash values, [signed, BINS]."""

    texts: Hashes
    signed: NDArray[np.int64]
    signatures: NDArray[np.uint16]

    @classmethod
    def of(cls, texts: Sequence[str], words: Words) -> "Fingerprints":
        """Return the fingerprints of documents with these words."""
        signed = np.flatnonzero(words.counts >= MIN_WORDS)
        hashes = np.fromiter(map(text_hash, texts), dtype=np.uint64, count=len(texts))
        return cls(hashes, signed, _signatures(words, signed))


def _signatures(words: Words, signed: NDArray[np.int64]) -> NDArray[np.uint16]:
    """Return the MinHash values of the documents `signed`, [signed, BINS]."""
    if not len(signed):
        return np.empty((0, BINS), dtype=np.uint16)
    shingles, documents = words.runs(SHINGLE_WORDS)
    row_of = np.full(len(words.counts), -1)
    row_of[signed] = np.arange(len(signed))
    rows = row_of[documents]
    shingles, rows = shingles[rows >= 0], rows[rows >= 0]
    flat = np.full(len(signed) * BINS, _EMPTY)
    np.minimum.at(flat, rows * BINS + (shingles >> _BIN_SHIFT).astype(np.intp), shingles << np.uint64(7))
    lowest = flat.reshape(-1, BINS)
    bins = np.arange(BINS)
    # Of each bin, the nearest filled one from it on, beyond the end from the beginning.
    filled = np.where(lowest != _EMPTY, bins, 2 * BINS)
    around = np.concatenate([filled, np.where(filled < BINS, filled + BINS, 2 * BINS)], axis=1)
    nearest = np.minimum.accumulate(around[:, ::-1], axis=1)[:, ::-1][:, :BINS]
    values = np.take_along_axis(lowest, nearest % BINS, axis=1) + (nearest - bins).astype(np.uint64)
    return (mix(values) >> np.uint64(48)).astype(np.uint16)


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

    def add(self, places: Iterable[Place], prints: Fingerprints) -> None:
        """Add documents."""
        self._signed.extend((prints.signed + len(self._texts)).tolist())
        self._signatures.write(prints.signatures.tobytes())
        self._texts.extend(prints.texts.tolist())
        for place in places:
            self._places.add(place)

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


class Preferences:
    """Prompts with their chosen and rejected answers, for pairs that contradict an earlier one."""

    def __init__(self) -> None:
        self._places, self._chosen, self._rejected = _Places(), array("Q"), array("Q")

    def add(self, place: Place, chosen: int, rejected: int) -> None:
        """Add a pair: the hashes of its prompt with each answer."""
        self._places.add(place)
        self._chosen.append(chosen)
        self._rejected.append(rejected)

    def contradictions(self) -> Iterator[tuple[Place, Place]]:
        """Yield (pair, the first earlier one that prefers the answer which it rejects), in order."""
        chosen, rejected = (np.asarray(each, dtype=np.uint64) for each in (self._chosen, self._rejected))
        pairs, opposites = mix(chosen) + rejected, mix(rejected) + chosen
        order = np.argsort(pairs, kind="stable")
        places = np.searchsorted(pairs, opposites, sorter=order)
        first = order[np.minimum(places, len(order) - 1)] if len(order) else order
        numbers = np.arange(len(first))
        is_opposite = (pairs[first] == opposites) & (first < numbers) & (chosen != rejected)
        for number in np.flatnonzero(is_opposite).tolist():
            yield self._places[number], self._places[int(first[number])]


class Prompts:
    """Prompts and answers of conversations, for equal prompts with different answers."""

    def __init__(self) -> None:
        self._places, self._prompts, self._all = _Places(), array("Q"), array("Q")

    def add(self, place: Place, prompt: int, conversation: int) -> None:
        """Add a conversation: the hashes of what comes before the first answer, and of all of it."""
        self._places.add(place)
        self._prompts.append(prompt)
        self._all.append(conversation)

    def conflicts(self) -> Iterator[tuple[Place, Place]]:
        """Yield (conversation, an earlier one with the same prompt and another answer), in order, without copies."""
        conversations = np.asarray(self._all, dtype=np.uint64)
        first, copied = _first_of_equal(np.asarray(self._prompts, dtype=np.uint64)), _first_of_equal(conversations)
        numbers = np.arange(len(first))
        is_conflict = (copied == numbers) & (conversations != conversations[first])
        for number in np.flatnonzero(is_conflict).tolist():
            yield self._places[number], self._places[int(first[number])]
