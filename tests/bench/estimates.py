"""Accuracy of start estimates, on four weeks of generated jobs.

Each job gets the platform's forecast when it first waits, computed from the runs that have ended by then; the admission
policy then continues with the real run times. A perfect forecast starts 50 % of the jobs by its P50 and 90 % by its
P90.
"""

import heapq
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from athanor.quotas.capacity import CapacityGrant, CapacityNode
from athanor.scheduling.policy.cycle import decide
from athanor.scheduling.policy.snapshot import Holding, Pool, Snapshot, Waiting
from athanor.scheduling.run_lengths import PastRun, RunTimes
from athanor.scheduling.simulator.engine import PastJob
from athanor.scheduling.simulator.workload import Submitter, generate
from athanor.scheduling.start_forecast import CalibrationFactors, Forecast, calibration_factors, forecasts

SLOTS, DAYS, JOBS_PER_DAY, FIRST_IN_LINE = 64, 28, 120, 60
TEAMS = ("vision", "speech", "product")
MAX_RUN_SECONDS = 7 * 86_400


@dataclass
class World:
    """The waiting and running jobs at `clock`, and the forecasts of jobs by id."""

    clock: int = 0
    waiting: dict[str, PastJob] = field(default_factory=dict)
    running: dict[str, tuple[PastJob, int]] = field(default_factory=dict)
    ended: dict[str, list[PastRun]] = field(default_factory=lambda: {team: [] for team in TEAMS})
    predicted: dict[str, tuple[int, Forecast]] = field(default_factory=dict)
    started: dict[str, int] = field(default_factory=dict)
    raw: dict[str, Forecast] = field(default_factory=dict)

    def calibration(self) -> CalibrationFactors:
        """Return the factors that follow from the forecasts of the jobs that have started."""
        return calibration_factors(
            [
                (raw.p50_seconds, raw.p90_seconds, self.started[job_id] - self.predicted[job_id][0])
                for job_id, raw in self.raw.items()
                if job_id in self.started and raw.p50_seconds is not None and raw.p90_seconds is not None
            ]
        )

    def snapshot(self) -> Snapshot:
        grant = {"h100": CapacityGrant(SLOTS // len(TEAMS))}
        return Snapshot(
            [CapacityNode("top", "organisation"), *(CapacityNode(team, team, "top", grants=grant) for team in TEAMS)],
            [Pool("gpu", "gpu", "h100", SLOTS, SLOTS)],
            [
                Holding(
                    job.id, job.node, job.pool, job.slots, job.priority, ran_seconds=self.clock - since,
                    ends_in_seconds=max(limit_of(job) - (self.clock - since), 0), stoppable=False,
                )
                for job, since in self.running.values()
            ],
            [
                Waiting(
                    job.id, job.node, job.pool, job.slots, job.priority, waited_seconds=self.clock - job.at,
                    lasts_seconds=limit_of(job),
                )
                for job in self.waiting.values()
            ],
        )  # fmt: skip


def limit_of(job: PastJob) -> int:
    return job.limit or MAX_RUN_SECONDS


def measure() -> dict[str, Any]:
    teams = [Submitter(team, ("gpu",), median_seconds=2400 + 1200 * number) for number, team in enumerate(TEAMS)]
    jobs = generate(teams, days=DAYS, jobs_per_day=JOBS_PER_DAY, largest=32, seed=7, limited=1.0)
    world = play(jobs)
    judged = [
        (world.started[job_id] - at, found)
        for job_id, (at, found) in world.predicted.items()
        if found.p50_seconds is not None and found.p90_seconds is not None
    ]
    late = sorted(abs(waited - (found.p50_seconds or 0)) for waited, found in judged)
    return {
        "jobs": len(jobs),
        "predicted": len(world.predicted),
        "judged": len(judged),
        "by_p50": sum(waited <= (found.p50_seconds or 0) for waited, found in judged) / len(judged),
        "by_p90": sum(waited <= (found.p90_seconds or 0) for waited, found in judged) / len(judged),
        "median_wait_seconds": sorted(waited for waited, _ in judged)[len(judged) // 2],
        "median_error_seconds": late[len(late) // 2],
        "load": os.getloadavg()[0],
    }


def play(jobs: Sequence[PastJob]) -> World:
    world = World()
    moments = [(job.at, 0, job.id) for job in jobs]
    by_id = {job.id: job for job in jobs}
    heapq.heapify(moments)
    while moments:
        world.clock, kind, job_id = heapq.heappop(moments)
        if kind == 0:
            world.waiting[job_id] = by_id[job_id]
        else:
            job, since = world.running.pop(job_id)
            world.ended[job.node].append(PastRun(world.clock - since, limit_of(job)))
        for decision in decide(world.snapshot()):
            if decision.admitted:
                job = world.waiting.pop(decision.job_id)
                world.running[job.id] = (job, world.clock)
                world.started[job.id] = world.clock
                heapq.heappush(moments, (world.clock + min(job.lasts, limit_of(job)), 1, job.id))
            elif decision.job_id == job_id and decision.position <= FIRST_IN_LINE:
                world.raw[job_id] = _forecast(world, job_id)
                world.predicted[job_id] = (world.clock, world.calibration().of(world.raw[job_id]))
    return world


def _forecast(world: World, job_id: str) -> Forecast:
    times = RunTimes(world.ended, [run for those in world.ended.values() for run in those])
    return forecasts(world.snapshot(), [job_id], times)[job_id]


def lines(figures: dict[str, Any]) -> list[str]:
    return [
        f"  {figures['judged']} of {figures['jobs']} jobs waited and got an estimate: {figures['by_p50']:.0%} had "
        f"started by their P50, {figures['by_p90']:.0%} by their P90 (perfect: 50 %, 90 %)",
        f"  median wait {figures['median_wait_seconds']} s, median error of P50 {figures['median_error_seconds']} s",
    ]
