"""Downsampling keeps the shape: ends, order and extremes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from athanor.telemetry.downsample import downsample

values = st.lists(st.floats(-1e6, 1e6), max_size=400)


@given(values, st.integers(4, 60))
def test_ends_order_and_extremes_stay(raw: list[float], limit: int) -> None:
    points = [(float(step), value) for step, value in enumerate(raw)]
    kept = downsample(points, limit, value=1)
    assert len(kept) <= limit
    assert kept == sorted(set(kept)), "in order, none twice"
    assert set(kept) <= set(points)
    if points:
        assert (kept[0], kept[-1]) == (points[0], points[-1])
        assert max(value for _, value in kept) == max(raw)
        assert min(value for _, value in kept) == min(raw)


def test_few_points_are_all_kept() -> None:
    points = [(0.0, 1.0), (1.0, 5.0), (2.0, 1.0)]
    assert downsample(points, 4, value=1) == points


def test_a_limit_that_cannot_hold_ends_and_extremes_is_refused() -> None:
    with pytest.raises(ValueError, match="less than 4"):
        downsample([], 3, value=1)
