"""Admission as a pure function: decisions a second, a pass over many queues, and a year of jobs in the simulator.

The first shape is that of Kueue's published performance test (test/performance/scheduler/configs/baseline in its
repository): 15,000 workloads of three sizes in 30 queues of 5 cohorts.
"""

import random
import time
from typing import Any

from athanor.quotas.capacity import CapacityGrant, CapacityNode
from athanor.scheduling.policy.cycle import decide
from athanor.scheduling.policy.snapshot import Pool, Snapshot, Waiting
from athanor.scheduling.simulator.engine import Plan, simulate
from athanor.scheduling.simulator.workload import Submitter, generate

ROUNDS = 3
SIZES = {1: 50, 5: 100, 20: 200}
"""Slots -> priority, as there."""
DAYS = 365
JOBS_PER_DAY = 1000
YEAR_SLOTS = 900


def tree(groups: int, teams: int, nominal: int) -> list[CapacityNode]:
    nodes = [CapacityNode("organisation", "organisation")]
    nodes += [CapacityNode(f"group-{number:03}", f"group-{number:03}", "organisation") for number in range(groups)]
    for number in range(teams):
        name = f"team-{number:04}"
        nodes.append(CapacityNode(name, name, f"group-{number % groups:03}", grants={"h100": CapacityGrant(nominal)}))
    return nodes


def queues(groups: int, teams: int, waiting: int, slots: int) -> Snapshot:
    draw = random.Random(1)
    jobs = []
    for number in range(waiting):
        size = draw.choices(list(SIZES), [70, 20, 10])[0]
        lasts = draw.choice([60, 600, 3600])
        team = f"team-{number % teams:04}"
        jobs.append(Waiting(f"job-{number:07}", team, "gpu", size, SIZES[size], lasts_seconds=lasts))
    return Snapshot(tree(groups, teams, max(1, slots // teams)), [Pool("gpu", "gpu", "h100", slots, slots)], [], jobs)


def _best(snapshot: Snapshot) -> float:
    taken = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        made = decide(snapshot)
        taken.append(time.perf_counter() - began)
        assert len(made) == len(snapshot.waiting)
    return min(taken)


def measure() -> dict[str, Any]:
    baseline, many = queues(5, 30, 15_000, 600), queues(50, 1000, 100_000, 10_000)
    seconds = _best(baseline)
    teams = [Submitter(f"team-{number:04}", ("gpu",), weight=1.0 + number % 3) for number in range(30)]
    began = time.perf_counter()
    jobs = generate(teams, days=DAYS, jobs_per_day=JOBS_PER_DAY, largest=64)
    generated = time.perf_counter() - began
    nodes = tree(5, 30, YEAR_SLOTS // 30)
    began = time.perf_counter()
    outcome = simulate(Plan(nodes, [Pool("gpu", "gpu", "h100", YEAR_SLOTS, YEAR_SLOTS)]), jobs)
    year = time.perf_counter() - began
    assert all(record.ended is not None for record in outcome.records)
    return {
        "baseline_seconds": seconds,
        "baseline_decisions_per_second": len(baseline.waiting) / seconds,
        "many_queues_seconds": _best(many),
        "year_seconds": year,
        "year_generated_seconds": generated,
        "year_jobs": len(jobs),
        "year_passes": outcome.passes,
    }


def lines(figures: dict[str, Any]) -> list[str]:
    return [
        f"  15,000 waiting in 30 queues of 5 groups: {figures['baseline_seconds'] * 1000:.0f} ms, "
        f"{figures['baseline_decisions_per_second']:,.0f} decisions/s",
        f"  100,000 waiting in 1,000 queues: {figures['many_queues_seconds']:.2f} s a pass",
        f"  a year of {figures['year_jobs']:,} jobs simulated: {figures['year_seconds']:.1f} s "
        f"({figures['year_passes']:,} passes; made up in {figures['year_generated_seconds']:.1f} s)",
    ]
