"""Latency of POST /jobs with 8 clients at once. Aim: p50 <= 50 ms, p99 <= 200 ms.

The Celery worker is suspended meanwhile: the jobs would start to train and the figure would be theirs. Web,
PostgreSQL and Valkey (which takes the hints) are as they always are.
"""

import statistics
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from deploy.local.handle import StackHandle
from tests.bench.platform_stack import api, private_stack, small_job

CLIENTS = 8
SUBMITS_PER_CLIENT = 40
WARM_UP = 5


def measure() -> dict[str, Any]:
    with private_stack() as stack:
        stack.suspend("worker")
        try:
            with ThreadPoolExecutor(CLIENTS) as pool:
                began = time.monotonic()
                latencies = [s for part in pool.map(_submit_many, [stack] * CLIENTS) for s in part]
                seconds = time.monotonic() - began
        finally:
            stack.resume("worker")
    ordered = sorted(latencies)
    return {
        "clients": CLIENTS,
        "requests": len(ordered),
        "p50_ms": statistics.median(ordered) * 1e3,
        "p99_ms": ordered[int(len(ordered) * 0.99)] * 1e3,
        "requests_per_second": (len(ordered) + CLIENTS * WARM_UP) / seconds,
        "aim_ms": {"p50": 50, "p99": 200},
    }


def _submit_many(stack: StackHandle) -> list[float]:
    latencies = []
    with api(stack) as client:
        for number in range(WARM_UP + SUBMITS_PER_CLIENT):
            began = time.perf_counter()
            answer = client.post("/jobs", json=small_job(), headers={"Idempotency-Key": str(uuid.uuid4())})
            taken = time.perf_counter() - began
            answer.raise_for_status()
            if number >= WARM_UP:
                latencies.append(taken)
    return latencies


def lines(figures: dict[str, Any]) -> list[str]:
    aim = figures["aim_ms"]
    return [
        f"  {figures['requests']} submits by {figures['clients']} clients: p50 {figures['p50_ms']:.0f} ms "
        f"(aim <= {aim['p50']}), p99 {figures['p99_ms']:.0f} ms (aim <= {aim['p99']}), "
        f"{figures['requests_per_second']:.0f} per second"
    ]


if __name__ == "__main__":
    print("\n".join(lines(measure())))
