"""Hashes of words and of runs of words, computed for a complete text at a time."""

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


def word_hashes(data: NDArray[np.uint8]) -> Hashes:
    """Return a hash for each word of a text in UTF-8, without regard to ASCII case: sums of random numbers for each
    byte and its place in the word (tabulation hashing)."""
    is_word = _IS_WORD[data]
    if not is_word.any():
        return np.empty(0, dtype=np.uint64)
    begins = is_word.copy()
    begins[1:] &= ~is_word[:-1]
    begins |= _IS_ALONE[data]
    places = np.flatnonzero(is_word)
    is_first = begins[places]
    starts = np.flatnonzero(is_first)
    lengths = np.diff(np.append(starts, len(places)))
    within = np.arange(len(places)) - np.repeat(starts, lengths)
    values = _OF_BYTE[within % _POSITIONS, _TO_LOWER[data[places]]]
    return np.add.reduceat(values, starts)


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
