"""Memory of the idle stack: the sum of PSS, so that pages shared between processes count once.

Aim: at most 900 MB.
"""

import json
import time
from typing import Any

from tests.bench.platform_stack import api, private_stack

SETTLE_SECONDS = 20.0  # the sweepers have run a few times by then; memory right after the start says little


def measure() -> dict[str, Any]:
    with private_stack() as stack:
        with api(stack) as client:
            client.get("/jobs").raise_for_status()
        time.sleep(SETTLE_SECONDS)
        report = json.loads(stack.run("status", "--json").stdout)
    services = {name: entry["memory_bytes"] / 1e6 for name, entry in report["services"].items()}
    return {"total_mb": sum(services.values()), "services_mb": services, "aim_mb": 900}


def lines(figures: dict[str, Any]) -> list[str]:
    rows = [f"  {name:<14} {value:7.0f} MB" for name, value in figures["services_mb"].items()]
    return [*rows, f"  {'idle stack':<14} {figures['total_mb']:7.0f} MB   aim <= {figures['aim_mb']} MB"]


if __name__ == "__main__":
    print("\n".join(lines(measure())))
