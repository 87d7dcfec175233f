"""What each axis costs at two processes: tokens per CPU-second of both together, against replicas of the whole model.

A tiny model on a CPU shows the worst of an axis: there is little to compute for what is sent.
`python -m tests.bench.trainer_axes [--rounds 3] [--steps 8]`
"""

import argparse
import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

from tests.bench.trainer_throughput import SHAPE, ours, training_spec
from trainer.contract.training import TrainingSpec
from trainer.resilience.forking import start_fork_server

MIXTURE = {**SHAPE, "moe": {"num_experts": 8, "experts_per_token": 2, "expert_size": 352}}
AXES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "replicas": (SHAPE, {"zero": 0}),
    "ZeRO 1": (SHAPE, {"zero": 1}),
    "ZeRO 2": (SHAPE, {"zero": 2}),
    "ZeRO 3": (SHAPE, {"zero": 3}),
    "tensor": (SHAPE, {"tensor": 2}),
    "context, ring": (SHAPE, {"context": 2, "zero": 0}),
    "context, ulysses": (SHAPE, {"context": 2, "zero": 0, "context_attention": "ulysses"}),
    "pipeline, 1f1b": (SHAPE, {"pipeline": 2, "micro_batch_sequences": 4}),
    "pipeline, zbv": (SHAPE, {"pipeline": 2, "pipeline_schedule": "zbv_zero_bubble", "micro_batch_sequences": 4}),
    "mixture, replicas": (MIXTURE, {"zero": 0}),
    "mixture, experts": (MIXTURE, {"zero": 0, "expert": 2}),
}


def spec_of(steps: int, shape: dict[str, Any], parallelism: dict[str, Any]) -> TrainingSpec:
    plain = training_spec(steps, "fp32", compiled=False, zero="auto").model_dump()
    chosen = {"micro_batch_sequences": 8, **parallelism}
    return TrainingSpec.model_validate({**plain, "model": {"shape": shape}, "parallelism": chosen})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=8)
    arguments = parser.parse_args()
    start_fork_server()
    seconds: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(arguments.rounds):
            for name, (shape, parallelism) in AXES.items():
                taken = ours(spec_of(arguments.steps, shape, parallelism), 2, Path(folder))
                seconds.setdefault(name, []).extend(taken)
    medians = {name: statistics.median(taken) for name, taken in seconds.items()}
    tokens = spec_of(arguments.steps, SHAPE, {}).tokens_per_step
    rows = []
    print(f"{'axis of two processes':24} {'tokens/CPU-s':>12} {'of replicas':>12}")
    for name, median in medians.items():
        base = medians["mixture, replicas" if name.startswith("mixture") else "replicas"]
        rows.append({"axis": name, "tokens_per_cpu_second": tokens / median, "of_replicas": base / median})
        print(f"{name:24} {tokens / median:12,.0f} {base / median:12.2f}")
    print(json.dumps({"trainer_axes": rows}))


if __name__ == "__main__":
    main()
