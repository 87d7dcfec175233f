"""Admission with PostgreSQL: Kueue's published performance test in numbers, and one cycle over a great many jobs.

Kueue took 351 s for its 15,000 workloads on its own testbed (about 43 a second), of which 66 s is the least that the
slots allow; time passes as fast as ours can admit here, so the figures say how fast each decides, not which machine.
"""

import json
import os
from typing import Any

from tests.bench.platform_stack import stores_alone

AIM_PER_SECOND, AIM_CYCLE_SECONDS = 500, 2.0
MANY_JOBS, MANY_QUEUES = 100_000, 1000


def measure() -> dict[str, Any]:
    return {
        "kueue": _on_stores("kueue"),
        "cycle": _on_stores("cycles", str(MANY_JOBS), str(MANY_QUEUES)),
        "load": os.getloadavg()[0],
    }


def _on_stores(*arguments: str) -> dict[str, Any]:
    with stores_alone() as run:
        figures: dict[str, Any] = json.loads(run("tests.bench.admission_rows", *arguments))
        return figures


def lines(figures: dict[str, Any]) -> list[str]:
    many, cycle = figures["kueue"], figures["cycle"]
    return [
        f"  {many['jobs']:,} jobs, 30 queues of 5 cohorts, 600 slots: {many['admissions_per_second']:.0f} admissions/s "
        f"in {many['seconds']:.0f} s (aim {AIM_PER_SECOND}), {many['decisions_per_second']:.0f} decisions/s in "
        f"{many['cycles']} cycles",
        f"  a cycle over {cycle['jobs']:,} waiting jobs of {cycle['queues']:,} queues: "
        f"{cycle['median_seconds']:.2f} s, longest {cycle['longest_seconds']:.2f} (aim {AIM_CYCLE_SECONDS:g})",
    ]
