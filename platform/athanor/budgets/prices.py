"""Prices and carbon intensity of pools, read for many pools at a time.

A pool's price is that of its series where it is known, otherwise of its first rule that applies, otherwise its base
price (`Pool`). Carbon intensity is its cluster's series, and unknown without one.
"""

from collections import defaultdict
from collections.abc import Iterable
from datetime import datetime, timedelta

from django.db.models import Q

from athanor.budgets import tariff
from athanor.budgets.models import PoolPricing, PriceRule, Series, SeriesPoint
from athanor.budgets.periods import moment_of, seconds_of
from athanor.budgets.tariff import MICRO, Point, Rule, Steps
from athanor.clusters.models import Pool

UNKNOWN = Steps((0,), (None,))
MAX_STALE = timedelta(days=31)


class Tariffs:
    """Prices, carbon intensity and power of these pools over [start, end), in whole seconds since 1970."""

    def __init__(self, pools: Iterable[Pool], start: int, end: int) -> None:
        self.pools = {pool.id: pool for pool in pools}
        self._start, self._end = start, max(end, start + 1)
        self._rules: dict[str, list[Rule]] = defaultdict(list)
        for row in PriceRule.objects.filter(pool__in=self.pools).order_by("pool", "position"):
            self._rules[row.pool_id].append(
                Rule(frozenset(row.weekdays), row.from_hour, row.to_hour, row.zone, row.price)
            )
        self._watts = dict(PoolPricing.objects.filter(pool__in=self.pools).values_list("pool_id", "watts_per_slot"))
        self._series = self._read_series()
        self._prices: dict[str, Steps] = {}

    def price(self, pool_id: str) -> Steps:
        """Return millionths of the pool's currency per slot-hour; always known."""
        if pool_id not in self._prices:
            base = int(self.pools[pool_id].price_per_slot_hour * MICRO)
            found = tariff.by_rules(base, tuple(self._rules[pool_id]), self._start, self._end)
            series = self._series.get(pool_id)
            self._prices[pool_id] = tariff.overlay(series, found) if series else found
        return self._prices[pool_id]

    def carbon(self, pool_id: str) -> Steps:
        """Return milligrams of CO2 per kWh; None where unknown."""
        return self._series.get(self.pools[pool_id].cluster_id, UNKNOWN)

    def watts(self, pool_id: str) -> int:
        """Return the power of one slot in watts; 0 if unknown."""
        return self._watts.get(pool_id) or 0

    def _read_series(self) -> dict[str, Steps]:
        """Return the series as step functions, by the id of the pool or the cluster."""
        wanted = Q(pool__in=self.pools) | Q(cluster__in={pool.cluster_id for pool in self.pools.values()})
        rows = {row.pk: row for row in Series.objects.filter(wanted)}
        if not rows:
            return {}
        points: dict[str, list[Point]] = defaultdict(list)
        before_end = SeriesPoint.objects.filter(series__in=rows, time__lt=moment_of(self._end))
        since = moment_of(self._start) - MAX_STALE
        for point in before_end.filter(time__gte=since).order_by("series", "time"):
            points[point.series_id].append(Point(seconds_of(point.time), point.value))
        return {
            str(row.pool_id or row.cluster_id): tariff.by_points(points[pk], timedelta(seconds=row.stale_seconds))
            for pk, row in rows.items()
        }


def price_at(pool: Pool, moment: datetime) -> int:
    """Return millionths of the pool's currency per slot-hour."""
    second = seconds_of(moment)
    return Tariffs([pool], second, second + 1).price(pool.id).at(second) or 0
