"""Recovery time: each part of the platform is killed with SIGKILL, and its supervisor restarts it immediately. Measures
the time from the kill until a job submitted after it has completed. A job of the fake backend takes 0.05 s.
"""

import os
import threading
import time
from typing import Any

from tests.bench.platform_stack import private_stack
from tests.chaos.ledger import Ledger
from tests.chaos.outages import kill_and_recover
from tests.chaos.run import prepare
from tests.chaos.script import SERVICES, JobScript, Twist
from tests.chaos.user import User
from tests.chaos.world import World

ROUNDS = 3
SLOTS = 4
TICK_SECONDS = 0.05


def measure() -> dict[str, Any]:
    ledger, closing = Ledger(), threading.Event()
    jobs = {number: JobScript(number, 1, (), Twist.NONE, 0.0, 0.0) for number in range(100)}
    numbers = iter(jobs.values())
    world = World(ledger, jobs, seed=None, tick_seconds=TICK_SECONDS)
    try:
        with private_stack() as stack:
            prepare(stack, {"calm": (world, SLOTS)})
            user = User(stack, ledger, closing)

            def works() -> None:
                user.run_to_the_end(next(numbers), "calm")

            works()  # the first one warms up what is loaded on first use
            healthy = [_timed(works) for _ in range(ROUNDS)]
            seconds: dict[str, list[float]] = {service: [] for service in SERVICES}
            for _ in range(ROUNDS):
                for service in SERVICES:
                    recovery = kill_and_recover(stack, service, 0.0, pause=closing.wait, works=works)
                    seconds[service].append(recovery.seconds)
    finally:
        closing.set()
        world.close()
    return {"healthy_seconds": healthy, "seconds": seconds, "load": os.getloadavg()[0]}


def _timed(works: Any) -> float:
    began = time.monotonic()
    works()
    return time.monotonic() - began


def lines(figures: dict[str, Any]) -> list[str]:
    rows = [f"  a job from submit to success, nothing wrong: {_range(figures['healthy_seconds'])}"]
    rows += [f"  {service:<9} killed: {_range(seconds)}" for service, seconds in figures["seconds"].items()]
    return rows


def _range(seconds: list[float]) -> str:
    return f"{min(seconds):.1f} to {max(seconds):.1f} s"


if __name__ == "__main__":
    print("\n".join(lines(measure())))
