"""Forecast of a budget's usage at the end of its period, and of when it is exhausted. Pure.

P50 is what is spent plus, for the remaining time, the mean of the previous days; P90 adds 1.28 standard deviations of
as many independent days. With fewer than `MIN_DAYS` complete days of history, the current rate is extrapolated.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

DAY = 86_400
MIN_DAYS = 3
Z90 = 1.2816


@dataclass(frozen=True)
class Forecast:
    """Forecast for the period's end, in the budget's unit.

    `at_present_rate`: if running jobs continue and nothing else starts. `p90`: None without enough history.
    `exhausted_in_seconds`: when P50 reaches the amount; None if not in this period.
    """

    p50: int
    p90: int | None
    at_present_rate: int
    exhausted_in_seconds: int | None


def forecast(*, amount: int, spent: int, seconds_left: int, rate_per_day: float, days: Sequence[int]) -> Forecast:
    """Return the forecast.

    `rate_per_day`: usage per day of what runs now. `days`: usage of the previous complete days, the newest last.
    """
    left = max(0.0, seconds_left / DAY)
    knows_days = len(days) >= MIN_DAYS
    daily = statistics.fmean(days) if knows_days else rate_per_day
    p50 = spent + daily * left
    p90 = p50 + Z90 * statistics.stdev(days) * math.sqrt(left) if knows_days else None
    exhausted = None
    if spent >= amount:
        exhausted = 0
    elif daily > 0 and p50 > amount:
        exhausted = int((amount - spent) / daily * DAY)
    return Forecast(
        p50=round(p50),
        p90=None if p90 is None else round(p90),
        at_present_rate=round(spent + rate_per_day * left),
        exhausted_in_seconds=exhausted,
    )
