"""`make bench`: every figure side by side in one run, as tables and as test-results/bench.json."""

import argparse
import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from deploy.local.environment import REPOSITORY
from tests.bench import (
    demo_times,
    estimates,
    platform_admission,
    platform_estimates,
    platform_first_step,
    platform_followers,
    platform_idle,
    platform_lists,
    platform_migrations,
    platform_observe,
    platform_recovery,
    platform_rendezvous,
    platform_slow_clients,
    platform_submits,
    platform_telemetry,
    policy,
    slurm_first_step,
    slurm_jobs,
)

RESULTS = REPOSITORY / "test-results" / "bench.json"
Measure = tuple[str, Callable[[], dict[str, Any]], Callable[[dict[str, Any]], list[str]]]
PLATFORM: list[Measure] = [
    ("idle stack", platform_idle.measure, platform_idle.lines),
    ("submits per second", platform_submits.measure, platform_submits.lines),
    ("followers of streams", platform_followers.measure, platform_followers.lines),
    ("rendezvous of many nodes", platform_rendezvous.measure, platform_rendezvous.lines),
    ("lists among many jobs", platform_lists.measure, platform_lists.lines),
    ("locks of migrations", platform_migrations.measure, platform_migrations.lines),
    ("admission", platform_admission.measure, platform_admission.lines),
    ("observation sweep", platform_observe.measure, platform_observe.lines),
    ("recovery after kills", platform_recovery.measure, platform_recovery.lines),
    ("healthy requests beside slow clients", platform_slow_clients.measure, platform_slow_clients.lines),
    ("telemetry", platform_telemetry.measure, platform_telemetry.lines),
    ("policy of admission", policy.measure, policy.lines),
    ("accuracy of start estimates", estimates.measure, estimates.lines),
    ("accuracy of plans on real runs", platform_estimates.measure, platform_estimates.lines),
    ("jobs on Slurm", slurm_jobs.measure, slurm_jobs.lines),
    ("submit to first step", platform_first_step.measure, platform_first_step.lines),
    ("submit to first step on Slurm", slurm_first_step.measure, slurm_first_step.lines),
]
TRAINER = {
    "trainer throughput": ["trainer_throughput"],
    "trainer throughput, compiled": ["trainer_throughput", "--compiled-only", "--rounds", "1", "--processes", "1", "2"],
    "trainer axes": ["trainer_axes"],
    "trainer memory": ["trainer_memory"],
    "trainer gradient compression": ["gradient_compression"],
    "trainer scale": ["trainer_scale"],
    "trainer saves": ["trainer_saves"],
    "trainer restores": ["trainer_restore"],
    "trainer shadow checkpoints": ["trainer_shadow"],
    "trainer copies on other nodes": ["trainer_replicas"],
    "trainer preparation": ["trainer_preparation"],
    "trainer data report": ["trainer_data_report"],
    "trainer loss": ["trainer_loss"],
}
"""Title -> module and arguments; each runs in a process of its own, whose last line is JSON."""
DEMO: Measure = ("make demo", demo_times.measure, demo_times.lines)


def run_apart(command: list[str]) -> dict[str, Any]:
    """Its figures, or none where it failed; what it prints is shown as it comes."""
    module, *arguments = command
    with subprocess.Popen(
        [sys.executable, "-u", "-m", f"tests.bench.{module}", *arguments],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        last = ""
        for line in process.stdout:
            last = line
            if not line.startswith("{"):
                print(f"  {line}", end="", flush=True)
    if process.returncode != 0:
        print(f"  NOT MEASURED: exit status {process.returncode}", flush=True)
        return {}
    figures: dict[str, Any] = json.loads(last)
    return figures


def main() -> int:
    parser = argparse.ArgumentParser(prog="make bench")
    parser.add_argument("--demo", action="store_true", help="also time `make demo` in a clean clone, twice")
    parser.add_argument("--only", help="only figures whose title holds this text")
    options = parser.parse_args()
    print(f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} before the run", flush=True)
    figures: dict[str, Any] = {"cores": os.cpu_count(), "load_before": os.getloadavg()[0]}
    failed = False
    for title, measure, lines in [*PLATFORM, *([DEMO] if options.demo else [])]:
        if options.only and options.only not in title:
            continue
        print(f"\n{title}", flush=True)
        try:
            figures[title] = measure()
        except (RuntimeError, AssertionError, OSError) as error:
            failed = True
            print(f"  NOT MEASURED: {error}", flush=True)
        else:
            print("\n".join(lines(figures[title])), flush=True)
    for title, command in TRAINER.items():
        if options.only and options.only not in title:
            continue
        print(f"\n{title}", flush=True)
        found = run_apart(command)
        figures |= found
        failed |= not found
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(figures, indent=2) + "\n")
    print(f"\nfigures in {RESULTS.relative_to(REPOSITORY)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
