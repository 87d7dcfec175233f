"""One observation sweep over live attempts of one cluster, on the fake backend. Aim: 50,000 in 30 s, and memory that
does not grow with their number, which a sweep over a tenth of them shows.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from athanor.core.encryption import new_wrapping_keyset
from deploy.local.environment import REPOSITORY
from deploy.local.handle import StackHandle
from tests.bench.platform_stack import settings_of

MANY, FEW = 50_000, 5_000


def measure() -> dict[str, Any]:
    return {"many": _sweeps(MANY), "few": _sweeps(FEW), "aim_seconds": 30, "load": os.getloadavg()[0]}


def _sweeps(attempts: int) -> dict[str, Any]:
    """On stores alone: a worker of a whole stack would sweep too, and know nothing of this process's world."""
    with tempfile.TemporaryDirectory(prefix="athanor-bench-") as folder:
        Path(folder).chmod(0o755)  # under root PostgreSQL runs as another user
        stack = StackHandle(Path(folder) / "data")
        stack.up(only_stores=True)
        try:
            return _run(stack, attempts)
        finally:
            stack.down()


def _run(stack: StackHandle, attempts: int) -> dict[str, Any]:
    environment = {
        **stack.environment,
        **settings_of(stack),
        "ATHANOR_SECRET_KEY": "bench",
        "ATHANOR_MASTER_KEY": new_wrapping_keyset(),
        "DJANGO_SETTINGS_MODULE": "athanor.config.settings",
        "PYTHONPATH": os.pathsep.join([str(REPOSITORY / "platform"), str(REPOSITORY)]),
    }
    _program(environment, str(attempts))
    figures: dict[str, Any] = json.loads(_program(environment))
    return figures


def _program(environment: dict[str, str], *arguments: str) -> str:
    command = [sys.executable, "-m", "tests.bench.observe_rows", *arguments]
    done = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"the sweeps failed: {done.stderr[-2000:]}")
    return done.stdout


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
