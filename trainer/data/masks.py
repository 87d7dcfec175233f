"""Stored tokens with a loss mask: the highest of 32 bits is set for tokens that are not targets."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

MASKED_DTYPE = "uint32"
_UNCOUNTED = 1 << 31


def masked(ids: Sequence[int], counted: Sequence[bool]) -> NDArray[np.uint32]:
    """Return token ids with the mask bit set where `counted` is false."""
    return np.asarray(ids, dtype=np.uint32) | np.where(counted, 0, _UNCOUNTED).astype(np.uint32)


def unmasked(tokens: NDArray[np.integer], ignored: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return (token ids, targets): the targets are the ids, or `ignored` where the mask bit is set."""
    wide = tokens.astype(np.int64)
    plain = wide & (_UNCOUNTED - 1)
    return plain, np.where(wide & _UNCOUNTED, ignored, plain)
