"""The results of the single items of a figure, as compressed columns: what a paired comparison of two models needs."""

import base64
import binascii
import math
import sys
import zlib
from array import array
from collections.abc import Iterable, Sequence
from typing import Any

MAX_ITEMS = 20_000
"""Of a figure: the results of more items are not stored."""
MAX_BYTES = 8 * MAX_ITEMS + 1024
"""Of the compressed columns of a figure."""
MAX_TOTAL_BYTES = 4 * 2**20
"""Of those of all figures of a job."""
_RELATIVE, _ABSOLUTE = 1e-4, 1e-5  # of 32-bit numbers
COLUMNS = {
    "loss": "ff", "bits_per_byte": "ff", "accuracy": "B", "accuracy_normalised": "B", "exact_match": "B",
    "f1": "f", "regex": "B", "json_schema": "B",
}  # fmt: skip
"""Metric -> type codes of `array`. A ratio has the sum and the size of each item, others the score of each item."""

Columns = list["array[Any]"]


def pack(metric: str, *columns: Iterable[float]) -> str:
    """Return the results of items in the order of the data set, compressed, in base64; empty if there are too many."""
    made = [_array(code, values) for code, values in zip(COLUMNS[metric], columns, strict=True)]
    if len(made[0]) > MAX_ITEMS:
        return ""
    return base64.b64encode(zlib.compress(b"".join(_little_endian(column).tobytes() for column in made))).decode()


def decode(text: str) -> bytes:
    """Return the compressed columns of a message. Raises ValueError."""
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ValueError(f"they are not base64: {error}") from error


def unpack(metric: str, count: int, compressed: bytes) -> Columns:
    """Return the columns of `count` items. Raises ValueError if these are not their results."""
    codes = COLUMNS[metric]
    sizes = [array(code).itemsize * count for code in codes]
    try:
        unzip = zlib.decompressobj()
        content = unzip.decompress(compressed, sum(sizes) + 1)
    except zlib.error as error:
        raise ValueError(f"they cannot be decompressed: {error}") from error
    if len(content) != sum(sizes) or not unzip.eof or unzip.unused_data:
        raise ValueError(f"they are not the results of {count} items")
    found, start = [], 0
    for code, size in zip(codes, sizes, strict=True):
        column: array[Any] = array(code)
        column.frombytes(content[start : start + size])
        found.append(_little_endian(column))
        start += size
    return found


def problem(metric: str, value: float, columns: Columns) -> str:
    """Return why these columns are not those of a figure with this value; empty if they are."""
    if not all(map(math.isfinite, (math.fsum(column) for column in columns))):
        return "they are not finite"
    if COLUMNS[metric] == "B" and max(columns[0]) > 1:
        return "they are not 0 and 1"
    size = math.fsum(columns[1]) if len(columns) > 1 else len(columns[0])
    found = math.fsum(columns[0]) / size if size > 0 else math.inf
    if not math.isclose(found, value, rel_tol=_RELATIVE, abs_tol=_ABSOLUTE):
        return f"their value is {found:g}, and that of the figure {value:g}"
    return ""


def _array(code: str, values: Iterable[float]) -> "array[Any]":
    made: array[Any] = array(code, map(int, values) if code == "B" else values)
    return made


def _little_endian(column: "array[Any]") -> "array[Any]":
    if sys.byteorder == "big":
        column.byteswap()
    return column


def affordable(sizes: Sequence[int]) -> list[bool]:
    """Return which of the packed results, by their sizes, are within MAX_TOTAL_BYTES, the first ones first."""
    total, found = 0, []
    for size in sizes:
        fits = total + size <= MAX_TOTAL_BYTES
        total += size if fits else 0
        found.append(fits)
    return found
