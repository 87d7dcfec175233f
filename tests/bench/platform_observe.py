"""One observation sweep over live attempts of one cluster, on the fake backend. Aim: 50,000 in 30 s, and memory that
does not grow with their number, which a sweep over a tenth of them shows.
"""

import json
import os
from typing import Any

from tests.bench.platform_stack import stores_alone

MANY, FEW = 50_000, 5_000


def measure() -> dict[str, Any]:
    return {"many": _sweeps(MANY), "few": _sweeps(FEW), "aim_seconds": 30, "load": os.getloadavg()[0]}


def _sweeps(attempts: int) -> dict[str, Any]:
    """On stores alone: a worker of a whole stack would sweep too, and know nothing of this process's world."""
    with stores_alone() as run:
        run("tests.bench.observe_rows", str(attempts))
        figures: dict[str, Any] = json.loads(run("tests.bench.observe_rows"))
        return figures


def lines(figures: dict[str, Any]) -> list[str]:
    rows = []
    for size in ("many", "few"):
        for name in ("first", "quiet", "ends", "empty"):
            sweep, attempts = figures[size][name], figures[size]["attempts"]
            rows.append(
                f"  {attempts:>6} live attempts, {sweep['what']:<36} {sweep['seconds']:6.1f} s "
                f"({sweep['processor_seconds']:.1f} s of processor here), peak +{sweep['peak_above_mb']:.0f} MB"
            )
    return [*rows, f"  aim: <= {figures['aim_seconds']} s for {MANY}, memory that does not grow"]


if __name__ == "__main__":
    print("\n".join(lines(measure())))
