"""Report of a simulation, per team and in total. Pure."""

from collections.abc import Iterable, Sequence

from pydantic import BaseModel, ConfigDict

from athanor.scheduling.simulator.engine import Outcome, Record

# The string below a field is its description in the OpenAPI document.
DESCRIBED = ConfigDict(use_attribute_docstrings=True)
EXACT = ConfigDict(extra="forbid", use_attribute_docstrings=True)


class Waits(BaseModel):
    """Seconds from submission to the first start, of jobs that started."""

    model_config = DESCRIBED

    mean: float
    """Mean."""
    p50: int
    """Median."""
    p90: int
    """90th percentile."""
    p99: int
    """99th percentile."""


class Figures(BaseModel):
    """Outcome for some jobs: those of a team, or all."""

    model_config = EXACT

    jobs: int
    """Number of jobs."""
    started: int
    """Number of jobs that started."""
    ended: int
    """Number of jobs that ended."""
    waits_seconds: Waits
    """Distribution of the waits until the first start, in seconds."""
    preemptions: int
    """Number of preemptions."""
    lost_slot_hours: float
    """Slot-hours of work since the last checkpoint that preemption discarded."""
    used_slot_hours: float
    """Slot-hours that the jobs used, including those."""
    running_share: float
    """Useful run time as a fraction of the time from submission to end; 1 means that no job waited."""
    longest_queue: int
    """Maximum number of jobs that waited at the same time."""


class PoolFigures(BaseModel):
    """Outcome for a pool."""

    model_config = DESCRIBED

    slots: int
    """Slots of the pool."""
    used_slot_hours: float
    """Slot-hours that jobs used."""
    utilisation: float
    """Used fraction of the pool's slot-hours, from the first submission to the last end."""


class Report(BaseModel):
    """Outcome of a simulation."""

    model_config = EXACT

    days: float
    """Days from the first submission to the last end."""
    all: Figures
    """Outcome for all jobs."""
    teams: dict[str, Figures]
    """Outcome by team, as the quota tree names it."""
    pools: dict[str, PoolFigures]
    """Outcome by pool, as `CLUSTER/NAME`."""
    utilisation: float
    """Used fraction of the slot-hours of all pools."""
    fairness: float
    """Jain's index over the teams' running shares: 1 if all wait alike, 1/n if only one of n teams runs."""
    passes: int
    """Number of admission cycles."""


def build_report(outcome: Outcome) -> Report:
    """Summarize a simulation by team, by pool and in total."""
    names = {node.id: node.name for node in outcome.plan.nodes}
    by_node: dict[str, list[Record]] = {}
    for record in outcome.records:
        by_node.setdefault(record.job.node, []).append(record)
    teams = {names[node]: _figures(by_node[node], outcome.longest_queue.get(node, 0)) for node in sorted(by_node)}
    pools = {
        pool.name: PoolFigures(
            slots=pool.slots,
            used_slot_hours=round(outcome.used[pool.id] / 3600, 2),
            utilisation=_fraction(outcome.used[pool.id], pool.slots * outcome.seconds),
        )
        for pool in sorted(outcome.plan.pools, key=lambda pool: pool.id)
    }
    slots = sum(pool.slots for pool in outcome.plan.pools)
    return Report(
        days=round(outcome.seconds / 86_400, 3),
        all=_figures(outcome.records, outcome.longest_queue.get("", 0)),
        teams=teams,
        pools=pools,
        utilisation=_fraction(sum(outcome.used.values()), slots * outcome.seconds),
        fairness=jain([figures.running_share for figures in teams.values()]),
        passes=outcome.passes,
    )


def _figures(records: Sequence[Record], longest_queue: int) -> Figures:
    waits = sorted(record.waited for record in records if record.waited is not None)
    ran = sum(record.ran for record in records)
    useful = ran - sum(record.lost // record.job.slots for record in records)
    elapsed = sum(record.ended - record.job.at for record in records if record.ended is not None)
    return Figures(
        jobs=len(records),
        started=len(waits),
        ended=sum(record.ended is not None for record in records),
        waits_seconds=Waits(
            mean=round(sum(waits) / len(waits), 1) if waits else 0.0,
            p50=quantile(waits, 50),
            p90=quantile(waits, 90),
            p99=quantile(waits, 99),
        ),
        preemptions=sum(record.preemptions for record in records),
        lost_slot_hours=round(sum(record.lost for record in records) / 3600, 2),
        used_slot_hours=round(sum(record.ran * record.job.slots for record in records) / 3600, 2),
        running_share=min(1.0, _fraction(useful, elapsed)),
        longest_queue=longest_queue,
    )


def quantile(ordered: Sequence[int], percent: int) -> int:
    """Return the percentile by the nearest-rank method, 0 for no values. `ordered` is ascending."""
    return ordered[max(0, -(-len(ordered) * percent // 100) - 1)] if ordered else 0


def jain(shares: Iterable[float]) -> float:
    """Return Jain's fairness index: (sum of x)^2 / (n x sum of x^2), 1 if all are equal or there are none.

    Source: R. Jain, D. Chiu and W. Hawe 1984.
    """
    values = list(shares)
    squares = sum(value * value for value in values)
    return round(sum(values) ** 2 / (len(values) * squares), 4) if squares else 1.0


def _fraction(part: float, total: float) -> float:
    return round(part / total, 4) if total else 0.0
