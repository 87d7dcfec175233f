"""Normal random numbers of a large matrix, of which each rank draws only its own part.

The matrix consists of tiles. Each has a generator of its own, seeded by the key and the tile's place, so that a number
depends on neither the mesh nor the order of drawing.
"""

import hashlib
import math
from concurrent.futures import ThreadPoolExecutor
from itertools import product

import torch
from torch import Tensor

TILE_ROWS, TILE_COLUMNS = 16, 4096


def draw_box(key: str, shape: tuple[int, ...], offsets: tuple[int, ...], box: tuple[int, ...], std: float) -> Tensor:
    """Return the part of size `box` at `offsets` of a tensor of `shape` (two or more dimensions), fp32 on the CPU.

    Draws the tiles that the part touches, a rank's share and at most a tile at each edge, in as many threads as torch
    has.
    """
    found = torch.empty(box)
    matrices = [range(start, start + size) for start, size in zip(offsets[:-2], box[:-2], strict=True)]
    rows, columns = (range(start, start + size) for start, size in zip(offsets[-2:], box[-2:], strict=True))
    into = found.view(math.prod(box[:-2]), *box[-2:]).numpy()

    def draw(starts: list[tuple[tuple[int, tuple[int, ...]], int, int]]) -> None:
        memory = torch.empty(TILE_ROWS * TILE_COLUMNS)  # used again: threads that allocate hold each other up
        for (number, place), row, column in starts:
            height, width = min(TILE_ROWS, shape[-2] - row), min(TILE_COLUMNS, shape[-1] - column)
            tile = memory[: height * width].view(height, width)
            tile.normal_(0.0, std, generator=_generator(key, (*place, row, column)))
            top, bottom = max(row, rows.start), min(row + height, rows.stop)
            left, right = max(column, columns.start), min(column + width, columns.stop)
            # Copied by numpy: torch would start as many threads again for each of these threads.
            part = tile.numpy()[top - row : bottom - row, left - column : right - column]
            into[number, top - rows.start : bottom - rows.start, left - columns.start : right - columns.start] = part

    starts = list(product(enumerate(product(*matrices)), _tiles(rows, TILE_ROWS), _tiles(columns, TILE_COLUMNS)))
    count = min(torch.get_num_threads(), len(starts))
    with ThreadPoolExecutor(max(1, count)) as threads:
        list(threads.map(draw, (starts[number::count] for number in range(count))))
    return found


def num_drawn(shape: tuple[int, ...], offsets: tuple[int, ...], box: tuple[int, ...]) -> int:
    """Return how many numbers `draw_box` draws."""
    sizes = []
    for start, size, whole, tile in zip(offsets[-2:], box[-2:], shape[-2:], (TILE_ROWS, TILE_COLUMNS), strict=True):
        sizes.append(sum(min(tile, whole - each) for each in _tiles(range(start, start + size), tile)))
    return math.prod(box[:-2]) * math.prod(sizes)


def _tiles(bounds: range, size: int) -> range:
    """Return the starts of the tiles that overlap `bounds`; none for an empty range."""
    return range(bounds.start // size * size, bounds.stop, size) if len(bounds) else range(0)


def _generator(key: str, place: tuple[int, ...]) -> torch.Generator:
    digest = hashlib.sha256(f"{key}/{place}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)
