"""Binary encoding of stored telemetry: float64 columns of metric series, and JSON batches, both compressed by zstd.

Columns are byte-shuffled: the high bytes of a number rarely differ from those of the next, so all first bytes are
stored together, then all second bytes, which zstd compresses well. Increasing integers (steps, microseconds) are
delta-encoded. Batches of metric points and of log lines are JSON. Pure.
"""

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import orjson
import zstandard
from numpy.typing import NDArray

Matrix = NDArray[np.float64]
"""Shape [columns, points]: one row per column. Steps and microseconds are below 2**53, so doubles are exact."""

_HEADER = struct.Struct("<HHI")  # rows, points, compressed bytes
_LEVEL = 1  # of zstd: higher ones take twice the time for 3 % less


def pack(matrices: Sequence[Matrix], increasing: Sequence[frozenset[int]]) -> bytes:
    """Encode matrices, each compressed separately. `increasing[i]`: rows of matrix i that are increasing integers."""
    pieces = [bytes([len(matrices)])]
    for matrix, delta_rows in zip(matrices, increasing, strict=True):
        rows, count = matrix.shape
        body = _compress(matrix, delta_rows) if count else b""
        pieces += [_HEADER.pack(rows, count, len(body)), body]
    return b"".join(pieces)


def unpack(content: bytes | memoryview, index: int, increasing: frozenset[int]) -> Matrix:
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
    if increasing:
        indices = sorted(increasing)
        matrix[indices] = np.cumsum(matrix[indices], axis=1)
    return matrix


def pack_rows(rows: list[Any]) -> bytes:
    """Encode rows as JSON under zstd."""
    return zstandard.compress(orjson.dumps(rows), level=_LEVEL)


def unpack_rows(content: bytes | memoryview) -> list[Any]:
    """Decode what `pack_rows` encoded."""
    rows: list[Any] = orjson.loads(zstandard.decompress(bytes(content)))
    return rows


def _compress(matrix: Matrix, delta_rows: frozenset[int]) -> bytes:
    rows, count = matrix.shape
    columns = np.array(matrix, dtype=np.float64, order="C")
    if delta_rows:
        indices = sorted(delta_rows)
        columns[indices] = np.diff(columns[indices], axis=1, prepend=0.0)
    planes = columns.view(np.uint8).reshape(rows, count, 8).transpose(0, 2, 1)
    return zstandard.compress(planes.tobytes(), level=_LEVEL)
