"""Estimates with standard errors and 95 % confidence intervals, for the figures of evaluation jobs."""

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

Z = 1.959963984540054
"""97.5th percentile of the normal distribution."""


@dataclass(frozen=True)
class Estimate:
    """A figure. `standard_error`, `low` and `high`: None if there is too little data to estimate them."""

    value: float
    standard_error: float | None
    low: float | None
    high: float | None


def ratio(totals_N: NDArray[np.float64], sizes_N: NDArray[np.float64]) -> Estimate:
    """Return the ratio R = sum(t) / sum(s) over N documents, such as the loss of a token.

    Documents, not tokens, are taken as independent. The standard error is sqrt(N / (N - 1) sum((t - R s)^2)) / sum(s)
    (Cochran 1977, "Sampling techniques", section 2.11, without the finite population correction), and the interval R
    +- 1.96 of it. A single document has neither.
    """
    size, count = float(sizes_N.sum()), len(totals_N)
    value = float(totals_N.sum()) / size
    if count < 2:
        return Estimate(value, None, None, None)
    error = math.sqrt(count / (count - 1) * float(((totals_N - value * sizes_N) ** 2).sum())) / size
    return Estimate(value, error, value - Z * error, value + Z * error)


def mean_score(scores_N: NDArray[np.float64]) -> Estimate:
    """Return the mean of N scores from 0 to 1, with the standard error s / sqrt(N) and the interval of `ratio`, cut
    at 0 and 1. Scores that are all equal have neither: how much others vary cannot be estimated from them."""
    found = ratio(scores_N, np.ones_like(scores_N))
    if found.low is None or found.high is None or np.all(scores_N == scores_N[0]):
        return Estimate(found.value, None, None, None)
    return replace(found, low=max(0.0, found.low), high=min(1.0, found.high))


def proportion(successes: int, count: int) -> Estimate:
    """Return the proportion p of successes, its standard error sqrt(p (1 - p) / n), and Wilson's score interval
    (p + z^2 / 2n +- z sqrt(p (1 - p) / n + z^2 / 4n^2)) / (1 + z^2 / n) (Wilson 1927)."""
    p, squared = successes / count, Z**2
    error = math.sqrt(p * (1 - p) / count)
    centre, width = p + squared / (2 * count), Z * math.sqrt(p * (1 - p) / count + squared / (4 * count**2))
    bounds = [(centre + sign * width) / (1 + squared / count) for sign in (-1, 1)]
    return Estimate(p, error, max(0.0, min(bounds[0], p)), min(1.0, max(bounds[1], p)))
