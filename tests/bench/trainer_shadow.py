"""Shadow checkpoints: what they cost in a step, and how long a killed worker holds up training.

`python -m tests.bench.trainer_shadow [--processes 4] [--kills 8] [--rounds 3] [--steps 30]
[--tokens 16384]`

- `step`: the same run with shadow checkpoints after each step, at most 3 % of the time (`auto`), and without them, in
  turns; stored checkpoints every 10 steps are included. Median of CPU seconds of all processes per step, which on a
  shared machine say more than the clock, and the time that training waited for copies.
- `recovery`: a random rank is killed with SIGKILL at a random moment, again and again; seconds from the kill until the
  first step that was not done before it, and the finished steps that were taken twice. With shadow checkpoints, and
  with stored ones alone.
"""

import argparse
import json
import os
import random
import signal
import statistics
import sys
import tempfile
import threading
import time
from datetime import datetime
from pathlib import Path
from typing import Any

from tests.bench.trainer_throughput import SHAPE, WARM_UP_STEPS, differences, measured_worker
from trainer.agent import worker_group
from trainer.agent.supervisor import NodeConfig, Supervisor
from trainer.agent.worker_process import run_worker
from trainer.client.local import LocalPlatform, LocalSettings
from trainer.contract.run import EndClass
from trainer.contract.training import CheckpointPolicy, ProcessLayout, TrainingSpec
from trainer.resilience.assignment import FolderConnection
from trainer.resilience.forking import start_fork_server

SAVE_EVERY = 10
INTERVALS: list[int | str] = ["none", 1, "auto"]
PAUSE_STEPS = 12  # between a recovery and the next kill: a stored checkpoint is among them


def training_spec(steps: int, tokens: int) -> TrainingSpec:
    return TrainingSpec.model_validate(
        {
            "model": {"shape": SHAPE},
            "data": {"source": "builtin:python-stdlib"},
            "steps": steps,
            "tokens_per_step": tokens,
            "sequence_length": 256,
            "parallelism": {"micro_batch_sequences": 4},
            "schedule": {"warmup_steps": 0},
            "evaluation": {"every_steps": 100_000, "sequences": 1},
        }
    )


def supervisor_of(
    steps: int, tokens: int, processes: int, interval: int | str, restarts: int, output: Path, cache: Path
) -> Supervisor:
    policy = CheckpointPolicy(every_steps=SAVE_EVERY, shadow_every_steps=interval)  # type: ignore[arg-type]
    settings = LocalSettings(
        training_spec(steps, tokens), ProcessLayout(processes_per_node=processes), policy, restarts
    )
    place = NodeConfig(output / "work", cache=cache)
    return Supervisor(FolderConnection(output, settings), LocalPlatform(output, settings), place)


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def cost(steps: int, tokens: int, processes: int, interval: int | str, folder: Path) -> dict[str, list[float]]:
    """Of each step: CPU seconds of all processes, and the seconds that training waited for its copy."""
    worker_group.run_worker = measured_worker  # type: ignore[assignment] # as the tests do
    output = Path(tempfile.mkdtemp(dir=folder))
    end_class = supervisor_of(steps + WARM_UP_STEPS, tokens, processes, interval, 1, output, folder / "cache").run()
    assert end_class is EndClass.COMPLETED, (output / "end.json").read_text()
    ranks = [json.loads((output / "work" / f"{rank}-cpu_seconds.json").read_text()) for rank in range(processes)]
    values = [point["values"] for point in lines_of(output / "metrics.jsonl") if "train/loss" in point["values"]]
    return {
        "cpu": [sum(step) for step in zip(*map(differences, ranks), strict=True)],
        "seconds": [each["time/step_seconds"] for each in values][WARM_UP_STEPS:],
        "waits": [each.get("time/shadow_seconds", 0.0) for each in values][WARM_UP_STEPS:],
    }


