"""Two models on the same items: the paired tests find what the values alone do not, and published examples agree."""

import math
import random
from array import array

import numpy as np
import pytest

from athanor.artifacts.paired_results import binary_interval, mcnemar_p_value, phi, ratio_interval
from trainer.contract import item_scores
from trainer.training.confidence import proportion, ratio


def binary(both: int, only_first: int, only_second: int, neither: int) -> tuple[list[int], list[int]]:
    first = [1] * (both + only_first) + [0] * (only_second + neither)
    return first, [1] * both + [0] * only_first + [1] * only_second + [0] * neither


@pytest.mark.parametrize(
    ("only_first", "only_second", "expected"),
    [(0, 0, 1.0), (5, 5, 1.0), (0, 6, 2 / 64), (1, 9, 22 / 1024), (9, 1, 22 / 1024), (0, 2000, 0.0)],
)
def test_mcnemars_p_value_is_that_of_the_binomial_distribution(
    only_first: int, only_second: int, expected: float
) -> None:
    assert mcnemar_p_value(only_first, only_second) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(
    ("cells", "expected"),
    [  # Newcombe 1998 (Statistics in Medicine 17, 2635), table II, method 10
        ((36, 12, 2, 0), (0.0569, 0.3404)),
        ((0, 29, 1, 0), (0.6666, 0.9882)),
        ((30, 0, 0, 0), (-0.1135, 0.1135)),
    ],
)
def test_the_interval_of_paired_shares_is_the_published_one(
    cells: tuple[int, int, int, int], expected: tuple[float, float]
) -> None:
    first, second = binary(*cells)
    of = [proportion(sum(each), len(each)) for each in (first, second)]
    columns = ([array("B", first)], [array("B", second)])
    bounds = [(each.low or 0.0, each.high or 0.0) for each in of]
    found = binary_interval(
        columns, (of[0].value, of[1].value), (bounds[0][0], bounds[1][0]), (bounds[0][1], bounds[1][1])
    )
    assert (found.low, found.high) == pytest.approx(expected, abs=2e-4)
    assert found.p_value == pytest.approx(mcnemar_p_value(cells[1], cells[2]))


def test_scores_without_both_values_have_no_correlation() -> None:
    assert phi(*binary(10, 0, 0, 0)) == 0.0
    assert phi(*binary(10, 0, 0, 10)) == pytest.approx((100 - 10) / 100)
    assert phi(*binary(0, 10, 10, 0)) == -1.0


def test_a_small_difference_of_losses_is_found_on_the_same_documents() -> None:
    chosen = random.Random(4)
    tokens = [chosen.randrange(50, 500) for _ in range(200)]
    losses = [chosen.gauss(3.0, 1.0) * size for size in tokens]
    lower = [loss - 0.02 * size + chosen.gauss(0, 0.5) for loss, size in zip(losses, tokens, strict=True)]
    of = [ratio(np.array(each), np.array(tokens, dtype=float)) for each in (lower, losses)]
    columns = tuple([array("f", each), array("f", tokens)] for each in (lower, losses))
    found = ratio_interval((columns[0], columns[1]), (of[0].value, of[1].value))
    assert found is not None
    assert found.p_value is None
    assert found.low < -0.02 < found.high < 0
    independent = math.hypot(of[0].standard_error or 0.0, of[1].standard_error or 0.0)
    assert found.high - found.low < 0.1 * 2 * 1.96 * independent
    assert ratio_interval(([array("f", [1.0])], [array("f", [0.5])]), (1.0, 0.5)) is None


def test_results_of_items_are_packed_and_checked() -> None:
    packed = item_scores.decode(item_scores.pack("loss", [6.0, 2.0], [3, 1]))
    columns = item_scores.unpack("loss", 2, packed)
    assert [each.tolist() for each in columns] == [[6.0, 2.0], [3.0, 1.0]]
    assert item_scores.problem("loss", 2.0, columns) == ""
    assert "their value is 2" in item_scores.problem("loss", 2.1, columns)
    right = item_scores.unpack("accuracy", 4, item_scores.decode(item_scores.pack("accuracy", [1, 0, 0, 1])))
    assert item_scores.problem("accuracy", 0.5, right) == ""
    assert item_scores.problem("accuracy", 0.5, [array("B", [2, 0, 0, 0])]) == "they are not 0 and 1"
    assert item_scores.problem("f1", 0.5, [array("f", [math.nan])]) == "they are not finite"
    for count, content in ((3, packed), (2, packed[:-2]), (2, b"no"), (2, packed + b"more")):
        with pytest.raises(ValueError, match="they "):
            item_scores.unpack("loss", count, content)
    assert item_scores.pack("accuracy", [1] * (item_scores.MAX_ITEMS + 1)) == ""
    assert item_scores.affordable([item_scores.MAX_TOTAL_BYTES, 1, 0]) == [True, False, True]
