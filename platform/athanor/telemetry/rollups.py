"""Rollups: a series at several resolutions, and its downsampling to a given width. Pure.

Level 0 contains the points (step, time, value). A bucket of level k summarises 16**k points: its range, count and sum,
the values at both ends, and the lowest and the highest with their positions. A chart reads the coarsest level that has
at least one bucket per pixel, so it reads about as much for a thousand points as for a thousand million.
"""

from itertools import pairwise

import numpy as np

from athanor.telemetry.codec import Matrix

FACTOR = 16
LEVELS = 4  # 1x, 16x, 256x, 4096x
STEP, TIME, VALUE = range(3)
POINT_ROWS = 3
BLOCK_COLUMNS = (1024, 256, 256, 256)  # of a full block of each level
(FIRST_STEP, FIRST_TIME, LAST_STEP, LAST_TIME, COUNT, SUM, FIRST, LAST,
 LOW, LOW_STEP, LOW_TIME, HIGH, HIGH_STEP, HIGH_TIME) = range(14)  # fmt: skip
BUCKET_ROWS = 14
INCREASING_ROWS = [frozenset({STEP, TIME})] + [
    frozenset({FIRST_STEP, FIRST_TIME, LAST_STEP, LAST_TIME, LOW_STEP, LOW_TIME, HIGH_STEP, HIGH_TIME})
] * (LEVELS - 1)
NO_POINTS: Matrix = np.empty((POINT_ROWS, 0))


def size_of(level: int) -> int:
    """Return how many points a full bucket of `level` summarises."""
    return int(FACTOR**level)


def empty(level: int) -> Matrix:
    """Return a matrix of `level` without columns."""
    return np.empty((BUCKET_ROWS if level else POINT_ROWS, 0))


def extend(matrix: Matrix, level: int, points: Matrix) -> Matrix:
    """Return `matrix` of `level` with `points` appended; its last bucket is filled before others begin."""
    if not level or not points.shape[1]:
        return np.concatenate([matrix, points], axis=1) if not level else matrix
    size = size_of(level)
    filled = int(matrix[COUNT, -1]) % size if matrix.shape[1] else 0
    starts = np.arange(size - filled if filled else size, points.shape[1], size)
    fresh = _summarise(points, np.concatenate([[0], starts]))
    if not filled:
        return np.concatenate([matrix, fresh], axis=1)
    both = np.concatenate([matrix[:, -1:], fresh[:, :1]], axis=1)
    return np.concatenate([matrix[:, :-1], merge(both, np.array([0])), fresh[:, 1:]], axis=1)


def merge(buckets: Matrix, starts: np.ndarray) -> Matrix:
    """Return coarser buckets, each from one of `starts` up to the next."""
    ends = np.append(starts[1:], buckets.shape[1]) - 1
    lows, highs = _lowest(buckets[LOW], starts), _lowest(-buckets[HIGH], starts)
    return np.stack(
        [
            np.minimum.reduceat(buckets[FIRST_STEP], starts),
            buckets[FIRST_TIME][starts],
            np.maximum.reduceat(buckets[LAST_STEP], starts),
            buckets[LAST_TIME][ends],
            np.add.reduceat(buckets[COUNT], starts),
            np.add.reduceat(buckets[SUM], starts),
            buckets[FIRST][starts],
            buckets[LAST][ends],
            *buckets[[LOW, LOW_STEP, LOW_TIME]][:, lows],
            *buckets[[HIGH, HIGH_STEP, HIGH_TIME]][:, highs],
        ]
    )


def as_buckets(points: Matrix) -> Matrix:
    """Return one bucket per point."""
    step, time, value = points
    one = np.ones_like(step)
    return np.stack([step, time, step, time, one, value, value, value, value, step, time, value, step, time])


def as_points(buckets: Matrix) -> Matrix:
    """Return the exact points of `buckets`: the lowest and highest of each, in order, and the two ends."""
    if not buckets.shape[1]:
        return NO_POINTS
    low, high = buckets[[LOW_STEP, LOW_TIME, LOW]], buckets[[HIGH_STEP, HIGH_TIME, HIGH]]
    low_first = low[STEP] <= high[STEP]
    pairs = np.stack([np.where(low_first, low, high), np.where(low_first, high, low)], axis=2)
    first, last = buckets[[FIRST_STEP, FIRST_TIME, FIRST], :1], buckets[[LAST_STEP, LAST_TIME, LAST], -1:]
    points = np.concatenate([first, pairs.reshape(POINT_ROWS, -1), last], axis=1)
    twice = np.all(points[:, 1:] == points[:, :-1], axis=0)
    return points[:, np.concatenate([[True], ~twice])]


def downsample(points: Matrix, limit: int) -> Matrix:
    """Return at most `limit` (>= 4) of `points`, in order.

    The first and the last remain; between them each of equal stretches contributes its two extremes, so that no spike
    is lost. Raise ValueError if `limit` is less than 4.
    """
    if limit < 4:
        raise ValueError(f"limit {limit} is less than 4")
    count = points.shape[1]
    if count <= limit:
        return points
    stretches = (limit - 2) // 2
    starts = np.arange(stretches) * (count - 2) // stretches
    inner = points[VALUE, 1:-1]
    lows, highs = 1 + _lowest(inner, starts), 1 + _lowest(-inner, starts)
    pairs = np.stack([np.minimum(lows, highs), np.maximum(lows, highs)], axis=1).ravel()
    chosen = np.concatenate([[0], pairs, [count - 1]])
    return points[:, chosen[np.concatenate([[True], chosen[1:] != chosen[:-1]])]]


def average(buckets: Matrix, limit: int) -> Matrix:
    """Return at most `limit` buckets, each merged from an equal number of the given ones."""
    if buckets.shape[1] <= limit:
        return buckets
    return merge(buckets, np.arange(limit) * buckets.shape[1] // limit)


def level_for(points: float, wanted: int) -> int:
    """Return the coarsest level at which this many points still make `wanted` buckets."""
    level = LEVELS - 1
    while level and points / size_of(level) < wanted:
        level -= 1
    return level


def blocks(count: int, size: int) -> list[tuple[int, int]]:
    """Return the full blocks of `size` in `count` columns, as (start, stop)."""
    return list(pairwise(range(0, count + 1, size)))


def _summarise(points: Matrix, starts: np.ndarray) -> Matrix:
    return merge(as_buckets(points), starts)


def _lowest(values: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """Return, for each stretch from one of `starts` up to the next, the index of its first lowest value."""
    lengths = np.diff(np.append(starts, len(values)))
    lowest = np.repeat(np.minimum.reduceat(values, starts), lengths)
    found = np.flatnonzero(values == lowest)
    stretch = np.searchsorted(starts, found, side="right")
    first: np.ndarray = found[np.concatenate([[True], stretch[1:] != stretch[:-1]])]
    return first
