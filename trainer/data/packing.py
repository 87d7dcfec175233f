"""How the tokens of one shard become rows of `length` (input, target) pairs.

A row is a list of pieces, a piece a run of targets in the shard: the input of each target is the token before it, and
the first token of a document has the end of text (or the end of the piece before) for its input. Rows never cross
shards, so a shard is all that is needed to compute its rows.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trainer.contract.data import LongDocuments
from trainer.data.masks import is_rejected, num_chosen, unmasked

IGNORED = -100
"""Target of positions without a loss, such as padding and prompts."""


@dataclass(frozen=True)
class Rows:
    """[b, S] each, int64 tokens, targets and positions, int32 documents; the last two None without packing."""

    tokens_BS: NDArray[np.int64]
    targets_BS: NDArray[np.int64]
    documents_BS: NDArray[np.int32] | None
    positions_BS: NDArray[np.int64] | None


class StreamRows:
    """Packing `none`: the shard is one stream, cut every `length` tokens; attention crosses documents."""

    def __init__(self, length: int) -> None:
        self._length = length

    def count(self, num_tokens: int) -> int:
        """Return the number of rows of a shard. Tokens at its end that do not fill a row are not used."""
        return max(0, num_tokens - 1) // self._length

    def read(self, tokens: NDArray[np.integer], row: int) -> Rows:
        """Return a row of the stream, [1, S]: inputs, and targets one token ahead."""
        start = row * self._length
        stretch = tokens[start : start + self._length + 1].astype(np.int64)
        return Rows(stretch[None, :-1], stretch[None, 1:], None, None)


class DocumentRows:
    """Whole documents packed into rows: the longest first, each where the least room is left (best-fit decreasing).

    A document longer than a row is first cut into pieces, or only its first piece is kept, or none of it. The rest of a
    row is padding that no loss is counted for.
    """

    def __init__(self, lengths: NDArray[np.int64], length: int, long_documents: LongDocuments = "cut") -> None:
        """`lengths`: tokens of the shard's documents, in order."""
        self._length = length
        self._starts, self._sizes, self._is_start = _pieces(lengths, length, long_documents)
        rows = best_fit(self._sizes, length)
        self._order = np.argsort(rows, kind="stable")  # the pieces of a row keep the order of the shard
        self._bounds = np.searchsorted(rows[self._order], np.arange(rows.max(initial=-1) + 2))

    @property
    def count(self) -> int:
        """Return the number of rows."""
        return len(self._bounds) - 1

    def read(
        self, tokens: NDArray[np.integer], row: int, end_of_text: int, *, is_masked: bool = False,
        has_pairs: bool = False, has_labels: bool = False,
    ) -> Rows:  # fmt: skip
        """Return a row, [1, S]. `is_masked`: tokens have the loss mask of `masks`, and documents are conversations, or
        with `has_pairs` two of them, the chosen answer and the rejected one.

        The inputs of a conversation are its own tokens from the first on; the last one has no target. The documents of
        pair n of the row have the numbers 2n and 2n + 1. With `has_labels`, document n has the number 2n if it is
        desirable, 2n + 1 if not.
        """
        inputs = np.full(self._length, end_of_text, dtype=np.int64)
        targets = np.full(self._length, IGNORED, dtype=np.int64)
        documents = np.empty(self._length, dtype=np.int32)
        positions = np.empty(self._length, dtype=np.int64)
        filled = 0
        pieces = self._order[self._bounds[row] : self._bounds[row + 1]]
        for number, piece in enumerate(pieces):
            start, size = self._starts[piece], self._sizes[piece]
            here = slice(filled, filled + size)
            if is_masked:
                inputs[here], following = unmasked(tokens[start : start + size], IGNORED)
                targets[filled : filled + size - 1] = following[1:]
            else:
                targets[here] = tokens[start : start + size]
                inputs[filled + 1 : filled + size] = targets[filled : filled + size - 1]
                if not self._is_start[piece]:
                    inputs[filled] = tokens[start - 1]
            documents[here] = number
            positions[here] = np.arange(size)
            if has_pairs:
                second = filled + num_chosen(tokens[start : start + size])
                targets[second - 1] = IGNORED
                documents[here] = 2 * number
                documents[second : filled + size] += 1
                positions[second : filled + size] -= second - filled
            elif has_labels:
                documents[here] = 2 * number + is_rejected(tokens[start : start + size])
            filled += size
        documents[filled:] = 2 * len(pieces) if has_pairs or has_labels else len(pieces)
        positions[filled:] = np.arange(self._length - filled)
        return Rows(inputs[None], targets[None], documents[None], positions[None])


def _pieces(
    lengths: NDArray[np.int64], longest: int, long_documents: LongDocuments
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]:
    """Return (start in the shard, number of tokens, whether it begins a document) of each piece, in order."""
    counts = -(-lengths // longest)
    document = np.repeat(np.arange(len(lengths)), counts)
    number = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    starts = (np.cumsum(lengths) - lengths)[document] + number * longest
    sizes = np.minimum(lengths[document] - number * longest, longest)
    kept = {"cut": number >= 0, "truncate": number == 0, "drop": lengths[document] <= longest}[long_documents]
    return starts[kept], sizes[kept], number[kept] == 0


def best_fit(sizes: NDArray[np.int64], capacity: int) -> NDArray[np.int64]:
    """Return the bin of each piece: pieces from large to small, each into the fullest bin with enough room.

    Of bins with equal room, the newest is used first.
    """
    bins = np.empty(len(sizes), dtype=np.int64)
    by_room: dict[int, list[int]] = {}
    rooms, num_bins = _Rooms(capacity), 0
    for piece in np.argsort(-sizes, kind="stable").tolist():
        size = int(sizes[piece])
        room = rooms.least(size)
        if room is None:
            room, chosen = capacity, num_bins
            num_bins += 1
        else:
            chosen = by_room[room].pop()
            if not by_room[room]:
                rooms.remove(room)
        bins[piece] = chosen
        if room > size:
            by_room.setdefault(room - size, []).append(chosen)
            rooms.add(room - size)
    return bins


class _Rooms:
    """A set of integers up to `capacity` that finds its smallest member from a number on, by two levels of bit sets."""

    _BITS = 512

    def __init__(self, capacity: int) -> None:
        self._words = [0] * (capacity // self._BITS + 1)
        self._filled = 0

    def add(self, number: int) -> None:
        word, bit = divmod(number, self._BITS)
        self._words[word] |= 1 << bit
        self._filled |= 1 << word

    def remove(self, number: int) -> None:
        word, bit = divmod(number, self._BITS)
        self._words[word] &= ~(1 << bit)
        if not self._words[word]:
            self._filled &= ~(1 << word)

    def least(self, number: int) -> int | None:
        word, bit = divmod(number, self._BITS)
        rest = self._words[word] >> bit
        if rest:
            return number + _lowest(rest)
        later = self._filled >> (word + 1)
        if not later:
            return None
        word += 1 + _lowest(later)
        return word * self._BITS + _lowest(self._words[word])


def _lowest(bits: int) -> int:
    """Return the number of the lowest set bit."""
    return (bits & -bits).bit_length() - 1
