"""Which tokens the ranks of ring attention exchange for windows."""

import pytest

from trainer.contract.ring import Segment, chunks_of, window_segments, window_sends


@pytest.mark.parametrize("size", [2, 3, 4, 8])
@pytest.mark.parametrize("window", [1, 2, 4, 5, 6, 9, 17, 33, 95])
def test_a_rank_has_exactly_what_its_windows_reach(size: int, window: int) -> None:
    length = 4 * 2 * size
    for rank in range(size):
        own = {4 * chunk + place for chunk in chunks_of(rank, size) for place in range(4)}
        reached = {key for query in own for key in range(max(0, query - window + 1), query + 1)}
        found = window_segments(rank, size, length, window)
        tokens = [token for each in found for token in range(each.begin, each.end)]
        assert tokens == sorted(reached)
        assert all(each.begin // 4 in chunks_of(each.owner, size) for each in found)


def test_what_is_sent_does_not_grow_with_the_sequence() -> None:
    assert [window_sends(8, length, 512) for length in (2**14, 2**17, 2**20)] == [2 * 511] * 3
    assert window_sends(4, 64, 1) == 0
    assert window_segments(1, 2, 64, 9) == [Segment(0, 8, 16), Segment(1, 16, 32), Segment(1, 32, 48)]
