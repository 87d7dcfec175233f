"""Serializers of the efficiency of a job."""

from dataclasses import asdict
from typing import Any

from rest_framework import serializers

from athanor.api.v1.serializers.common import enum_values
from athanor.jobs.goodput import PRODUCTIVE
from athanor.jobs.models import Job
from athanor.jobs.timeline import Activity
from athanor.specs.right_sizing import Advice
from athanor.telemetry.efficiency import SERIES, Efficiency
from athanor.telemetry.energy import Energy

SOURCES = ["measured", "estimated", "mixed", "unknown"]


class LoadSerializer(serializers.Serializer[Any]):
    """A series of the job's machines, sampled every ten seconds, over all of its attempts."""

    mean = serializers.FloatField(help_text="Mean of all samples.")
    p10 = serializers.FloatField(
        help_text=(
            "A tenth of the samples lie in intervals with at most this mean. An interval is a minute, and an hour of "
            "samples that are older than two days."
        )
    )
    highest = serializers.FloatField(help_text="Highest sample.")
    highest_at = serializers.CharField(help_text="Its node; NODE:NUMBER for a GPU.")


class EfficiencyLoadsSerializer(serializers.Serializer[Any]):
    """Loads of the machines that had the job. Null where nothing was sampled."""

    gpu_utilisation = LoadSerializer(allow_null=True, help_text="Share of time in which a kernel ran on a GPU, 0 to 1.")
    gpu_memory = LoadSerializer(allow_null=True, help_text="Share of the GPUs' memory that was in use, 0 to 1.")
    gpu_power = LoadSerializer(allow_null=True, help_text="Power of a GPU in watts.")
    cpu_utilisation = LoadSerializer(
        allow_null=True, help_text="Share of CPU time in use, 0 to 1, of the nodes, with other programs on them."
    )
    host_memory = LoadSerializer(
        allow_null=True, help_text="Share of the memory in use, 0 to 1, of the nodes, with other programs on them."
    )
    host_power = LoadSerializer(
        allow_null=True, help_text="Power of the processors and memory of a node in watts, with other programs on it."
    )


class EfficiencyMemorySerializer(serializers.Serializer[Any]):
    """Peak memory of the job's processes in its newest attempt: on the accelerator, or on the host without one."""

    peak_bytes = serializers.IntegerField(help_text="Peak of the process that needed most.")
    peak_rank = serializers.IntegerField(help_text="Its rank.")
    mean_peak_bytes = serializers.IntegerField(help_text="Mean of the peaks of all processes.")
    available_bytes = serializers.IntegerField(
        allow_null=True, help_text="What the pool has per process. Null if its accelerators' memory is not configured."
    )
    headroom_bytes = serializers.IntegerField(
        allow_null=True, help_text="`available_bytes` without `peak_bytes`. Null if that is not known."
    )


class EnergySerializer(serializers.Serializer[Any]):
    """Energy and carbon of metered slot time, as far as they are known."""

    kwh = serializers.FloatField(
        allow_null=True, help_text="Measured and estimated energy in kWh. Null if neither is known."
    )
    source = serializers.ChoiceField(  # type: ignore[assignment] # a field, which DRF takes off the class
        choices=SOURCES, help_text="How `kwh` is known; `mixed` is measured and estimated, `unknown` if it is null."
    )
    measured_kwh = serializers.FloatField(
        help_text="Energy in time with samples of power: of the GPUs (NVML), or of the nodes' processors (RAPL)."
    )
    measured_slot_seconds = serializers.FloatField(help_text="Slot-seconds of that time.")
    estimated_kwh = serializers.FloatField(help_text="Energy at the pool's `watts_per_slot` in time without samples.")
    estimated_slot_seconds = serializers.FloatField(help_text="Slot-seconds of that time.")
    unknown_slot_seconds = serializers.FloatField(
        help_text="Slot-seconds of which the energy is in no sum: without samples, in a pool without `watts_per_slot`."
    )
    carbon_grams = serializers.FloatField(
        allow_null=True,
        help_text=(
            "CO2 of `kwh` in grams, by the carbon intensity of the cluster. Null if the intensity is not known in any "
            "hour of it."
        ),
    )
    carbon_slot_seconds = serializers.FloatField(
        help_text="Slot-seconds that `carbon_grams` covers: those of which energy and intensity are known."
    )


