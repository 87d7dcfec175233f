"""A keyed permutation of 0 .. size-1 that needs no table: any element is computed from its index alone.

A balanced Feistel network permutes the smallest even-bit power of two that holds `size`; values beyond `size` are sent
through again until they fall inside (cycle walking; Black and Rogaway 2002), less than four rounds on average since the
domain is at most four times too large.
"""

import hashlib

import numpy as np
from numpy.typing import NDArray

_ROUNDS = 6
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
_MIXER = np.uint64(0xBF58476D1CE4E5B9)


class Permutation:
    """A pseudo-random permutation of 0 .. size - 1, computed place by place."""

    def __init__(self, size: int, key: str) -> None:
        """`key` is any text; another key gives an unrelated order. `size` is 1 .. 2**62."""
        if not 1 <= size <= 2**62:
            raise ValueError(f"size {size} must be between 1 and 2**62")
        self.size = size
        self._half_bits = np.uint64(max(1, -(-(size - 1).bit_length() // 2)))
        self._half_mask = np.uint64((1 << int(self._half_bits)) - 1)
        words = b"".join(hashlib.sha256(f"{key}/{block}".encode()).digest() for block in range(2))
        self._keys = np.frombuffer(words, dtype="<u8")[:_ROUNDS].astype(np.uint64)

    def __call__(self, index: NDArray[np.integer]) -> NDArray[np.int64]:
        """Return the image of each element of `index`, all within 0 .. size-1, in the same shape."""
        value = self._encipher(np.asarray(index, dtype=np.uint64))
        outside = value >= self.size
        while outside.any():
            value[outside] = self._encipher(value[outside])
            outside = value >= self.size
        return value.astype(np.int64)

    def _encipher(self, value: NDArray[np.uint64]) -> NDArray[np.uint64]:
        left, right = value >> self._half_bits, value & self._half_mask
        for key in self._keys:
            left, right = right, left ^ (_mix(right + key) & self._half_mask)
        return (left << self._half_bits) | right


def _mix(value: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Multiply-xorshift on 64 bits (wraps), so that every input bit reaches every output bit."""
    value = value * _MULTIPLIER
    value = (value ^ (value >> np.uint64(30))) * _MIXER
    return value ^ (value >> np.uint64(27))
