"""Time from `athanor submit` to the end of the first step, against `python -m trainer` on the same job by hand.

Both sides alternate in one run and prepare the data again in each round (with another vocabulary). The time of the step
is the timestamp of the trainer's metric. Target: the platform takes at most 3 s longer.
"""

import json
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx

from deploy.local.environment import REPOSITORY
from deploy.local.handle import wait_until
from tests.bench.platform_stack import api, private_stack, small_job

ROUNDS = 3
WAIT_SECONDS = 300.0
FINAL = {"succeeded", "failed", "cancelled", "expired"}


def measure() -> dict[str, Any]:
    on_platform, by_hand = [], []
    with private_stack() as stack, api(stack) as client:
        by_platform(client, small_job(1000))  # the first job also pays for the platform's own first steps
        for round_number in range(ROUNDS):
            vocabulary = 2048 - round_number
            on_platform.append(by_platform(client, small_job(vocabulary)))
            by_hand.append(_by_hand(vocabulary))
    platform, hand = statistics.median(on_platform), statistics.median(by_hand)
    return {
        "platform_seconds": platform,
        "by_hand_seconds": hand,
        "difference_seconds": platform - hand,
        "rounds": {"platform": on_platform, "by_hand": by_hand},
        "aim_difference_seconds": 3,
    }


def by_platform(client: httpx.Client, spec: dict[str, Any]) -> float:
    """Seconds until the first step of a job."""
    began = time.time()
    job_id = client.post("/jobs", json=spec).raise_for_status().json()["id"]

    def ended() -> bool:
        job = client.get(f"/jobs/{job_id}").raise_for_status().json()
        if job["status"] in FINAL - {"succeeded"}:
            raise RuntimeError(f"the benchmark's job is {job['status']}: {job['reason']}")
        return bool(job["status"] == "succeeded")

    wait_until(ended, f"{job_id} succeeds", WAIT_SECONDS)
    metrics = client.get(f"/jobs/{job_id}/metrics", params={"names": "train/loss"}).raise_for_status().json()
    return datetime.fromisoformat(metrics["series"]["train/loss"]["times"][0]).timestamp() - began


def _by_hand(vocabulary: int) -> float:
    with tempfile.TemporaryDirectory() as folder:
        spec = Path(folder) / "job.yaml"
        spec.write_text(json.dumps(small_job(vocabulary)))
        output = Path(folder) / "run"
        began = time.time()
        subprocess.run(
            [sys.executable, "-m", "trainer", str(spec), "--output", str(output)],
            cwd=REPOSITORY,
            check=True,
            stdout=subprocess.DEVNULL,
        )
        return first_step_of(output) - began


def first_step_of(output: Path) -> float:
    """When a standalone run ended its first step, in seconds since the epoch."""
    for path in sorted(output.rglob("metrics*.jsonl")):
        for line in path.read_text().splitlines():
            point = json.loads(line)
            if "train/loss" in point["values"]:
                return datetime.fromisoformat(point["time"]).timestamp()
    raise RuntimeError("python -m trainer wrote no train/loss")


def lines(figures: dict[str, Any]) -> list[str]:
    return [
        f"  submit to first step {figures['platform_seconds']:.1f} s, by hand {figures['by_hand_seconds']:.1f} s: "
        f"{figures['difference_seconds']:+.1f} s (aim <= +{figures['aim_difference_seconds']} s)"
    ]


if __name__ == "__main__":
    print("\n".join(lines(measure())))
