"""Generate realistic job histories: busy days and quiet nights, few large jobs and many small ones. Pure."""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

from athanor.scheduling.simulator.engine import PastJob

DAY = 86_400
PRIORITIES = (-10, 0, 10)
PRIORITY_WEIGHTS = (0.25, 0.65, 0.10)
WEEKEND = 0.4


@dataclass(frozen=True, slots=True)
class Submitter:
    """A team that submits jobs: its weight among all jobs, its pools, and the median run time in seconds."""

    node: str
    pools: tuple[str, ...]
    weight: float = 1.0
    median_seconds: int = 3600


def generate(
    submitters: Sequence[Submitter],
    *,
    days: int,
    jobs_per_day: int,
    largest: int,
    seed: int = 0,
    spread: float = 1.2,
    limited: float = 0.8,
) -> list[PastJob]:
    """Return generated jobs.

    Arrivals follow the hour (most at 14:00) and the weekday; sizes are powers of two, each about half as frequent as
    the one before; run times are lognormal with sigma `spread`; a share `limited` of the jobs has a time limit.
    """
    draw = random.Random(seed)  # noqa: S311 - a repeatable past, no secret
    sizes = [2**power for power in range(largest.bit_length()) if 2**power <= largest]
    size_weights = [0.55**power for power in range(len(sizes))]
    weights = [submitter.weight for submitter in submitters]
    jobs = []
    for number, at in enumerate(_arrivals(draw, days, jobs_per_day)):
        submitter = draw.choices(submitters, weights)[0]
        lasts = max(30, min(7 * DAY, int(submitter.median_seconds * math.exp(draw.gauss(0.0, spread)))))
        limit = int(lasts * draw.uniform(1.1, 3.0)) if draw.random() < limited else None
        pool = submitter.pools[draw.randrange(len(submitter.pools))]
        slots = draw.choices(sizes, size_weights)[0]
        priority = draw.choices(PRIORITIES, PRIORITY_WEIGHTS)[0]
        jobs.append(PastJob(f"job-{number:07}", at, submitter.node, pool, slots, lasts, limit, priority))
    return jobs


def _arrivals(draw: random.Random, days: int, jobs_per_day: int) -> list[int]:
    hours = [1.0 + 0.9 * math.cos((hour - 14) / 24 * 2 * math.pi) for hour in range(24)]
    slots = [WEEKEND * hour if day % 7 >= 5 else hour for day in range(days) for hour in hours]
    chosen = draw.choices(range(len(slots)), slots, k=days * jobs_per_day)
    return sorted(hour * 3600 + draw.randrange(3600) for hour in chosen)