class SuggestionSerializer(serializers.Serializer[Any]):
    """A change with which a job like this one would cost less."""

    advice = serializers.ChoiceField(choices=enum_values(Advice), help_text="What to change.")
    message = serializers.CharField(help_text="The reason, with figures.")
    changes = serializers.JSONField(
        help_text="The change of the spec as a JSON merge patch. The spec with it fits the pool."
    )
    saving = serializers.IntegerField(
        help_text=(
            "What it saves at most, in millionths of the currency: an estimate from the cost and utilisation of this "
            "job, as if fewer slots did the same work in the same time."
        )
    )


class EfficiencySerializer(serializers.Serializer[Any]):
    """The efficiency of a job."""

    currency = serializers.CharField(help_text="Currency of the amounts, ISO 4217.")
    slot_seconds = serializers.FloatField(help_text="Slot time of the attempts, as in `GET /jobs/{job_id}/goodput`.")
    productive_slot_seconds = serializers.FloatField(help_text="Slot time of training and preparation.")
    idle_slot_seconds = serializers.FloatField(help_text="Slot time of nodes without ranks.")
    goodput = serializers.FloatField(
        allow_null=True, help_text="Productive share, 0 to 1. Null before the first launch."
    )
    cost = serializers.IntegerField(help_text="Cost in millionths of the currency, as metered.")
    unproductive_cost = serializers.IntegerField(help_text="Part of `cost` that was not productive.")
    loads = EfficiencyLoadsSerializer(help_text="How busy the machines were.")
    memory = EfficiencyMemorySerializer(allow_null=True, help_text="Peak memory. Null before the first step.")
    energy = EnergySerializer(help_text="Energy and carbon of the job's metered time.")
    suggestions = SuggestionSerializer(
        many=True, help_text="What to change, the largest saving first. Empty while the job runs."
    )


def serialize_energy(energy: Energy) -> dict[str, Any]:
    """Return energy as EnergySerializer describes it."""
    has = {"measured": energy.measured_slot_seconds > 0, "estimated": energy.estimated_slot_seconds > 0}
    source = "mixed" if all(has.values()) else next((name for name, is_used in has.items() if is_used), "unknown")
    return {
        "kwh": energy.kwh,
        "source": source,
        "measured_kwh": energy.measured_kwh,
        "measured_slot_seconds": energy.measured_slot_seconds,
        "estimated_kwh": energy.estimated_kwh,
        "estimated_slot_seconds": energy.estimated_slot_seconds,
        "unknown_slot_seconds": energy.unknown_slot_seconds,
        "carbon_grams": energy.grams if energy.carbon_slot_seconds else None,
        "carbon_slot_seconds": energy.carbon_slot_seconds,
    }


def serialize_efficiency(found: Efficiency, job: Job) -> dict[str, Any]:
    """Return the efficiency of a job as EfficiencySerializer describes it."""
    sums, memory = found.ledger.sums, found.memory
    by_activity = {activity: each.slot_time.total_seconds() for activity, each in sums.activities.items()}
    loads = {name: found.loads.get(name) for name in SERIES}
    headroom = memory.available_bytes - memory.peak_bytes if memory and memory.available_bytes is not None else None
    return {
        "currency": job.pool.currency,
        "slot_seconds": sums.total.slot_time.total_seconds(),
        "productive_slot_seconds": sum(by_activity.get(activity, 0.0) for activity in PRODUCTIVE),
        "idle_slot_seconds": by_activity.get(Activity.IDLE, 0.0),
        "goodput": sums.goodput,
        "cost": sums.total.cost,
        "unproductive_cost": found.unproductive_cost,
        "loads": {
            name: load and {"mean": load.mean, "p10": load.p10, "highest": load.high, "highest_at": load.high_at}
            for name, load in loads.items()
        },
        "memory": memory and {**asdict(memory), "headroom_bytes": headroom},
        "energy": serialize_energy(found.energy),
        "suggestions": [asdict(each) for each in found.suggestions],
    }
