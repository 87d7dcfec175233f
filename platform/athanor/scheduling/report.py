"""Report of a simulation, per team and in total. Pure."""

from collections.abc import Iterable, Sequence

from pydantic import BaseModel, ConfigDict

from athanor.scheduling.simulate import Outcome, Record


class Waits(BaseModel):
    """Seconds from submission to the first start, of jobs that started."""

    mean: float
    p50: int
    p90: int
    p99: int


class Figures(BaseModel):
    """Figures of one team or of all.

    `running_share`: run time divided by run time plus wait; 1 is no wait. `lost_slot_hours`: work after the last
    checkpoint that preemption lost.
    """

    model_config = ConfigDict(extra="forbid")

    jobs: int
    started: int
    ended: int
    waits_seconds: Waits
    preemptions: int
    lost_slot_hours: float
    used_slot_hours: float
    running_share: float
    longest_queue: int


class PoolFigures(BaseModel):
    slots: int
    used_slot_hours: float
    utilisation: float


class Report(BaseModel):
    """Report of one simulation.

    `fairness`: Jain's index over the teams' running shares, 1 if all wait alike, 1/n if only one of n runs.
    `utilisation`: of all pools together. Teams have their names in the tree.
    """

    model_config = ConfigDict(extra="forbid")

    days: float
    all: Figures
    teams: dict[str, Figures]
    pools: dict[str, PoolFigures]
    utilisation: float
    fairness: float
    passes: int


def report(outcome: Outcome) -> Report:
    names = {node.id: node.name for node in outcome.plan.nodes}
    of: dict[str, list[Record]] = {}
    for record in outcome.records:
        of.setdefault(record.job.node, []).append(record)
    teams = {names[node]: _figures(of[node], outcome.longest_queue.get(node, 0)) for node in sorted(of)}
    pools = {
        pool.name: PoolFigures(
            slots=pool.slots,
            used_slot_hours=round(outcome.used[pool.id] / 3600, 2),
            utilisation=_part(outcome.used[pool.id], pool.slots * outcome.seconds),
        )
        for pool in sorted(outcome.plan.pools, key=lambda pool: pool.id)
    }
    slots = sum(pool.slots for pool in outcome.plan.pools)
    return Report(
        days=round(outcome.seconds / 86_400, 3),
        all=_figures(outcome.records, outcome.longest_queue.get("", 0)),
        teams=teams,
        pools=pools,
        utilisation=_part(sum(outcome.used.values()), slots * outcome.seconds),
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
        running_share=min(1.0, _part(useful, elapsed)),
        longest_queue=longest_queue,
    )


def quantile(ordered: Sequence[int], percent: int) -> int:
    """The smallest of them that so many percent do not exceed (nearest rank)."""
    return ordered[max(0, -(-len(ordered) * percent // 100) - 1)] if ordered else 0


def jain(shares: Iterable[float]) -> float:
    """(sum of x)^2 / (n x sum of x^2), R. Jain, D. Chiu and W. Hawe 1984; 1 when all are equal, or there are none."""
    values = list(shares)
    squares = sum(value * value for value in values)
    return round(sum(values) ** 2 / (len(values) * squares), 4) if squares else 1.0


def _part(of: float, whole: float) -> float:
    return round(of / whole, 4) if whole else 0.0