def recoveries(kills: int, tokens: int, processes: int, interval: int | str, folder: Path) -> list[tuple[float, int]]:
    """Return for each kill (seconds until the first new step, finished steps that were taken twice)."""
    worker_group.run_worker = run_worker
    output = Path(tempfile.mkdtemp(dir=folder))
    supervisor = supervisor_of(100_000, tokens, processes, interval, kills, output, folder / "cache")
    found: list[tuple[float, int]] = []
    killer = threading.Thread(target=_kill_often, args=(supervisor, processes, kills, output, found), daemon=True)
    killer.start()
    supervisor.run()
    killer.join()
    return found


def _kill_often(
    supervisor: Supervisor, processes: int, kills: int, output: Path, found: list[tuple[float, int]]
) -> None:
    def wait_for_step(step: int, generation: int) -> None:
        while (
            supervisor.worker_group is None
            or supervisor.worker_group._assignments[0].restart_count != generation
            or supervisor.worker_group.progress()[0] < step
        ):
            time.sleep(0.001)

    step = PAUSE_STEPS
    for generation in range(kills):
        wait_for_step(step, generation)
        group = supervisor.worker_group
        assert group is not None
        time.sleep(random.uniform(0.0, 0.5))
        before, killed_at = group.progress()[0], time.time()
        os.kill(group._forked[random.randrange(processes)].process.pid or 0, signal.SIGKILL)
        wait_for_step(before + 1, generation + 1)
        seconds = time.time() - killed_at
        restored = [each["data"]["step"] for each in _events(output, "checkpoint.restored", killed_at)]
        found.append((seconds, before - (restored[0] if restored else 0)))
        step = before + PAUSE_STEPS
    supervisor.request_stop(None)


def _events(output: Path, kind: str, since: float) -> list[dict[str, Any]]:
    """Return the events of a type that were reported after a time; waits for one."""
    deadline = time.monotonic() + 10.0
    while time.monotonic() < deadline:
        events = lines_of(output / "progress.jsonl")
        found = [each for each in events if each["type"] == kind]
        found = [each for each in found if datetime.fromisoformat(each["time"]).timestamp() >= since]
        if found:
            return found
        time.sleep(0.05)
    return []


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--kills", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--tokens", type=int, default=16_384)
    arguments = parser.parse_args()
    start_fork_server()
    results: dict[str, Any] = {"steps": {}, "recoveries": {}}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        taken: dict[str, dict[str, list[float]]] = {}
        for _ in range(arguments.rounds):
            for interval in INTERVALS:
                found = cost(arguments.steps, arguments.tokens, arguments.processes, interval, folder)
                for kind, values in found.items():
                    taken.setdefault(str(interval), {}).setdefault(kind, []).extend(values)
        for label, found in taken.items():
            cpu, base = statistics.mean(found["cpu"]), statistics.mean(taken["none"]["cpu"])
            wait, step = statistics.mean(found["waits"]), statistics.mean(found["seconds"])
            copies = sum(wait > 0.0 for wait in found["waits"])
            results["steps"][label] = {
                "cpu_seconds": cpu, "of_none": cpu / base, "seconds": step, "wait_seconds": wait,
                "copies": copies / len(found["waits"]),
            }  # fmt: skip
            print(
                f"shadow {label:>5}: {cpu:.3f} CPU s a step ({cpu / base - 1:+.1%}), {step:.3f} s, of which it waits "
                f"{wait * 1000:.1f} ms ({wait / step:.2%}); copies after {copies / len(found['waits']):.0%} of steps",
                flush=True,
            )
        for interval in INTERVALS if arguments.kills else []:
            pairs = recoveries(arguments.kills, arguments.tokens, arguments.processes, interval, folder)
            seconds, lost = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
            results["recoveries"][str(interval)] = {"seconds": seconds, "steps_lost": lost}
            print(
                f"shadow {interval!s:>5}: {len(pairs)} kills, new step after p50 {percentile(seconds, 0.5):.2f} s, p95 "
                f"{percentile(seconds, 0.95):.2f} s, steps lost {min(lost)} to {max(lost)}",
                flush=True,
            )
    print(f"load {os.getloadavg()[0]:.1f}")
    sys.stdout.write(json.dumps({"trainer_shadow": results}) + "\n")


if __name__ == "__main__":
    main()
