"""Shadow checkpoints: what they cost in a step, and how long a killed worker holds up training.

`python -m tests.bench.trainer_shadow [--processes 4] [--kills 8] [--rounds 3] [--steps 30]
[--tokens 16384]`

- `step`: the same run with shadow checkpoints after each step, at most 3 % of the time (`auto`), and without them, in
  turns; stored checkpoints every 10 steps are included. Median of CPU seconds of all processes per step, which on a
  shared machine say more than the clock, and the time that training waited for copies.
- `recovery`: a random rank is killed with SIGKILL at a random moment, again and again; seconds from the kill until the
  next optimizer step of the restarted ranks, and until the first step that was not done before it; and the finished
  steps that were taken twice. With shadow checkpoints, with stored ones alone, and of the bare loop below `torchrun`
  with asynchronous checkpoints of torch, which is killed in the same way.
"""

import argparse
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from deploy.local.environment import REPOSITORY
from tests.bench.trainer_throughput import SHAPE, WARM_UP_STEPS, differences, measured_worker
from tests.chaos.faults.check import children
from trainer.agent import worker_group
from trainer.agent.supervisor import NodeConfig, Supervisor
from trainer.agent.worker_group import WorkerGroup
from trainer.agent.worker_process import run_worker
from trainer.client.local import LocalPlatform, LocalSettings
from trainer.contract.run import EndClass
from trainer.contract.training import CheckpointPolicy, ProcessLayout, TrainingSpec
from trainer.resilience.assignment import FolderConnection
from trainer.resilience.forking import start_fork_server

SAVE_EVERY = 10
TORCHRUN = "torchrun"
INTERVALS: list[int | str] = ["none", 1, "auto"]
PAUSE_STEPS = 7  # between two kills


@dataclass(frozen=True)
class Recovery:
    """Seconds from a kill until the next optimizer step, and until the first that was not taken before; finished steps
    that were taken twice."""

    next_step: float
    new_step: float
    steps_lost: int


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
    policy = CheckpointPolicy(every_steps=SAVE_EVERY, shadow_every_steps=interval)  # type: ignore[arg-type] # an int is positive or a literal
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


def recoveries(kills: int, tokens: int, processes: int, interval: int | str, folder: Path) -> list[Recovery]:
    worker_group.run_worker = run_worker
    output = Path(tempfile.mkdtemp(dir=folder))
    supervisor = supervisor_of(100_000, tokens, processes, interval, kills, output, folder / "cache")
    found: list[Recovery] = []
    killer = threading.Thread(target=_kill_often, args=(supervisor, processes, kills, output, found), daemon=True)
    killer.start()
    supervisor.run()
    killer.join()
    return found


def _kill_often(supervisor: Supervisor, processes: int, kills: int, output: Path, found: list[Recovery]) -> None:
    def wait_for(generation: int, step: int, num_finished: int) -> WorkerGroup:
        """Wait until a worker group has taken so many steps, and has reached the step."""
        while True:
            group = supervisor.worker_group
            is_running = group is not None and group._assignments[0].restart_count == generation
            if is_running and group.progress()[0] >= step and group.shared_status.progress(0)[1] >= num_finished:
                return group
            time.sleep(0.001)  # between two looks: the condition is in memory of other processes

    last = 0
    for generation in range(kills):
        group = wait_for(generation, last + PAUSE_STEPS, 1)
        time.sleep(random.uniform(0.0, 0.5))  # so that the kill comes at any moment of a step
        last, killed_at = group.progress()[0], time.time()
        os.kill(group._forked[random.randrange(processes)].process.pid or 0, signal.SIGKILL)
        wait_for(generation + 1, -1, 1)
        next_step = time.time() - killed_at
        wait_for(generation + 1, last + 1, 1)
        new_step = time.time() - killed_at
        restored = [each["data"]["step"] for each in _events(output, "checkpoint.restored", killed_at)]
        found.append(Recovery(next_step, new_step, last - (restored[0] if restored else 0)))
    supervisor.request_stop(None)


