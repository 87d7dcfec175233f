"""Prices and carbon over time as step functions of whole seconds since 1970, and exact integrals of them. Pure.

A price is in millionths of the currency for one slot and hour, carbon in milligrams a kWh. What costs `price` for
`seconds` on `slots` costs price x seconds x slots / 3600 millionths; the remainder of the division is kept and counted
the next time, so that however often a run is metered, it costs the same.
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
    """`values[i]` holds from `starts[i]` (ascending) up to the next; the first one before, too. None: not known."""

    starts: tuple[int, ...]
    values: tuple[int | None, ...]

    def at(self, second: int) -> int | None:
        return self.values[max(0, bisect_right(self.starts, second) - 1)]

    def spans(self, start: int, end: int) -> list[tuple[int, int, int | None]]:
        """(from, to, value) that make up [start, end)."""
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
        """Value x seconds; nothing for where it is not known."""
        return sum((ends - begins) * (value or 0) for begins, ends, value in self.spans(start, end))

    def lasts_until(self, start: int, end: int, amount: int) -> int:
        """How far from `start`, up to `end`, an integral of at most `amount` reaches."""
        for begins, ends, value in self.spans(start, end):
            part = (ends - begins) * (value or 0)
            if part > amount:
                return begins + amount // (value or 1)
            amount -= part
        return end


@dataclass(frozen=True)
class Rule:
    """On these weekdays (Monday is 0) from `from_hour` up to `to_hour` o'clock (past midnight if that is not later)
    of the zone, a slot-hour costs `price`."""

    weekdays: frozenset[int]
    from_hour: int
    to_hour: int
    zone: str
    price: int

    def holds_at(self, second: int) -> bool:
        local = moment_of(second).astimezone(ZoneInfo(self.zone))
        if self.from_hour < self.to_hour:
            in_hours = self.from_hour <= local.hour < self.to_hour
        else:
            in_hours = local.hour >= self.from_hour or local.hour < self.to_hour
        return in_hours and local.weekday() in self.weekdays


@dataclass(frozen=True)
class Point:
    """From `second` on, up to the next point or until it is too old."""

    second: int
    value: int


def by_rules(base: int, rules: tuple[Rule, ...], start: int, end: int) -> Steps:
    """The first rule that holds says the price; where none does it is `base`."""
    if not rules:
        return Steps((start,), (base,))
    return _by_rules(base, rules, start - start % DAY, end - end % -DAY)


@lru_cache(maxsize=256)
def _by_rules(base: int, rules: tuple[Rule, ...], start: int, end: int) -> Steps:
    step = HOUR if all(rule.zone == "UTC" for rule in rules) else QUARTER_HOUR
    seconds = range(start, max(end, start + step), step)
    return joined([(second, next((rule.price for rule in rules if rule.holds_at(second)), base)) for second in seconds])


def by_points(points: Sequence[Point], stale: timedelta) -> Steps:
    """Points in order of time; a value is not known before the first, and when the last one is too old."""
    lasts = int(stale.total_seconds())
    found: list[tuple[int, int | None]] = [(points[0].second - 1 if points else 0, None)]
    for point, after in [*pairwise(points), *([(points[-1], None)] if points else [])]:
        found.append((point.second, point.value))
        if after is None or after.second > point.second + lasts:
            found.append((point.second + lasts, None))
    return joined(found)


def overlaid(upper: Steps, lower: Steps) -> Steps:
    """`upper` where it is known, else `lower`."""
    starts = sorted({*upper.starts, *lower.starts})
    return joined([(start, lower.at(start) if (value := upper.at(start)) is None else value) for start in starts])


def joined(steps: Sequence[tuple[int, int | None]]) -> Steps:
    """Equal neighbours are one step."""
    kept: list[tuple[int, int | None]] = []
    for start, value in steps:
        if not kept or kept[-1][1] != value:
            kept.append((start, value))
    return Steps(tuple(start for start, _ in kept), tuple(value for _, value in kept))


def cost(prices: Steps, slots: int, start: int, end: int) -> int:
    """Millionths of the currency that `slots` cost in [start, end), rounded up: what is reserved suffices."""
    return -(-slots * prices.integral(start, end) // HOUR)


def cost_with_rest(prices: Steps, slots: int, start: int, end: int, rest: int) -> tuple[int, int]:
    """The same rounded down with the rest (of 3600) of what was counted before, and the new rest."""
    return divmod(slots * prices.integral(start, end) + rest, HOUR)


def milligrams(carbon: Steps, watts: int, start: int, end: int) -> int:
    """Carbon dioxide of `watts` in [start, end): milligrams a kWh x watts x seconds / 3,600,000."""
    return watts * carbon.integral(start, end) // (HOUR * 1000)
