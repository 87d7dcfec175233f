"""Durations and sizes are read as people write them, and written so that they can be read again."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from athanor.core.units import duration_text, parse_duration, parse_size, size_text


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("2h", 7200), ("90m", 5400), ("1d 12h", 129_600), ("1D12H", 129_600), (" 1.5 h ", 5400), ("3600", 3600), ("0", 0)],
)
def test_a_duration_is_read(text: str, seconds: int) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    ("text", "count"),
    [("40 GiB", 40 * 2**30), ("40gib", 40 * 2**30), ("500 MB", 500_000_000), ("1.5 KiB", 1536), ("7", 7), ("7 B", 7)],
)
def test_a_size_is_read(text: str, count: int) -> None:
    assert parse_size(text) == count


@pytest.mark.parametrize("text", ["", "h", "2 weeks", "2h soon", "-2h", "2x", "1,5h", "²"])
def test_what_is_no_duration_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match="write it like 90m"):
        parse_duration(text)


@pytest.mark.parametrize("text", ["", "GiB", "40 Gibi", "-1", "1 2 GB", "forty"])
def test_what_is_no_size_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match="write it like 40 GiB"):
        parse_size(text)


@given(st.integers(0, 10**9))
def test_a_duration_that_is_written_is_read_again(seconds: int) -> None:
    assert parse_duration(duration_text(seconds)) == seconds


@given(st.integers(0, 2**53) | st.integers(0, 2**20).map(lambda number: number * 2**30))
def test_a_size_that_is_written_is_read_again(count: int) -> None:
    assert parse_size(size_text(count)) == count


def test_round_values_are_short() -> None:
    assert [duration_text(seconds) for seconds in (0, 90, 7200, 129_600)] == ["0s", "1m 30s", "2h", "1d 12h"]
    assert [size_text(count) for count in (0, 1000, 1536, 40 * 2**30)] == ["0 B", "1000 B", "1.5 KiB", "40 GiB"]
