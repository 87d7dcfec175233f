"""Energy and carbon of metered usage: measured where nodes sample their power, else estimated from the pool's watts.

A sample counts for SAMPLE_SECONDS: gaps between samples are not bridged, and the slot time in them is estimated, or its
energy is not known. The measured power of a slot is that of its accelerator (NVML). In a pool without accelerators it
is the slot's share of the power of its node (RAPL), which other jobs on the node use too. A sample of an accelerator
does not cover the host beside it.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from django.db.models import F, FloatField, Q, Sum
from django.db.models.fields.json import KeyTextTransform, KeyTransform
from django.db.models.functions import Cast

from athanor.budgets.models import UsageHour
from athanor.budgets.periods import HOUR, seconds_of
from athanor.budgets.prices import Tariffs
from athanor.budgets.tariff import Steps
from athanor.clusters.models import Pool
from athanor.jobs.models import Job
from athanor.telemetry.models import SystemInterval
from trainer.contract.system import SAMPLE_SECONDS

GPU_POWER, HOST_POWER = "system/gpu_power", "system/host_power"
WATT_SECONDS_PER_KWH = 3_600_000
Hours = Mapping[datetime, int]
"""Slot-seconds by hour."""


class UsageKey(NamedTuple):
    """Of which usage: `job` is empty for hours that an earlier version stored without one."""

    team: str
    job: str
    pool: str


@dataclass(frozen=True)
class PowerSamples:
    """Samples of power: how many, their mean in watts per slot, and the slot time that each of them covers."""

    count: int
    watts_per_slot: float
    slots_per_sample: float


@dataclass
class Energy:
    """Energy of `slot_seconds`. What is neither measured nor estimated is not known, and in no sum.

    `grams`: CO2 of the energy in time in which the carbon intensity of the grid is known, `carbon_slot_seconds`.
    """

    slot_seconds: float = 0.0
    measured_slot_seconds: float = 0.0
    measured_kwh: float = 0.0
    estimated_slot_seconds: float = 0.0
    estimated_kwh: float = 0.0
    grams: float = 0.0
    carbon_slot_seconds: float = 0.0

    @property
    def kwh(self) -> float | None:
        """Return the energy of the time of which it is known, None if it is not known at all."""
        known = self.measured_slot_seconds + self.estimated_slot_seconds
        return self.measured_kwh + self.estimated_kwh if known else None

    @property
    def unknown_slot_seconds(self) -> float:
        """Return the slot time of which the energy is not known."""
        return max(0.0, self.slot_seconds - self.measured_slot_seconds - self.estimated_slot_seconds)

    def add(self, other: "Energy") -> None:
        """Add the energy of other usage."""
        self.slot_seconds += other.slot_seconds
        self.measured_slot_seconds += other.measured_slot_seconds
        self.measured_kwh += other.measured_kwh
        self.estimated_slot_seconds += other.estimated_slot_seconds
        self.estimated_kwh += other.estimated_kwh
        self.grams += other.grams
        self.carbon_slot_seconds += other.carbon_slot_seconds


def energy_of(hours: Hours, samples: PowerSamples | None, watts_per_slot: int | None, carbon: Steps) -> Energy:
    """Return the energy of usage by hour. Pure.

    `watts_per_slot`: configured, None if unknown. `carbon`: milligrams of CO2 per kWh over time. The energy is spread
    evenly over the slot time, as the hours of each sample are not stored.
    """
    used = float(sum(hours.values()))
    found = Energy(slot_seconds=used)
    if samples is not None:
        found.measured_slot_seconds = min(used, samples.count * SAMPLE_SECONDS * samples.slots_per_sample)
        found.measured_kwh = found.measured_slot_seconds * samples.watts_per_slot / WATT_SECONDS_PER_KWH
    if watts_per_slot is not None:
        found.estimated_slot_seconds = used - found.measured_slot_seconds
        found.estimated_kwh = found.estimated_slot_seconds * watts_per_slot / WATT_SECONDS_PER_KWH
    if found.kwh is not None and used:
        known = 1 - found.unknown_slot_seconds / used
        for hour, slot_seconds in hours.items():
            intensity = _mean(carbon, seconds_of(hour))
            if intensity is not None:
                found.grams += found.kwh * slot_seconds / used * intensity / 1000
                found.carbon_slot_seconds += slot_seconds * known
    return found


def by_job(usage: Q, start: datetime | None = None, end: datetime | None = None) -> dict[UsageKey, Energy]:
    """Return the energy of the usage hours that meet a condition, by job.

    `start`, `end`: the range of these hours, None for all of the jobs.
    """
    hours: dict[UsageKey, dict[datetime, int]] = defaultdict(dict)
    rows = UsageHour.objects.filter(usage).values("team_id", "job_id", "pool_id", "hour")
    for row in rows.annotate(slots=Sum("slot_seconds")):
        hours[UsageKey(row["team_id"], row["job_id"] or "", row["pool_id"])][row["hour"]] = row["slots"]
    if not hours:
        return {}
    pools = Pool.objects.select_related("cluster").in_bulk({key.pool for key in hours})
    moments = [hour for own in hours.values() for hour in own]
    tariffs = Tariffs(pools.values(), seconds_of(min(moments)), seconds_of(max(moments)) + HOUR)
    samples = _samples({key.job for key in hours if key.job}, pools, start, end)
    return {
        key: energy_of(own, samples.get((key.job, key.pool)), tariffs.watts(key.pool) or None, tariffs.carbon(key.pool))
        for key, own in hours.items()
    }


def _samples(
    jobs: Collection[str], pools: Mapping[str, Pool], start: datetime | None, end: datetime | None
) -> dict[tuple[str, str], PowerSamples]:
    """Return the samples of power of these jobs, by job and pool."""
    within = Q(attempt__job__in=jobs)
    if start is not None and end is not None:
        within &= Q(time__gte=start, time__lt=end)
    shapes = {job.id: job for job in Job.objects.filter(pk__in=jobs).only("id", "slots", "pool_id", "resolved_spec")}
    found = {}
    for series in (GPU_POWER, HOST_POWER):
        column = KeyTransform(series, "values")
        rows = (
            SystemInterval.objects.filter(within, values__has_key=series)
            .values(job=F("attempt__job_id"))
            .annotate(
                count=Sum(Cast(KeyTextTransform("0", column), FloatField())),
                total=Sum(Cast(KeyTextTransform("1", column), FloatField())),
            )
        )
        for row in rows:
            job = shapes[row["job"]]
            pool = pools.get(job.pool_id)
            if pool is None or (pool.accelerator == "cpu") != (series == HOST_POWER) or not row["count"]:
                continue
            mean, covers = row["total"] / row["count"], 1.0
            if series == HOST_POWER:
                resources = job.resolved_spec["resources"]
                covers = job.slots / (resources["nodes"] + resources.get("spare_nodes", 0))
                mean /= pool.slots_per_node
            found[job.id, pool.id] = PowerSamples(int(row["count"]), mean, covers)
    return found


def _mean(carbon: Steps, start: int) -> float | None:
    """Return the mean of the known values within the hour from `start` on, None if there is none."""
    known = [(ends - begins, value) for begins, ends, value in carbon.spans(start, start + HOUR) if value is not None]
    return sum(seconds * value for seconds, value in known) / sum(seconds for seconds, _ in known) if known else None
