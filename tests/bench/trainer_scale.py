"""What one rank of thousands does before its first step, in CPU seconds of one process.

The layouts of llama-405b on the meta device with fake process groups, and the first weights that it draws. No rank but
this one exists.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from trainer.contract.launch_plan import plan_mesh
from trainer.contract.models import MODELS
from trainer.contract.parallelism import MeshSizes
from trainer.contract.training import TrainingSpec
from trainer.models.normal_numbers import draw_box
from trainer.standalone.dry_run import state_bytes

VOCABULARY = 128_256
MESHES: list[tuple[int, dict[str, int]]] = [
    (64, {}),
    (1024, {"tensor": 8, "pipeline": 16}),
    (1024, {"tensor": 8, "replicate": 16}),
    (10_240, {"tensor": 8, "pipeline": 16}),
    (10_240, {"tensor": 8, "replicate": 16}),
    (10_240, {}),
]


def cpu_seconds(work: Callable[[], object], rounds: int) -> float:
    """Return the median CPU seconds of this process."""
    found = []
    for _ in range(rounds):
        begin = time.process_time()
        work()
        found.append(time.process_time() - begin)
    return statistics.median(found)


def layouts(ranks: int, parallelism: dict[str, int]) -> Callable[[], object]:
    training = TrainingSpec.model_validate(
        {
            "model": {"preset": "llama-405b"}, "data": {"source": "builtin:python-stdlib"}, "steps": 100,
            "tokenizer": {"vocab_size": VOCABULARY}, "tokens_per_step": 8192 * ranks, "sequence_length": 8192,
            "precision": "bf16", "parallelism": parallelism,
        }
    )  # fmt: skip
    sizes = plan_mesh(training, VOCABULARY, ranks)
    assert isinstance(sizes, MeshSizes), sizes
    return lambda: state_bytes(training, VOCABULARY, sizes, 0)


def drawing() -> dict[str, float]:
    """Return the CPU seconds of 2**26 numbers, and how many times those of torch's own generator that is."""
    shape = (2**13, 2**13)
    ours = cpu_seconds(lambda: draw_box("key", shape, (0, 0), shape, 1.0), 5)
    return {"seconds": ours, "times_torch": ours / cpu_seconds(lambda: torch.empty(shape).normal_(), 5)}


def measure() -> dict[str, Any]:
    torch.set_num_threads(1)
    found = []
    for ranks, parallelism in MESHES:
        rounds = 1 if ranks > 1024 and not parallelism else 3
        seconds = cpu_seconds(layouts(ranks, parallelism), rounds)
        found.append({"ranks": ranks, "parallelism": parallelism, "cpu_seconds": seconds})
        axes = " x ".join(f"{name} {size}" for name, size in parallelism.items()) or "shard over all"
        print(f"{ranks:>7,} ranks, {axes:<28} {seconds:8.2f} CPU s for the layouts of llama-405b", flush=True)
    drawn = drawing()
    of_rank = MODELS["llama-405b"].num_parameters(VOCABULARY) / 4096
    drawn["seconds_of_a_rank"] = drawn["seconds"] * of_rank / 2**26
    print(
        f"first weights: {drawn['times_torch']:.2f} times the CPU of torch's normal_; a rank of 4,096 draws "
        f"{of_rank / 1e6:,.0f} million numbers in {drawn['seconds_of_a_rank']:.1f} CPU s"
    )
    return {"trainer_scale": {"layouts": found, "first_weights": drawn}}


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    print(json.dumps(measure()))
