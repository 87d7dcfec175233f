"""Accuracy of forecasts on real runs of the platform: start and duration as a plan shows them, and what follows.

Jobs of three lengths, with the default time limit, train one after the other on a private stack of two slots, so that
most of them wait. Each is planned just before it is submitted. A perfect forecast is met by 50 % at its P50 and by 90 %
at its P90. The first jobs of each length make the history from which durations are known.
"""

import statistics
import time
from datetime import datetime
from typing import Any

from deploy.local.handle import wait_until
from tests.bench.platform_first_step import FINAL
from tests.bench.platform_stack import api, private_stack, small_job

LENGTHS = (20, 60, 120)  # steps
HISTORY, ROUNDS = 2, 8  # jobs of each length
PAUSE_SECONDS = 6.0  # between submits
WAIT_SECONDS = 900.0


def measure() -> dict[str, Any]:
    with private_stack() as stack, api(stack) as client:
        for _ in range(HISTORY):
            _submit_and_wait(client)
        planned: list[tuple[str, dict[str, Any]]] = []
        for _ in range(ROUNDS):
            for steps in LENGTHS:
                spec = _spec(steps)
                plan = client.post("/jobs:plan", json=spec).raise_for_status().json()
                planned.append((client.post("/jobs", json=spec).raise_for_status().json()["id"], plan))
                time.sleep(PAUSE_SECONDS)  # the interval of the submits, not a wait for something
        jobs = [_ended(client, job_id) for job_id, _ in planned]
        waits = [_waited(client, job) for job in jobs]
    starts = [(waited, plan["start"]) for waited, (_, plan) in zip(waits, planned, strict=True)]
    runs = [(job["ran_seconds"], plan["expected"]) for job, (_, plan) in zip(jobs, planned, strict=True)]
    return {
        "jobs": len(jobs),
        "start": _judge([(waited, of) for waited, of in starts if of["p50_seconds"]]),
        "duration": _judge([(ran, of) for ran, of in runs if of is not None]),
    }


def _spec(steps: int) -> dict[str, Any]:
    resources = {"processes_per_node": 1, "accelerator": "cpu"}
    return {**small_job(steps=steps), "name": f"{steps}-steps", "resources": resources}


def _submit_and_wait(client: Any) -> None:
    made = [client.post("/jobs", json=_spec(steps)).raise_for_status().json()["id"] for steps in LENGTHS]
    for job_id in made:
        _ended(client, job_id)


def _ended(client: Any, job_id: str) -> dict[str, Any]:
    def read() -> dict[str, Any]:
        job: dict[str, Any] = client.get(f"/jobs/{job_id}").raise_for_status().json()
        return job

    wait_until(lambda: read()["status"] in FINAL, f"{job_id} ends", WAIT_SECONDS)
    job = read()
    if job["status"] != "succeeded":
        raise RuntimeError(f"the benchmark's job is {job['status']}: {job['reason']}")
    return job


def _waited(client: Any, job: dict[str, Any]) -> float:
    """Return the seconds from submission to admission, which is what a start is in a plan."""
    events = client.get(f"/jobs/{job['id']}/events").raise_for_status().json()["items"]
    admitted = next(
        each["time"] for each in events if each["type"] == "job.status" and each["data"]["to"] == "admitted"
    )
    return (datetime.fromisoformat(admitted) - datetime.fromisoformat(job["created_at"])).total_seconds()


def _judge(seen: list[tuple[float, dict[str, Any]]]) -> dict[str, float]:
    """Compare durations with the forecasts of them."""
    return {
        "forecasts": len(seen),
        "by_p50": statistics.mean(actual <= of["p50_seconds"] for actual, of in seen),
        "by_p90": statistics.mean(actual <= of["p90_seconds"] for actual, of in seen),
        "median_error_seconds": statistics.median(abs(actual - of["p50_seconds"]) for actual, of in seen),
        "median_seconds": statistics.median(actual for actual, _ in seen),
    }


def lines(figures: dict[str, Any]) -> list[str]:
    return [
        f"  {name:<8} {of['forecasts']} forecasts: {of['by_p50']:.0%} by the P50, {of['by_p90']:.0%} by the P90 "
        f"(perfect: 50 % and 90 %); median error {of['median_error_seconds']:.1f} s of {of['median_seconds']:.1f} s"
        for name, of in figures.items()
        if name != "jobs"
    ]


if __name__ == "__main__":
    print("\n".join(lines(measure())))
