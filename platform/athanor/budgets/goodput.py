"""The goodput ledger of a job: the slot time of each attempt by what it was held for, with its cost.

The cost is the meter's. Within an attempt it is divided by time, at the mean price of each hour, and rounded so that
the parts add up to it exactly. Time that is not metered yet, and the fraction of a second at an end, has no cost.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from athanor.budgets.charges import slots_of
from athanor.budgets.models import Meter, UsageHour
from athanor.jobs import selectors
from athanor.jobs.goodput import PRODUCTIVE, Entry, Interruption
from athanor.jobs.models import Job
from athanor.jobs.timeline import Activity

HOUR = timedelta(hours=1)
_MICROSECOND = timedelta(microseconds=1)


@dataclass(frozen=True)
class Item:
    """An entry with its cost, in millionths of the currency."""

    entry: Entry
    cost: int

    @property
    def slot_time(self) -> timedelta:
        """Return its time multiplied by its slots."""
        return self.entry.span.duration * self.entry.slots


@dataclass
class Sum:
    """Slot time and cost, of a start-up by phase too."""

    slot_time: timedelta = timedelta()
    cost: int = 0
    phases: dict[str, "Sum"] = field(default_factory=dict)

    def add(self, item: Item) -> None:
        """Add an item."""
        self.slot_time += item.slot_time
        self.cost += item.cost


@dataclass
class Sums:
    """Sums over some items, in total and by activity. Activities that took no time are absent, unless they cost."""

    total: Sum = field(default_factory=Sum)
    activities: dict[Activity, Sum] = field(default_factory=dict)

    def add(self, item: Item) -> None:
        """Add an item."""
        span = item.entry.span
        self.total.add(item)
        found = self.activities.setdefault(span.activity, Sum())
        found.add(item)
        if span.activity is Activity.STARTUP:
            found.phases.setdefault(span.phase, Sum()).add(item)

    @property
    def goodput(self) -> float | None:
        """Return the share of productive slot time, None if there was none at all."""
        if not self.total.slot_time:
            return None
        productive = sum((self.activities[each].slot_time for each in PRODUCTIVE & self.activities.keys()), timedelta())
        return productive / self.total.slot_time


@dataclass
class AttemptLedger:
    """The ledger of one attempt. `metered_until`, None if it is not metered; `refunded` is not charged."""

    number: int
    slots: int
    start: datetime
    end: datetime
    metered_until: datetime | None
    refunded: int
    sums: Sums = field(default_factory=Sums)


@dataclass
class Loss:
    """What an interruption cost: work that was lost, time in which ranks hung, and the start-up that followed.

    `refunded`: what its attempt was refunded, which only an attempt's end is.
    """

    interruption: Interruption
    refunded: int = 0
    sums: Sums = field(default_factory=Sums)


@dataclass
class Ledger:
    """The goodput ledger of a job."""

    sums: Sums
    attempts: list[AttemptLedger]
    losses: list[Loss]

    @property
    def refunded(self) -> int:
        """Return what was refunded, in millionths of the currency."""
        return sum(attempt.refunded for attempt in self.attempts)


def ledger_of(job: Job) -> Ledger:
    """Return the ledger of a job with loaded attempts and pool."""
    meters = {meter.attempt.number: meter for meter in Meter.objects.filter(job=job).select_related("attempt")}
    slots = slots_by_attempt(job, meters.values())
    found, interruptions = selectors.goodput_of(job, slots)
    by_attempt: dict[int, list[Entry]] = defaultdict(list)
    for entry in found:
        by_attempt[entry.span.attempt or 0].append(entry)
    ledger = Ledger(Sums(), [], [Loss(each) for each in interruptions])
    prices = _hourly_prices(job, meters.values())
    for number, own in by_attempt.items():
        meter = meters.get(number)
        attempt = AttemptLedger(number, slots[number], own[0].span.start, own[-1].span.end, None, 0)
        if meter is not None:
            attempt.metered_until, attempt.refunded = meter.metered_until, meter.fault_cost
        for item in with_costs(own, meter.cost if meter else 0, _weights(own, meter, prices)):
            for sums in (ledger.sums, attempt.sums):
                sums.add(item)
            if item.entry.cause is not None:
                ledger.losses[item.entry.cause].sums.add(item)
        ledger.attempts.append(attempt)
    refunds = {attempt.number: attempt.refunded for attempt in ledger.attempts}
    for loss in ledger.losses:
        if not loss.interruption.in_place:
            loss.refunded = refunds.get(loss.interruption.attempt, 0)
    return ledger


def slots_by_attempt(job: Job, meters: Iterable[Meter]) -> dict[int, int]:
    """Return the slots of each attempt of a job with loaded attempts and pool, by its number."""
    slots = dict.fromkeys((attempt.number for attempt in selectors.attempts_of(job)), slots_of(job, job.pool))
    return slots | {meter.attempt.number: meter.slots for meter in meters}


def with_costs(entries: Sequence[Entry], cost: int, weights: Sequence[int]) -> Iterator[Item]:
    """Yield the entries with their parts of a cost, in proportion to their weights.

    Whole millionths by the largest remainder; the parts add up to `cost`. Without any weight, as when an attempt was
    metered before its first entry, they are in proportion to the entries' slot times.
    """
    if not sum(weights):
        weights = [entry.span.duration // _MICROSECOND * entry.slots for entry in entries]
    for entry, part in zip(entries, divide(cost, weights), strict=True):
        yield Item(entry, part)


def divide(whole: int, weights: Sequence[int]) -> list[int]:
    """Return whole parts of `whole` in proportion to `weights`, by the largest remainder; they add up to it.

    The sum of the weights must be above 0.
    """
    total = sum(weights)
    parts = [divmod(whole * weight, total) for weight in weights]
    missing = whole - sum(part for part, _ in parts)
    largest = set(sorted(range(len(parts)), key=lambda place: -parts[place][1])[:missing])
    return [part + (place in largest) for place, (part, _) in enumerate(parts)]


def _weights(entries: Sequence[Entry], meter: Meter | None, prices: Mapping[datetime, int]) -> list[int]:
    """Return the metered slot time of each entry, multiplied by the price of the hours that it is in."""
    if meter is None:
        return [0] * len(entries)
    return [
        entry.slots
        * sum(
            ((end - start) // _MICROSECOND) * prices.get(hour_of(start), 0)
            for start, end in by_hour(entry.span.start, entry.span.end, meter)
        )
        for entry in entries
    ]


def by_hour(start: datetime, end: datetime, meter: Meter) -> Iterator[tuple[datetime, datetime]]:
    """Yield the metered part of [start, end), divided at full hours."""
    start, end = max(start, meter.began_at), min(end, meter.metered_until)
    while start < end:
        stop = min(end, hour_of(start) + HOUR)
        yield start, stop
        start = stop


def hour_of(time: datetime) -> datetime:
    """Return the begin of the hour that contains `time`."""
    return time.replace(minute=0, second=0, microsecond=0)


def _hourly_prices(job: Job, meters: Collection[Meter]) -> dict[datetime, int]:
    """Return what a million slot-seconds of the job cost on average in each hour in which it was metered."""
    hours = set()
    for meter in meters:
        hour = hour_of(meter.began_at)
        while hour < meter.metered_until:
            hours.add(hour)
            hour += HOUR
    rows = UsageHour.objects.filter(job=job, hour__in=sorted(hours), slot_seconds__gt=0)
    return {row.hour: row.cost * 1_000_000 // row.slot_seconds for row in rows.only("hour", "cost", "slot_seconds")}
