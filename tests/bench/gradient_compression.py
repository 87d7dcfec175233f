"""Final loss of the small model with compressed sums over two replicas against whole ones, and the bytes of each.

For each seed, every run has the same data in the same order and the same first weights; what differs is how gradients
travel. Sums that are whole but rounded elsewhere (other micro-batches) show what difference means nothing.
`python -m tests.bench.gradient_compression [--steps 200] [--seeds 1 2] [--processes 2] [--preset llama-1m]`
"""

import argparse
import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

from trainer.agent.supervisor import NodeConfig, Supervisor
from trainer.client.local import LocalPlatform, LocalSettings
from trainer.contract.run import EndClass
from trainer.contract.training import CheckpointPolicy, ProcessLayout, TrainingSpec
from trainer.resilience.assignment import FolderConnection
from trainer.resilience.forking import start_fork_server

WAYS: dict[str, dict[str, Any]] = {
    "whole": {},
    "whole, rounded elsewhere": {"micro_batch_sequences": 4},
    "int8": {"compression": {"kind": "int8"}},
    "fp8": {"compression": {"kind": "fp8"}},
    "powersgd, rank 48": {"compression": {"kind": "powersgd", "rank": 48, "start_step": 20}},
    "powersgd, rank 32": {"compression": {"kind": "powersgd", "rank": 32, "start_step": 20}},
}


def training_spec(parallelism: dict[str, Any], steps: int, preset: str, seed: int) -> TrainingSpec:
    return TrainingSpec.model_validate(
        {
            "model": {"preset": preset},
            "data": {"source": "builtin:python-stdlib"},
            "steps": steps,
            "tokens_per_step": 4096,
            "sequence_length": 128,
            # At the highest rates two runs that differ only in rounding end 0.4 % apart, which would hide all else.
            "optimizer": {"learning_rate": 1e-3},
            "evaluation": {"every_steps": steps, "sequences": 256},
            "parallelism": {"zero": 0, **parallelism},
            "seed": seed,
        }
    )


def final_loss(training: TrainingSpec, processes: int, output: Path, cache: Path) -> dict[str, float]:
    """Held-out loss at the end, and of its last step how many times fewer bytes than uncompressed."""
    settings = LocalSettings(training, ProcessLayout(processes_per_node=processes), CheckpointPolicy(every_steps=10**6))
    supervisor = Supervisor(
        FolderConnection(output, settings), LocalPlatform(output, settings), NodeConfig(output / "work", cache=cache)
    )
    if supervisor.run() is not EndClass.COMPLETED:
        raise RuntimeError((output / "end.json").read_text())
    values: dict[str, float] = {}
    for line in (output / "metrics.jsonl").read_text().splitlines():
        values |= json.loads(line)["values"]
    fewer = values.get("network/uncompressed_gradient_bytes", 1.0) / values.get("network/gradient_bytes", 1.0)
    return {"loss": values["evaluation/loss"], "times_fewer_bytes": fewer}


def measure(
    steps: int = 200, seeds: tuple[int, ...] = (1, 2), processes: int = 2, preset: str = "llama-1m"
) -> dict[str, Any]:
    """Of each way the loss of each seed, its mean ratio to that of whole sums, and the bytes it sent."""
    start_fork_server()
    found: dict[str, Any] = {name: {"losses": []} for name in WAYS}
    with tempfile.TemporaryDirectory() as folder:
        for seed in seeds:
            for number, (name, parallelism) in enumerate(WAYS.items()):
                training = training_spec(parallelism, steps, preset, seed)
                run = final_loss(training, processes, Path(folder) / f"{seed}-{number}", Path(folder) / "cache")
                found[name]["losses"].append(run["loss"])
                found[name]["times_fewer_bytes"] = run["times_fewer_bytes"]
                print(f"  seed {seed}, {name}: {run['loss']:.4f}", flush=True)
    for each in found.values():
        ratios = [mine / whole for mine, whole in zip(each["losses"], found["whole"]["losses"], strict=True)]
        each["ratio"] = statistics.mean(ratios)
    return found


def lines(found: dict[str, Any]) -> list[str]:
    return [
        f"  {name:<25} loss {', '.join(f'{loss:.4f}' for loss in each['losses'])} ({each['ratio'] - 1:+.2%}), "
        f"{each['times_fewer_bytes']:.1f} times fewer bytes"
        for name, each in found.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--preset", default="llama-1m")
    arguments = parser.parse_args()
    found = measure(arguments.steps, tuple(arguments.seeds), arguments.processes, arguments.preset)
    print("\n".join(lines(found)))
    print(json.dumps({"gradient_compression": found}))


if __name__ == "__main__":
    main()