def torchrun_recoveries(kills: int, tokens: int, processes: int, folder: Path) -> list[Recovery]:
    """As `recoveries`, of `tests/bench/torchrun_loop.py`."""
    output = Path(tempfile.mkdtemp(dir=folder))
    (output / "spec.json").write_text(training_spec(100_000, tokens).model_dump_json())
    program = [REPOSITORY / "tests/bench/torchrun_loop.py", output / "spec.json", output, SAVE_EVERY]
    options = ["--standalone", f"--nproc-per-node={processes}", f"--max-restarts={kills}"]
    command = [sys.executable, "-m", "torch.distributed.run", *options, *program]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    with (output / "log").open("wb") as log:
        torchrun = subprocess.Popen([*map(str, command)], env=environment, stdout=log, stderr=log)
    found = []
    try:
        last = 0
        for restart in range(kills):
            last = _wait_for_step(output, restart, last + PAUSE_STEPS)[1]
            time.sleep(random.uniform(0.0, 0.5))  # so that the kill comes at any moment of a step
            last, killed_at = _steps(output)[-1][2], time.time()
            os.kill(random.choice([pid for pid in children(torchrun.pid) if _is_worker(pid)]), signal.SIGKILL)
            next_at, _ = _wait_for_step(output, restart + 1, 1)
            new_at, _ = _wait_for_step(output, restart + 1, last + 1)
            restored = next(-step for _, group, step in _steps(output) if group == restart + 1)
            found.append(Recovery(next_at - killed_at, new_at - killed_at, last - restored))
    finally:
        torchrun.terminate()
        torchrun.wait()
    return found


def _is_worker(pid: int) -> bool:
    return "torchrun_loop.py" in Path(f"/proc/{pid}/cmdline").read_text()


def _steps(output: Path) -> list[tuple[float, int, int]]:
    """Return (time, restarts, step) of what the loop has written."""
    path = output / "steps"
    complete = path.read_text().rpartition("\n")[0].splitlines() if path.exists() else []
    rows = [line.split() for line in complete]
    return [(float(at), int(group), int(step)) for at, group, step in rows]


def _wait_for_step(output: Path, restart: int, step: int) -> tuple[float, int]:
    """Return (time, step) of the first step from this one on that a group of workers has taken."""
    deadline = time.monotonic() + 120.0
    while time.monotonic() < deadline:
        for at, group, number in _steps(output):
            if group >= restart and number >= step:
                return at, number
        time.sleep(0.01)  # between two looks at the file
    raise TimeoutError(f"no step {step} after {restart} restarts: {(output / 'log').read_text()[-2000:]}")


def _events(output: Path, kind: str, since: float) -> list[dict[str, Any]]:
    """Return the events of a type that were reported after a time; waits for one."""
    deadline = time.monotonic() + 10.0
    while time.monotonic() < deadline:
        events = lines_of(output / "progress.jsonl")
        found = [each for each in events if each["type"] == kind]
        found = [each for each in found if datetime.fromisoformat(each["time"]).timestamp() >= since]
        if found:
            return found
        time.sleep(0.05)  # between two looks at the file
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
    options = arguments.kills, arguments.tokens, arguments.processes
    results: dict[str, Any] = {"steps": {}, "recoveries": {}}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        taken: dict[str, dict[str, list[float]]] = {}
        for _ in range(arguments.rounds):
            for interval in INTERVALS if arguments.steps else []:
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
        for interval in [*INTERVALS, TORCHRUN] if arguments.kills else []:
            label = f"shadow {interval}"
            if interval == TORCHRUN:
                label, pairs = TORCHRUN, torchrun_recoveries(*options, folder)
            else:
                pairs = recoveries(*options, interval, folder)
            lost = [each.steps_lost for each in pairs]
            results["recoveries"][str(interval)] = [asdict(each) for each in pairs]
            for name, seconds in (
                ("next optimizer step", [each.next_step for each in pairs]),
                ("first new step", [each.new_step for each in pairs]),
            ):
                print(
                    f"{label}: {len(pairs)} kills, {name} after p50 {percentile(seconds, 0.5):.2f} s, "
                    f"p95 {percentile(seconds, 0.95):.2f} s, steps lost {min(lost)} to {max(lost)}",
                    flush=True,
                )
    print(f"load {os.getloadavg()[0]:.1f}")
    sys.stdout.write(json.dumps({"trainer_shadow": results}) + "\n")


if __name__ == "__main__":
    main()
