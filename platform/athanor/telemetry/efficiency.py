"""The efficiency of a job: what its slots were held for, how busy they were, memory, energy, and what to change.

Slot time and cost are those of the goodput ledger (budgets/goodput.py). What was not sampled is None, never 0.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from django.db.models import Q

from athanor.budgets import goodput
from athanor.budgets.goodput import Ledger
from athanor.jobs.goodput import PRODUCTIVE
from athanor.jobs.models import Job
from athanor.jobs.reasons import explain
from athanor.jobs.services import pool_shape
from athanor.jobs.timeline import Activity
from athanor.specs.right_sizing import RunFacts, Suggestion, suggestions
from athanor.specs.v1 import JobSpec
from athanor.telemetry.energy import GPU_POWER, HOST_POWER, Energy, by_job
from athanor.telemetry.models import Progress, SystemInterval
from athanor.telemetry.system import Aggregate, merge_two

LOW_SHARE = 0.1
SERIES = {
    "gpu_utilisation": "system/gpu_utilisation",
    "cpu_utilisation": "system/cpu_utilisation",
    "gpu_memory": "system/gpu_memory_used",
    "host_memory": "system/memory_used",
    "gpu_power": GPU_POWER,
    "host_power": HOST_POWER,
}
"""The figures of a job, by the series of which they are."""


@dataclass(frozen=True)
class Load:
    """A series over a job. `p10`: a tenth of the time was at or below it, by the means of its intervals.

    `high_at`: the node of the highest value, NODE:NUMBER for a GPU.
    """

    mean: float
    p10: float
    high: float
    high_at: str


@dataclass(frozen=True)
class Memory:
    """The peak of the newest attempt, of the process that needs most, and of all on average.

    `available_bytes`: of the pool per process; None if its accelerators' memory is not configured.
    """

    peak_bytes: int
    peak_rank: int
    mean_peak_bytes: int
    available_bytes: int | None


@dataclass(frozen=True)
class Efficiency:
    """The efficiency of a job. `loads`: by the names of SERIES, without those that were not sampled."""

    ledger: Ledger
    loads: dict[str, Load]
    memory: Memory | None
    energy: Energy
    suggestions: list[Suggestion]

    @property
    def unproductive_cost(self) -> int:
        """Return the cost of what was neither training nor preparation."""
        sums = self.ledger.sums
        return sums.total.cost - sum(sums.activities[each].cost for each in PRODUCTIVE & sums.activities.keys())


def efficiency_of(job: Job) -> Efficiency:
    """Return the efficiency of a job with loaded attempts and pool, of a live one until now."""
    ledger, energy = goodput.ledger_of(job), Energy()
    for each in by_job(Q(job=job)).values():
        energy.add(each)
    intervals = list(SystemInterval.objects.filter(attempt__job=job).values_list("values", flat=True))
    loads = {}
    for name, series in SERIES.items():
        found = load_of(row[series] for row in intervals if series in row)
        if found is not None:
            loads[name] = found
    return Efficiency(ledger, loads, _memory(job), energy, _suggestions(job, ledger, loads))


def load_of(intervals: Iterable[Aggregate]) -> Load | None:
    """Return the load over the intervals of a series, None without any. Pure."""
    rows = sorted(intervals, key=lambda row: row[1] / row[0])
    if not rows:
        return None
    total = rows[0]
    for row in rows[1:]:
        total = merge_two(total, row)
    passed, p10 = 0, rows[0][1] / rows[0][0]
    for row in rows:
        passed += row[0]
        if passed >= LOW_SHARE * total[0]:
            p10 = row[1] / row[0]
            break
    return Load(total[1] / total[0], p10, total[4], total[5])


def _memory(job: Job) -> Memory | None:
    values = Progress.objects.filter(job=job).values_list("values", flat=True).first() or {}
    peak = values.get("memory/peak_bytes")
    if peak is None:
        return None
    processes = job.resolved_spec["resources"]["processes_per_node"]
    return Memory(
        peak_bytes=int(peak),
        peak_rank=int(values.get("memory/peak_rank") or 0),
        mean_peak_bytes=int(values.get("memory/mean_peak_bytes") or peak),
        available_bytes=pool_shape(job.pool).device_bytes_per_process(processes),
    )


def _suggestions(job: Job, ledger: Ledger, loads: dict[str, Load]) -> list[Suggestion]:
    """Return what to change. While the job runs there is no advice: what it will cost is not known."""
    if job.finished_at is None:
        return []
    activities = ledger.sums.activities
    spec, shape = JobSpec.model_validate(job.spec), pool_shape(job.pool)
    load = loads.get("gpu_utilisation")
    if shape.accelerator == "cpu" and spec.resources.processes_per_node >= shape.slots_per_node:
        load = loads.get("cpu_utilisation")  # of the node, and thus of the job, which held all of its slots
    facts = RunFacts(
        cost=ledger.sums.total.cost,
        training_cost=activities[Activity.TRAINING].cost if Activity.TRAINING in activities else 0,
        idle_cost=activities[Activity.IDLE].cost if Activity.IDLE in activities else 0,
        utilisation=load.mean if load is not None else None,
        lost_a_node=any(_is_fault(loss.interruption.reason) for loss in ledger.losses),
    )
    return suggestions(spec, shape, facts)


def _is_fault(reason: str) -> bool:
    found = explain(reason)
    return found is None or found["blame"] == "infrastructure"
