"""How chunks are kept: columns of numbers byte by byte, lines of text as JSON, both under zstd. Pure.

A number's high bytes hardly change from one to the next, so all first bytes are kept together, then all second bytes:
a column of doubles shrinks to a fraction. Whole numbers that rise (steps, microseconds) are kept as differences.
"""

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import orjson
import zstandard
from numpy.typing import NDArray

Matrix = NDArray[np.float64]
"""One row a column of the data. Steps and microseconds are below 2**53, so doubles hold them exactly."""

_HEADER = struct.Struct("<HHI")
_LEVEL = 1  # of zstd: higher ones take twice the time for 3 % less


def pack(matrices: Sequence[Matrix], rising: Sequence[frozenset[int]]) -> bytes:
    """Matrices that belong together, each compressed apart. `rising`: the rows of rising whole numbers."""
    pieces = [bytes([len(matrices)])]
    for matrix, differing in zip(matrices, rising, strict=True):
        rows, count = matrix.shape
        body = _compressed(matrix, differing) if count else b""
        pieces += [_HEADER.pack(rows, count, len(body)), body]
    return b"".join(pieces)


def unpack(content: bytes | memoryview, index: int, rising: frozenset[int]) -> Matrix:
    """Return the matrix at `index`; the others stay compressed."""
    view = memoryview(content)
    at = 1
    for _ in range(index):
        at += _HEADER.size + _HEADER.unpack_from(view, at)[2]
    rows, count, size = _HEADER.unpack_from(view, at)
    if not count:
        return np.empty((rows, 0))
    at += _HEADER.size
    flat = np.frombuffer(zstandard.decompress(view[at : at + size]), dtype=np.uint8)
    planes = flat.reshape(rows, 8, count).transpose(0, 2, 1)
    matrix = planes.copy(order="C").view(np.float64).reshape(rows, count)
    if rising:
        chosen = sorted(rising)
        matrix[chosen] = np.cumsum(matrix[chosen], axis=1)
    return matrix


def pack_rows(rows: list[Any]) -> bytes:
    return zstandard.compress(orjson.dumps(rows), level=_LEVEL)


def unpack_rows(content: bytes | memoryview) -> list[Any]:
    rows: list[Any] = orjson.loads(zstandard.decompress(bytes(content)))
    return rows


def _compressed(matrix: Matrix, differing: frozenset[int]) -> bytes:
    rows, count = matrix.shape
    kept = np.array(matrix, dtype=np.float64, order="C")
    if differing:
        chosen = sorted(differing)
        kept[chosen] = np.diff(kept[chosen], axis=1, prepend=0.0)
    planes = kept.view(np.uint8).reshape(rows, count, 8).transpose(0, 2, 1)
    return zstandard.compress(planes.tobytes(), level=_LEVEL)
