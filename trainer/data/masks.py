"""Stored tokens with a loss mask: the highest of 32 bits is set for tokens that are not targets, the next one for those
of the rejected answer of a pair, or of an answer with the label false."""

import numpy as np
from numpy.typing import NDArray

MASKED_DTYPE = "uint32"
_UNCOUNTED, _REJECTED = 1 << 31, 1 << 30


def masked(ids: NDArray[np.uint32], counted: NDArray[np.bool_], *, is_rejected: bool = False) -> NDArray[np.uint32]:
    """Return token ids with the mask bit set where `counted` is false, and with `is_rejected` the other bit."""
    side = np.uint32(_REJECTED if is_rejected else 0)
    return ids | side | np.where(counted, np.uint32(0), np.uint32(_UNCOUNTED))


def unmasked(tokens: NDArray[np.integer], ignored: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return (token ids, targets): the targets are the ids, or `ignored` where the mask bit is set."""
    wide = tokens.astype(np.int64)
    plain = wide & (_REJECTED - 1)
    return plain, np.where(wide & _UNCOUNTED, ignored, plain)


def num_chosen(tokens: NDArray[np.integer]) -> int:
    """Return the number of tokens of a pair before its rejected answer."""
    return int(np.argmax(tokens.astype(np.int64) & _REJECTED > 0))


def is_rejected(tokens: NDArray[np.integer]) -> bool:
    """Return whether tokens are those of a rejected answer."""
    return bool(tokens[0].astype(np.int64) & _REJECTED)
