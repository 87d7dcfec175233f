"""Seconds from starting `python -m trainer` by hand to its first finished step, with the phases in between.

`python -m tests.bench.trainer_startup [--rounds 3] [--processes 2]`: medians; the first round also pays for cold files.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]


def job(processes: int) -> dict:
    return {
        "name": "startup",
        "resources": {"nodes": 1, "processes_per_node": processes},
        "training": {
            "model": {"preset": "llama-1m"},
            "data": {"source": "builtin:python-stdlib"},
            "steps": 2,
            "tokens_per_step": 8192,
            "sequence_length": 256,
            "schedule": {"warmup_steps": 0},
        },
    }


def start_once(folder: Path, processes: int) -> dict[str, float]:
    """Phases by name, and `total`: process start to the end of the first step."""
    (folder / "job.yaml").write_text(yaml.safe_dump(job(processes)))
    begin = datetime.now(UTC)
    subprocess.run(
        [sys.executable, "-m", "trainer", "job.yaml", "--output", "out"],
        cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=True, capture_output=True,
    )  # fmt: skip
    found = {}
    for event in map(json.loads, (folder / "out" / "progress.jsonl").read_text().splitlines()):
        if event["type"] == "phase.finished":
            found[event["data"]["phase"]] = event["data"]["seconds"]
            if event["data"]["phase"] == "first_step":
                found["total"] = (datetime.fromisoformat(event["time"]) - begin).total_seconds()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--processes", type=int, default=2)
    arguments = parser.parse_args()
    rounds = []
    for _ in range(arguments.rounds):
        with tempfile.TemporaryDirectory() as folder:
            rounds.append(start_once(Path(folder), arguments.processes))
    medians = {phase: statistics.median(found[phase] for found in rounds) for phase in rounds[0]}
    for phase, seconds in medians.items():
        sys.stdout.write(f"{phase:>12} {seconds:>8.2f} s\n")
    sys.stdout.write(json.dumps({"trainer_startup_seconds": medians}) + "\n")


if __name__ == "__main__":
    main()
