"""Memory of a rank, compared with the estimate of `trainer/contract/cost.py`, which also decides what fits.

Theory: the estimate, of weights, gradients, moments and activations. Needed: the process's peak while training with an
allocator that returns freed memory immediately, minus its memory before the model is built (the interpreter and torch).
Saving: the same, with a checkpoint saved after each step. Held: as needed, with the allocator settings of real CPU
runs, which reuse freed blocks (`trainer.training.cpu.reuse_freed_memory`); sharded runs, which allocate blocks of many
sizes, use nearly twice what they need. `python -m tests.bench.trainer_memory [--preset llama-100m] [--steps 3]`
"""

import argparse
import ctypes
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.bench.trainer_throughput import trained, training_spec
from trainer.agent.worker_process import run_worker
from trainer.contract.cost import RankCost
from trainer.contract.launch_plan import plan_mesh
from trainer.contract.training import TrainingSpec
from trainer.resilience.assignment import Assignment
from trainer.resilience.forking import start_fork_server

CASES: dict[str, tuple[int, dict[str, Any]]] = {
    "one process": (1, {}),
    "one process, layers computed again": (1, {"activation_checkpointing": "full"}),
    "replicas": (2, {"parallelism": {"zero": 0}}),
    "replicas, bf16": (2, {"parallelism": {"zero": 0}, "precision": "bf16"}),
    "ZeRO 1": (2, {"parallelism": {"zero": 1}}),
    "ZeRO 3": (2, {"parallelism": {"zero": 3}}),
    "tensor": (2, {"parallelism": {"tensor": 2}}),
    "pipeline, 1f1b": (2, {"parallelism": {"pipeline": 2}}),
}
MIB = 2**20
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h of the GNU C library


def status_bytes(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise KeyError(field)


def holding_worker(assignment: Assignment) -> None:
    """Stands in for `run_worker`: notes what the process had at first, and the most it had when a step begins."""
    from trainer.data.loader import Loader

    at_first, asked = status_bytes("VmRSS"), Loader.next_step

    def next_step(loader: Loader, step: int) -> Any:
        (assignment.work / f"{assignment.rank}-memory").write_text(str(status_bytes("VmHWM") - at_first))
        return asked(loader, step)

    Loader.next_step = next_step  # type: ignore[method-assign] - the measured process alone
    run_worker(assignment)


def returning_worker(assignment: Assignment) -> None:
    """The same, of a process that returns what it frees."""
    from trainer.training import worker

    def return_freed_memory() -> None:
        libc = ctypes.CDLL(None)
        libc.mallopt(_M_MMAP_THRESHOLD, MIB)
        libc.mallopt(_M_TRIM_THRESHOLD, 0)

    worker.reuse_freed_memory = return_freed_memory
    holding_worker(assignment)


def compare(name: str, preset: str, steps: int, folder: Path) -> dict[str, Any]:
    """Of the rank that has most."""
    world, chosen = CASES[name]
    plain = training_spec(steps, "fp32", compiled=False, zero="auto").model_dump()
    chosen = {**chosen, "parallelism": {**chosen.get("parallelism", {}), "micro_batch_sequences": 1}}
    small = {"model": {"preset": preset}, "tokens_per_step": 1024, "steps": steps}
    training = TrainingSpec.model_validate({**plain, **small, **chosen})
    sizes = plan_mesh(training, training.tokenizer.vocab_size, world)
    assert not isinstance(sizes, list), sizes
    costs = [RankCost(training, training.tokenizer.vocab_size, sizes, place) for place in range(sizes.pipeline)]
    theory = max((cost.memory() for cost in costs), key=lambda memory: memory.total)

    def most(worker: Callable[[Assignment], None], **saves: int) -> int:
        work = trained(training, world, folder, worker, **saves)
        return max(int((work / f"{rank}-memory").read_text()) for rank in range(world))

    needed, held = most(returning_worker), most(holding_worker)
    saving = most(returning_worker, save_every=1)
    return {
        "case": name, "state_bytes": theory.state, "theory_bytes": theory.total, "needed_bytes": needed,
        "saving_bytes": saving, "held_bytes": held, "needed_is": needed / theory.total,
        "saving_is": saving / theory.total,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--preset", default="llama-100m")
    parser.add_argument("--steps", type=int, default=3)  # when the third begins, the first save has ended
    arguments = parser.parse_args()
    start_fork_server()
    rows = []
    names = f"{'state':>8} {'theory':>8} {'needed':>8} {'':>7} {'saving':>8} {'':>7} {'held':>8}"
    print(f"{'memory of a rank, MiB':36} {names}")
    with tempfile.TemporaryDirectory() as folder:
        for name in CASES:
            row = compare(name, arguments.preset, arguments.steps, Path(folder))
            rows.append(row)
            state, theory, needed, saving, held = (
                row[f"{each}_bytes"] // MIB for each in ("state", "theory", "needed", "saving", "held")
            )
            print(
                f"{name:36} {state:8,} {theory:8,} {needed:8,} ({row['needed_is']:.2f}x) {saving:8,} "
                f"({row['saving_is']:.2f}x) {held:8,}",
                flush=True,
            )
    print(json.dumps({"trainer_memory": rows}))


if __name__ == "__main__":
    main()
