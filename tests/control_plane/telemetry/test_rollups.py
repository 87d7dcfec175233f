"""Rollups and downsampling preserve ends, order and extremes; packed values unpack bit for bit."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from athanor.telemetry import codec, rollups

values = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=700)


def points_of(raw: list[float], first: int = 0) -> codec.Matrix:
    steps = np.arange(first, first + len(raw), dtype=np.float64)
    return np.stack([steps, steps * 1_000_000 + 1.7e15, np.array(raw)])


@given(values, st.integers(4, 60))
def test_ends_order_and_extremes_stay(raw: list[float], limit: int) -> None:
    points = points_of(raw)
    kept = rollups.downsample(points, limit)
    steps, found = kept[rollups.STEP].astype(int).tolist(), kept[rollups.VALUE].tolist()
    assert len(steps) <= limit
    assert steps == sorted(set(steps)), "in order, none twice"
    assert found == [raw[step] for step in steps], "real points"
    assert (steps[0], steps[-1]) == (0, len(raw) - 1)
    assert max(found) == max(raw)
    assert min(found) == min(raw)


@given(values, st.lists(st.integers(1, 200), min_size=1, max_size=9), st.integers(1, 2))
def test_a_level_is_the_same_however_the_points_came(raw: list[float], cuts: list[int], level: int) -> None:
    points = points_of(raw)
    at_once = rollups.extend(rollups.empty(level), level, points)
    bit_by_bit, start = rollups.empty(level), 0
    for cut in [*cuts, len(raw)]:
        bit_by_bit = rollups.extend(bit_by_bit, level, points[:, start : start + cut])
        start += cut
    for index, (once, bits) in enumerate(zip(at_once, bit_by_bit, strict=True)):
        assert np.allclose(once, bits, atol=1e-6) if index == rollups.SUM else np.array_equal(once, bits)
    size = rollups.size_of(level)
    for number in range(at_once.shape[1]):
        part = raw[number * size : (number + 1) * size]
        assert at_once[rollups.COUNT, number] == len(part)
        assert at_once[[rollups.LOW, rollups.HIGH, rollups.LAST], number].tolist() == [min(part), max(part), part[-1]]
        assert at_once[rollups.SUM, number] == pytest.approx(sum(part), abs=1e-3)
        assert raw[int(at_once[rollups.LOW_STEP, number])] == min(part)
        assert raw[int(at_once[rollups.HIGH_STEP, number])] == max(part)


@given(values)
def test_the_points_that_a_level_knows_are_real_and_in_order(raw: list[float]) -> None:
    level = rollups.extend(rollups.empty(1), 1, points_of(raw))
    points = rollups.as_points(level)
    steps = points[rollups.STEP].astype(int).tolist()
    assert steps == sorted(set(steps))
    assert [raw[step] for step in steps] == points[rollups.VALUE].tolist()
    assert {raw.index(min(raw)), raw.index(max(raw)), len(raw) - 1} <= set(steps)


def test_few_points_are_all_kept() -> None:
    points = points_of([1.0, 5.0, 1.0])
    assert np.array_equal(rollups.downsample(points, 4), points)


def test_a_limit_that_cannot_hold_ends_and_extremes_is_refused() -> None:
    with pytest.raises(ValueError, match="less than 4"):
        rollups.downsample(points_of([1.0]), 3)


@given(st.lists(values, min_size=1, max_size=3))
def test_packed_matrices_come_back_bit_by_bit(several: list[list[float]]) -> None:
    matrices = [points_of(raw, first=7) for raw in several] + [rollups.NO_POINTS]
    increasing = [rollups.INCREASING_ROWS[0]] * len(matrices)
    content = codec.pack(matrices, increasing)
    for index, matrix in enumerate(matrices):
        assert codec.unpack(content, index, increasing[index]).tobytes() == np.ascontiguousarray(matrix).tobytes()


def test_a_smooth_series_takes_a_fraction_of_its_size() -> None:
    steps = np.arange(1024.0)
    losses = (10 / (1 + steps / 100)).astype(np.float32).astype(np.float64)
    matrix = np.stack([steps, steps * 250_000 + 1.7e15, losses])
    assert len(codec.pack([matrix], [rollups.INCREASING_ROWS[0]])) < matrix.nbytes / 5


def test_each_level_is_sixteen_times_coarser_and_a_chart_reads_the_coarsest_that_fills_it() -> None:
    assert [rollups.size_of(level) for level in range(rollups.LEVELS)] == [1, 16, 256, 4096]
    assert [rollups.level_for(count, 1000) for count in (10, 16_000, 256_000, 10**9)] == [0, 1, 2, 3]


def test_averages_of_equal_stretches() -> None:
    buckets = rollups.average(rollups.as_buckets(points_of([1.0, 3.0, 10.0, 30.0])), 2)
    assert (buckets[rollups.SUM] / buckets[rollups.COUNT]).tolist() == [2.0, 20.0]
    assert buckets[rollups.HIGH].tolist() == [3.0, 30.0]
