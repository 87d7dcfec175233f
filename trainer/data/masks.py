"""Tokens that say of themselves whether a loss is counted for them: the highest bit of 32 is set where none is."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

MASKED_DTYPE = "uint32"
_UNCOUNTED = 1 << 31


def masked(ids: Sequence[int], counted: Sequence[bool]) -> NDArray[np.uint32]:
    """Return token ids with the bit of tokens that are not counted."""
    return np.asarray(ids, dtype=np.uint32) | np.where(counted, 0, _UNCOUNTED).astype(np.uint32)


def unmasked(tokens: NDArray[np.integer], ignored: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(tokens, targets): the targets are the same tokens, `ignored` where no loss is counted."""
    wide = tokens.astype(np.int64)
    plain = wide & (_UNCOUNTED - 1)
    return plain, np.where(wide & _UNCOUNTED, ignored, plain)
