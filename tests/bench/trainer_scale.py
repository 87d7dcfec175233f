"""What one rank of thousands does for its first step, a save and a resume, in CPU seconds of one process.

The layouts of llama-405b on the meta device with fake process groups, the first weights that it draws, and the index of
a checkpoint of all ranks. No rank but this one exists.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from tests.scale.checkpoints import VOCABULARY, entries_of_rank, layouts_of_ranks, shards_of_rank, training_of
from trainer.checkpoint.index import Index, describe, encode
from trainer.contract.models import MODELS
from trainer.models.normal_numbers import draw_box
from trainer.standalone.dry_run import state_bytes

MESHES: list[tuple[int, dict[str, int]]] = [
    (64, {}),
    (1024, {"tensor": 8, "pipeline": 16}),
    (1024, {"tensor": 8, "replicate": 16}),
    (10_240, {"tensor": 8, "pipeline": 16}),
    (10_240, {"tensor": 8, "replicate": 16}),
    (10_240, {}),
]
INDICES: list[tuple[int, dict[str, int]]] = [
    (64, {"tensor": 8}),
    (1024, {"tensor": 8, "pipeline": 16}),
    (10_240, {"tensor": 8, "pipeline": 16}),
    (10_240, {"tensor": 8, "pipeline": 8, "replicate": 16}),
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
    training, sizes = training_of(ranks, parallelism)
    return lambda: state_bytes(training, VOCABULARY, sizes, 0)


def drawing() -> dict[str, float]:
    """Return the CPU seconds of 2**26 numbers, and how many times those of torch's own generator that is."""
    shape = (2**13, 2**13)
    ours = cpu_seconds(lambda: draw_box("key", shape, (0, 0), shape, 1.0), 5)
    return {"seconds": ours, "times_torch": ours / cpu_seconds(lambda: torch.empty(shape).normal_(), 5)}


def index(ranks: int, parallelism: dict[str, int]) -> dict[str, float]:
    """Return the bytes of a checkpoint's index, and the CPU seconds of making it (first rank) and of a search in it."""
    files, shared, seconds, last = [], {}, 0.0, []
    for rank, layouts in layouts_of_ranks(*training_of(ranks, parallelism)):
        begin = time.process_time()
        description, alike = describe(entries_of_rank(rank, layouts))
        seconds += time.process_time() - begin
        files.append(description)
        shared[description.shared] = alike
        if rank == ranks - 1:
            last = shards_of_rank(layouts)
    content = encode(files, shared)
    num_files = len(Index(content).files_for(last))
    return {
        "bytes": len(content), "encode_seconds": cpu_seconds(lambda: encode(files, shared), 3),
        "describe_seconds": seconds / ranks, "search_seconds": cpu_seconds(lambda: Index(content).files_for(last), 3),
        "files_of_last_rank": num_files,
    }  # fmt: skip


def measure() -> dict[str, Any]:
    torch.set_num_threads(1)
    found = []
    for ranks, parallelism in MESHES:
        rounds = 1 if ranks > 1024 and not parallelism else 3
        seconds = cpu_seconds(layouts(ranks, parallelism), rounds)
        found.append({"ranks": ranks, "parallelism": parallelism, "cpu_seconds": seconds})
        axes = " x ".join(f"{name} {size}" for name, size in parallelism.items()) or "shard over all"
        print(f"{ranks:>7,} ranks, {axes:<28} {seconds:8.2f} CPU s for the layouts of llama-405b", flush=True)
    indices = []
    for ranks, parallelism in INDICES:
        row = index(ranks, parallelism)
        indices.append({"ranks": ranks, "parallelism": parallelism, **row})
        axes = " x ".join(f"{name} {size}" for name, size in parallelism.items())
        work = f"{row['encode_seconds']:.2f} CPU s at a save, {row['search_seconds']:.2f} at a resume"
        files = f"for {row['files_of_last_rank']} files"
        print(f"{ranks:>7,} ranks, {axes:<28} {row['bytes'] / 1e6:8.2f} MB of index; {work}, {files}", flush=True)
    drawn = drawing()
    of_rank = MODELS["llama-405b"].num_parameters(VOCABULARY) / 4096
    drawn["seconds_of_a_rank"] = drawn["seconds"] * of_rank / 2**26
    print(
        f"first weights: {drawn['times_torch']:.2f} times the CPU of torch's normal_; a rank of 4,096 draws "
        f"{of_rank / 1e6:,.0f} million numbers in {drawn['seconds_of_a_rank']:.1f} CPU s"
    )
    return {"trainer_scale": {"layouts": found, "indices": indices, "first_weights": drawn}}


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    print(json.dumps(measure()))
