"""Fewer points with the same shape: each bucket keeps its lowest and its highest value. Pure."""

from collections.abc import Sequence
from typing import TypeVar

Point = TypeVar("Point", bound=Sequence[float])


def downsample(points: Sequence[Point], limit: int, *, value: int) -> list[Point]:
    """At most `limit` (>= 4) of `points`, in order; `value` is the index of the value within a point.

    The first and the last point stay. Between them, equal buckets keep their extremes, so that no spike is lost.
    """
    if limit < 4:
        raise ValueError(f"limit {limit} is less than 4")
    if len(points) <= limit:
        return list(points)
    inner = range(1, len(points) - 1)
    buckets = (limit - 2) // 2
    kept = [0]
    for bucket in range(buckets):
        start = 1 + bucket * len(inner) // buckets
        stop = 1 + (bucket + 1) * len(inner) // buckets
        indexes = range(start, stop)
        low = min(indexes, key=lambda index: points[index][value])
        high = max(indexes, key=lambda index: points[index][value])
        kept.extend(sorted({low, high}))
    kept.append(len(points) - 1)
    return [points[index] for index in kept]
