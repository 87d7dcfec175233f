"""Time from `athanor submit` to the end of the first step on a real Slurm, against `sbatch` of the trainer by hand.

Both sides alternate in one run and prepare the data again in each round (with another vocabulary). Target: the platform
takes at most 3 s longer.
"""

import json
import shlex
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx

from deploy.local.administrator import Administrator
from deploy.local.environment import REPOSITORY
from deploy.local.handle import wait_until
from tests.bench.platform_first_step import by_platform, first_step_of
from tests.bench.platform_stack import api, private_stack, small_job
from tests.e2e.administration import registered
from tests.slurm.cluster import SlurmCluster, missing, slurm_cluster

ROUNDS = 5
AGENT = [sys.executable, "-m", "trainer.agent"]
PATHS = {"PYTHONPATH": str(REPOSITORY)}


def measure() -> dict[str, Any]:
    if why := missing():
        raise RuntimeError(why)
    platform, hand = [], []
    with slurm_cluster() as slurm, private_stack() as stack, api(stack) as client:
        config = slurm.config(command=AGENT, profile={"environment": PATHS})
        with registered(Administrator(stack.credentials), stack.data_dir, "slurm", "slurm", config):
            _on_slurm(client, 1000)  # the first job also pays for the platform's own first steps
            for round_number in range(ROUNDS):
                vocabulary = 2048 - round_number
                platform.append(_on_slurm(client, vocabulary))
                hand.append(_by_hand(slurm, vocabulary))
    by, without = statistics.median(platform), statistics.median(hand)
    return {
        "platform_seconds": by,
        "by_hand_seconds": without,
        "difference_seconds": by - without,
        "rounds": {"platform": platform, "by_hand": hand},
        "aim_difference_seconds": 3,
    }


def _on_slurm(client: httpx.Client, vocabulary: int) -> float:
    job = small_job(vocabulary)
    return by_platform(client, {**job, "resources": {**job.get("resources", {}), "cluster": "slurm"}})


def _by_hand(slurm: SlurmCluster, vocabulary: int) -> float:
    with tempfile.TemporaryDirectory() as folder:
        spec, output = Path(folder) / "job.yaml", Path(folder) / "run"
        spec.write_text(json.dumps(small_job(vocabulary)))
        command = shlex.join([sys.executable, "-m", "trainer", str(spec), "--output", str(output)])
        script = f"#!/bin/bash\nexport PYTHONPATH={shlex.quote(str(REPOSITORY))}\nsrun {command}\n"
        began = time.time()
        job_id = slurm.run(
            "sbatch", "--parsable", "--partition=main", "--cpus-per-task=2", "--output=/dev/null", text=script
        ).strip()
        wait_until(
            lambda: slurm.run("squeue", "-h", "-j", job_id, "-o", "%T", check=False).strip() in ("", "COMPLETED"),
            f"job {job_id} ends", 300,
        )  # fmt: skip
        return first_step_of(output) - began


def lines(figures: dict[str, Any]) -> list[str]:
    return [
        f"  on Slurm: submit to first step {figures['platform_seconds']:.1f} s, by sbatch "
        f"{figures['by_hand_seconds']:.1f} s: {figures['difference_seconds']:+.1f} s "
        f"(aim <= +{figures['aim_difference_seconds']} s)"
    ]


if __name__ == "__main__":
    print("\n".join(lines(measure())))
