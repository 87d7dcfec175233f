"""Prices and carbon over time as step functions of whole seconds since 1970, and exact integrals of them. Pure.

A price is in millionths of the currency per slot-hour, carbon intensity in milligrams of CO2 per kWh. `slots` at
`price` for `seconds` cost price x seconds x slots / 3600 millionths; the remainder of the division is carried over to
the next count, so that a run costs the same however often it is metered.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from itertools import pairwise
from zoneinfo import ZoneInfo

from athanor.budgets.periods import HOUR, moment_of

DAY = 86_400
QUARTER_HOUR = 900  # zones differ from UTC by multiples of it
MICRO = 1_000_000


@dataclass(frozen=True)
class Steps:
    """A step function: `values[i]` applies from `starts[i]` (ascending) up to the next.

    The first value also applies before its start. None: unknown.
    """

    starts: tuple[int, ...]
    values: tuple[int | None, ...]

    def at(self, second: int) -> int | None:
        """Return the value at a time in seconds since 1970."""
        return self.values[max(0, bisect_right(self.starts, second) - 1)]

    def spans(self, start: int, end: int) -> list[tuple[int, int, int | None]]:
        """Return (start, end, value) for each piece of [start, end)."""
        first = max(0, bisect_right(self.starts, start) - 1)
        found = []
        for index in range(first, len(self.starts)):
            begins = max(start, self.starts[index]) if index > first else start
            ends = min(end, self.starts[index + 1]) if index + 1 < len(self.starts) else end
            if begins >= end:
                break
            found.append((begins, ends, self.values[index]))
        return found

    def integral(self, start: int, end: int) -> int:
        """Return the sum of value x seconds; unknown values count as 0."""
        return sum((ends - begins) * (value or 0) for begins, ends, value in self.spans(start, end))

    def lasts_until(self, start: int, end: int, amount: int) -> int:
        """Return until when, from `start` and at most to `end`, an integral of at most `amount` reaches."""
        for begins, ends, value in self.spans(start, end):
            part = (ends - begins) * (value or 0)
            if part > amount:
                return begins + amount // (value or 1)
            amount -= part
        return end


@dataclass(frozen=True)
class Rule:
    """A price per slot-hour on these weekdays (Monday is 0) from `from_hour` up to `to_hour` in the zone.

    If `to_hour` is not later than `from_hour`, the hours pass midnight.
    """

    weekdays: frozenset[int]
    from_hour: int
    to_hour: int
    zone: str
    price: int

    def applies_at(self, second: int) -> bool:
        """Return whether the rule applies at a time in seconds since 1970."""
        local = moment_of(second).astimezone(ZoneInfo(self.zone))
        if self.from_hour < self.to_hour:
            in_hours = self.from_hour <= local.hour < self.to_hour
        else:
            in_hours = local.hour >= self.from_hour or local.hour < self.to_hour
        return in_hours and local.weekday() in self.weekdays


@dataclass(frozen=True)
class Point:
    """A value from `second` on, until the next point or until it is stale."""

    second: int
    value: int


def by_rules(base: int, rules: tuple[Rule, ...], start: int, end: int) -> Steps:
    """Return the price by the first rule that applies, otherwise `base`."""
    if not rules:
        return Steps((start,), (base,))
    return _by_rules(base, rules, start - start % DAY, end - end % -DAY)


@lru_cache(maxsize=256)
def _by_rules(base: int, rules: tuple[Rule, ...], start: int, end: int) -> Steps:
    step = HOUR if all(rule.zone == "UTC" for rule in rules) else QUARTER_HOUR
    seconds = range(start, max(end, start + step), step)
    return join_steps(
        [(second, next((rule.price for rule in rules if rule.applies_at(second)), base)) for second in seconds]
    )


def by_points(points: Sequence[Point], stale: timedelta) -> Steps:
    """Return the step function of points in order of time; unknown before the first, and where the last is stale."""
    lasts = int(stale.total_seconds())
    found: list[tuple[int, int | None]] = [(points[0].second - 1 if points else 0, None)]
    for point, after in [*pairwise(points), *([(points[-1], None)] if points else [])]:
        found.append((point.second, point.value))
        if after is None or after.second > point.second + lasts:
            found.append((point.second + lasts, None))
    return join_steps(found)


def overlay(upper: Steps, lower: Steps) -> Steps:
    """Return `upper` where it is known, otherwise `lower`."""
    starts = sorted({*upper.starts, *lower.starts})
    return join_steps([(start, lower.at(start) if (value := upper.at(start)) is None else value) for start in starts])


def join_steps(steps: Sequence[tuple[int, int | None]]) -> Steps:
    """Return the step function without steps between equal values."""
    kept: list[tuple[int, int | None]] = []
    for start, value in steps:
        if not kept or kept[-1][1] != value:
            kept.append((start, value))
    return Steps(tuple(start for start, _ in kept), tuple(value for _, value in kept))


def cost(prices: Steps, slots: int, start: int, end: int) -> int:
    """Return the cost of `slots` in [start, end) in millionths, rounded up, so that a reservation suffices."""
    return -(-slots * prices.integral(start, end) // HOUR)


def cost_with_rest(prices: Steps, slots: int, start: int, end: int, rest: int) -> tuple[int, int]:
    """Return the cost rounded down, including the remainder of the last count, and the new remainder (of 3600)."""
    return divmod(slots * prices.integral(start, end) + rest, HOUR)


def milligrams(carbon: Steps, watts: int, start: int, end: int) -> int:
    """Return the CO2 of `watts` in [start, end) in milligrams: milligrams per kWh x watts x seconds / 3,600,000."""
    return watts * carbon.integral(start, end) // (HOUR * 1000)
