"""The difference of two results on the same items, from the results of each item: more is found than from the two
values, since what is hard for one model is often hard for the other."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from operator import gt, lt

from trainer.contract.item_scores import COLUMNS, Columns

Z = 1.959963984540054
"""97.5th percentile of the normal distribution."""


@dataclass(frozen=True)
class PairedInterval:
    """95 % confidence interval of a difference. `p_value`: of McNemar's exact test, for scores of 0 and 1."""

    low: float
    high: float
    p_value: float | None


def is_binary(metric: str) -> bool:
    """Return whether each item has the score 0 or 1."""
    return COLUMNS[metric] == "B"


def mcnemar_p_value(only_first: int, only_second: int) -> float:
    """Return the two-sided p-value of the exact test: items that only one of two models has right are as often those of
    the one as of the other (McNemar 1947, with the binomial distribution)."""
    count = only_first + only_second
    if count == 0:
        return 1.0
    all_terms = math.lgamma(count + 1) - count * math.log(2)
    terms = (
        math.exp(all_terms - math.lgamma(right + 1) - math.lgamma(count - right + 1))
        for right in range(min(only_first, only_second) + 1)
    )
    return min(1.0, 2 * math.fsum(terms))


def phi(first: Sequence[float], second: Sequence[float]) -> float:
    """Return the correlation of scores of 0 and 1, with the continuity correction of Newcombe's method 10."""
    count = len(first)
    only_first, only_second = sum(map(gt, first, second)), sum(map(lt, first, second))
    both = int(sum(first)) - only_first
    neither = count - both - only_first - only_second
    margins = (both + only_first) * (only_second + neither) * (both + only_second) * (only_first + neither)
    if margins == 0:
        return 0.0
    product = both * neither - only_first * only_second
    if product > 0:
        product = max(product - count / 2, 0)
    return float(product / math.sqrt(margins))


def binary_interval(
    columns: tuple[Columns, Columns], values: tuple[float, float], lows: tuple[float, float], highs: tuple[float, float]
) -> PairedInterval:
    """Return the interval of the difference of two shares from their own intervals, which are Wilson's (Newcombe 1998,
    "Improved confidence intervals for the difference between binomial proportions based on paired data", method 10),
    with McNemar's p-value."""
    first, second = columns[0][0], columns[1][0]
    correlation, difference = phi(first, second), values[0] - values[1]
    below, above = values[0] - lows[0], highs[0] - values[0]
    other_below, other_above = values[1] - lows[1], highs[1] - values[1]
    low = difference - math.sqrt(max(0.0, below**2 - 2 * correlation * below * other_above + other_above**2))
    high = difference + math.sqrt(max(0.0, above**2 - 2 * correlation * above * other_below + other_below**2))
    return PairedInterval(low, high, mcnemar_p_value(sum(map(gt, first, second)), sum(map(lt, first, second))))


def ratio_interval(columns: tuple[Columns, Columns], values: tuple[float, float]) -> PairedInterval | None:
    """Return the interval of the difference of two ratios or means R = sum(t) / sum(s), such as losses; None for a
    single item.

    It is the difference +- 1.96 sqrt(N / (N - 1) sum((u - u')^2)), where u = (t - R s) / sum(s) is what an item adds to
    the error of R (Cochran 1977, section 2.11), and u' that of the same item for the other model.
    """
    first, second = (_influences(of_model, value) for of_model, value in zip(columns, values, strict=True))
    count = len(first)
    if count < 2:
        return None
    squares = math.fsum((one - other) ** 2 for one, other in zip(first, second, strict=True))
    error, difference = math.sqrt(count / (count - 1) * squares), values[0] - values[1]
    return PairedInterval(difference - Z * error, difference + Z * error, None)


def _influences(columns: Columns, value: float) -> list[float]:
    if len(columns) == 1:
        return [(score - value) / len(columns[0]) for score in columns[0]]
    size = math.fsum(columns[1])
    return [(total - value * own) / size for total, own in zip(*columns, strict=True)]
