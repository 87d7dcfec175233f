"""First weights: each rank draws its own part, with the numbers of the complete tensor."""

import math
from itertools import pairwise, product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.models.decoder import INITIAL_STD, initial_value
from trainer.models.normal_numbers import TILE_COLUMNS, TILE_ROWS, draw_box, num_drawn

SHAPES = [(5, 7), (33, 40), (TILE_ROWS * 3 + 1, TILE_COLUMNS + 9), (3, 20, 11), (2, 3, 17, 5)]


@st.composite
def parts(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Return a shape with offsets and size of a part of it, which may be empty."""
    shape = draw(st.sampled_from(SHAPES))
    offsets = tuple(draw(st.integers(0, size)) for size in shape)
    box = tuple(draw(st.integers(0, size - start)) for size, start in zip(shape, offsets, strict=True))
    return shape, offsets, box


@given(part=parts())
@settings(max_examples=60, deadline=None)
def test_a_part_has_the_numbers_of_the_whole(
    part: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]],
) -> None:
    shape, offsets, box = part
    whole = draw_box("1/weight", shape, (0,) * len(shape), shape, 0.5)
    for dimension, (start, size) in enumerate(zip(offsets, box, strict=True)):
        whole = whole.narrow(dimension, start, size)
    assert torch.equal(draw_box("1/weight", shape, offsets, box, 0.5), whole)


def test_the_numbers_are_normal_and_independent_of_tile_key_and_seed() -> None:
    shape = (TILE_ROWS * 16, TILE_COLUMNS * 2)
    drawn = initial_value("blocks.0.mlp.up.weight", shape, 12, 1)
    number = drawn.numel()
    assert abs(drawn.mean()) < 5 * INITIAL_STD / math.sqrt(number)
    assert drawn.std().item() == pytest.approx(INITIAL_STD, rel=5 / math.sqrt(2 * number))
    assert (drawn / INITIAL_STD).pow(4).mean().item() == pytest.approx(3.0, abs=0.05)
    tiles = [
        drawn[row : row + TILE_ROWS, column : column + TILE_COLUMNS].flatten()
        for row, column in product(range(0, shape[0], TILE_ROWS), range(0, shape[1], TILE_COLUMNS))
    ]
    others = [
        initial_value("blocks.1.mlp.up.weight", shape, 12, 1),
        initial_value("blocks.0.mlp.up.weight", shape, 12, 2),
    ]
    for one, other in [*pairwise(tiles), *((drawn.flatten(), each.flatten()) for each in others)]:
        correlation = torch.corrcoef(torch.stack([one, other]))[0, 1]
        assert abs(correlation) < 5 / math.sqrt(one.numel())


@pytest.mark.parametrize(
    ("shape", "offsets", "box"),
    [
        ((53_248, 16_384), (0, 0), (53_248 // 4096, 16_384)),  # a rank of 4,096 that shard by rows
        ((53_248, 16_384), (6656, 0), (6656 // 64, 16_384)),  # tensor 8, then sharded over 64
        ((16_384, 53_248), (0, 6656), (16_384 // 64, 6656)),  # a matrix divided by columns
    ],
)
def test_a_rank_of_thousands_draws_little_more_than_its_part(
    shape: tuple[int, ...], offsets: tuple[int, ...], box: tuple[int, ...]
) -> None:
    drawn, own = num_drawn(shape, offsets, box), math.prod(box)
    assert own <= drawn <= 2.5 * own
    assert drawn < math.prod(shape) / 20
