"""Hashes of words and of runs of words, computed for many texts at a time."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Hashes = NDArray[np.uint64]

_POSITIONS = 64
_RANDOM = np.random.Generator(np.random.PCG64(19))
_OF_BYTE = _RANDOM.integers(0, 2**64, (_POSITIONS, 256), dtype=np.uint64)
_OF_PLACE = _RANDOM.integers(0, 2**63, 64, dtype=np.uint64) * np.uint64(2) + np.uint64(1)
_IS_WORD = np.array([chr(byte).isalnum() or byte >= 128 for byte in range(128)] + [True] * 128)
_IS_ALONE = np.array([0xE3 <= byte <= 0xED for byte in range(256)])
"""First bytes of characters of scripts without spaces (U+3000 to U+DFFF in UTF-8): each is a word."""
_TO_LOWER = np.array([byte + 32 if 65 <= byte <= 90 else byte for byte in range(256)], dtype=np.uint8)
_OF_BYTE_IN_ANY_CASE = _OF_BYTE[:, _TO_LOWER].ravel()


class Words(NamedTuple):
    """Words of texts. `counts`: words of each text, [texts]."""

    hashes: Hashes
    counts: NDArray[np.int64]

    def runs(self, size: int) -> tuple[Hashes, NDArray[np.int64]]:
        """Return a hash for each run of `size` words, and the number of its text; none for texts of fewer words."""
        found = ngram_hashes(self.hashes, size)
        text_of = np.repeat(np.arange(len(self.counts)), self.counts)
        first, last = text_of[: len(found)], text_of[size - 1 :]
        is_within = first == last
        return found[is_within], first[is_within]


def words_of(data: NDArray[np.uint8], begins: NDArray[np.int64]) -> Words:
    """Return the words of texts in UTF-8 that follow one another. `begins`: of each text; before each but the first is
    a byte that belongs to no word, such as a line end.

    A hash disregards ASCII case. It is the sum of random numbers for each byte and its place in the word (tabulation
    hashing).
    """
    is_word = _IS_WORD[data]
    is_first = is_word.copy()
    is_first[1:] &= ~is_word[:-1]
    is_first |= _IS_ALONE[data]
    places = np.flatnonzero(is_word)
    starts = np.flatnonzero(is_first[places])
    if not len(starts):
        return Words(np.empty(0, dtype=np.uint64), np.zeros(len(begins), dtype=np.int64))
    lengths = np.diff(np.append(starts, len(places)))
    within = np.arange(len(places)) - np.repeat(starts, lengths)
    within &= _POSITIONS - 1
    within <<= 8
    within += data[places]
    hashes = np.add.reduceat(_OF_BYTE_IN_ANY_CASE[within], starts)
    before = np.searchsorted(places[starts], np.append(begins, len(data)))
    return Words(hashes, np.diff(before))


def word_hashes(data: NDArray[np.uint8]) -> Hashes:
    """Return a hash for each word of a text in UTF-8."""
    return words_of(data, np.zeros(1, dtype=np.int64)).hashes


def ngram_hashes(words: Hashes, size: int) -> Hashes:
    """Return a hash for each run of `size` words; none for fewer words."""
    count = len(words) - size + 1
    if count <= 0:
        return np.empty(0, dtype=np.uint64)
    found = np.zeros(count, dtype=np.uint64)
    for place in range(size):
        found += words[place : place + count] * _OF_PLACE[place]
    return mix(found)


def mix(values: Hashes) -> Hashes:
    """Return values of which each bit depends on all bits (the finalizer of splitmix64)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
