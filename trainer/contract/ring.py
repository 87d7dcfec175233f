"""Ring attention's parts of a sequence: which tokens a context rank has, and which its windows reach.

The sequence is cut into 2 C chunks of equal length, and rank r of C has the chunks r and 2 C - 1 - r: with a causal
mask, all ranks have equal work.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Segment:
    """The tokens `begin` to `end` of the sequence, which are in one chunk of the rank `owner`."""

    owner: int
    begin: int
    end: int


def chunks_of(rank: int, size: int) -> tuple[int, int]:
    """Return the numbers of the chunks of a rank of `size`, ascending."""
    return rank, 2 * size - 1 - rank


def window_segments(rank: int, size: int, length: int, window: int) -> list[Segment]:
    """Return the tokens that the tokens of `rank` attend to, ascending: its chunks, and what is before them in the
    window of their first tokens."""
    chunk, mine = length // (2 * size), chunks_of(rank, size)
    found = []
    for number in range(mine[1] + 1):
        begin = number * chunk
        if number not in mine:
            begin = max(begin, min(each for each in mine if each > number) * chunk - window + 1)
        if begin < (number + 1) * chunk:
            found.append(Segment(min(number, 2 * size - 1 - number), begin, (number + 1) * chunk))
    return found


def window_sends(size: int, length: int, window: int) -> int:
    """Return for how many tokens a rank sends keys and values so that all ranks have their windows: of the rank that
    sends most."""
    sent = [0] * size
    for rank in range(size):
        for segment in window_segments(rank, size, length, window):
            if segment.owner != rank:
                sent[segment.owner] += segment.end - segment.begin
    return max(sent)
