"""The idle stack: memory as the sum of PSS, so that pages shared between processes count once, CPU and writes.

Aims: at most 900 MB, at most 1 % of a core.
"""

import json
import time
from typing import Any

import psutil

from deploy.local.handle import StackHandle
from tests.bench.platform_stack import api, private_stack, processor_seconds

SETTLE_SECONDS = 20.0  # the sweepers have run a few times by then; memory right after the start says little
IDLE_SECONDS = 120.0  # over which CPU and writes are counted: idle time is what is measured


def measure() -> dict[str, Any]:
    with private_stack() as stack:
        with api(stack) as client:
            client.get("/jobs").raise_for_status()
        time.sleep(SETTLE_SECONDS)
        report = json.loads(stack.run("status", "--json").stdout)
        used, written = processor_seconds(stack, ("",)), _written_bytes(stack)
        time.sleep(IDLE_SECONDS)
        used, written = processor_seconds(stack, ("",)) - used, _written_bytes(stack) - written
    services = {name: entry["memory_bytes"] / 1e6 for name, entry in report["services"].items()}
    return {
        "total_mb": sum(services.values()),
        "services_mb": services,
        "aim_mb": 900,
        "cpu_percent_of_a_core": used / IDLE_SECONDS * 100,
        "written_kib_per_minute": written / 1024 / IDLE_SECONDS * 60,
        "aim_percent": 1.0,
    }


def _written_bytes(stack: StackHandle) -> int:
    """Return what the services have written to disks."""
    found = [stack.identity(name).process() for name in stack.state["services"]]
    processes: list[psutil.Process] = [each for one in found if one for each in [one, *one.children(recursive=True)]]
    return sum(each.io_counters().write_bytes for each in processes)


def lines(figures: dict[str, Any]) -> list[str]:
    rows = [f"  {name:<14} {value:7.0f} MB" for name, value in figures["services_mb"].items()]
    return [
        *rows,
        f"  {'idle stack':<14} {figures['total_mb']:7.0f} MB   aim <= {figures['aim_mb']} MB",
        f"  CPU: {figures['cpu_percent_of_a_core']:.2f} % of a core, aim <= {figures['aim_percent']:.0f} %",
        f"  written to disks: {figures['written_kib_per_minute']:.0f} KiB a minute",
    ]


if __name__ == "__main__":
    print("\n".join(lines(measure())))
