"""Tokens per CPU-second of the trainer and of others' loops: one model, one optimiser, one batch size, alternating.

Ours is the whole trainer (data, reports, skips); the bare loop is what one writes by hand: batches in memory, logits,
`cross_entropy`, autocast for bf16, fused AdamW, `clip_grad_norm_`, DistributedDataParallel or FSDP2 for more than one
process; it takes part once more with the trainer's three `mallopt` settings. Hugging Face's Trainer, Lightning Fabric
and litgpt take part where they are installed (`pip install accelerate lightning lightning-fabric litgpt`). CPU seconds
of the process count, start and warm-up left out: on a shared machine the clock says more of the neighbours. `python -m
tests.bench.trainer_throughput [--processes 1 2 4] [--rounds 2] [--steps 6] [--precision fp32 bf16]`
"""

import argparse
import importlib.util
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.bench import trainer_rivals as rivals
from trainer.agent import worker_group
from trainer.agent.supervisor import NodeConfig, Supervisor
from trainer.agent.worker_process import run_worker
from trainer.client.local import LocalPlatform, LocalSettings
from trainer.contract.run import EndClass
from trainer.contract.training import CheckpointPolicy, ProcessLayout, TrainingSpec
from trainer.resilience.assignment import Assignment, FolderConnection
from trainer.resilience.forking import fork, make_pipe, start_fork_server
from trainer.resilience.store_server import start_store

WARM_UP_STEPS = 3
SHAPE = {"hidden_size": 256, "num_layers": 7, "num_heads": 8, "num_kv_heads": 4, "intermediate_size": 704}
"""6.8 million parameters with 2,048 words."""
TIMES_NAME = "cpu_seconds.json"


def training_spec(steps: int, precision: str, compiled: bool, zero: int | str) -> TrainingSpec:
    return TrainingSpec.model_validate(
        {
            "model": {"shape": SHAPE},
            "data": {"source": "builtin:python-stdlib"},
            "steps": steps + WARM_UP_STEPS,
            "tokens_per_step": 4096,
            "sequence_length": 256,
            "precision": precision,
            "compile": compiled,
            "parallelism": {"zero": zero, "micro_batch_sequences": 8},
            "schedule": {"warmup_steps": 0},
            "evaluation": {"every_steps": 10_000, "sequences": 1},
        }
    )


def measured_worker(assignment: Assignment) -> None:
    """Stands in for `run_worker`: notes the process's CPU seconds whenever a step's batches are asked for."""
    import time

    from trainer.data.loader import Loader

    seconds: list[float] = []
    asked = Loader.next_step

    def next_step(loader: Loader, step: int) -> Any:
        seconds.append(time.process_time())
        (assignment.work / f"{assignment.rank}-{TIMES_NAME}").write_text(json.dumps(seconds))
        return asked(loader, step)

    Loader.next_step = next_step  # type: ignore[method-assign] - the measured process alone
    run_worker(assignment)


def ours(training: TrainingSpec, world: int, folder: Path) -> list[float]:
    """CPU seconds of all ranks together for each step."""
    work = trained(training, world, folder, measured_worker)
    ranks = [json.loads((work / f"{rank}-{TIMES_NAME}").read_text()) for rank in range(world)]
    return [sum(step) for step in zip(*map(differences, ranks), strict=True)]


def trained(
    training: TrainingSpec, world: int, folder: Path, worker: Callable[[Assignment], None], save_every: int = 10_000
) -> Path:
    """Run the whole trainer with `worker` as its processes; the folder in which they worked."""
    worker_group.run_worker = worker  # type: ignore[assignment] - as the tests do
    output = Path(tempfile.mkdtemp(dir=folder))
    settings = LocalSettings(
        training, ProcessLayout(processes_per_node=world), CheckpointPolicy(every_steps=save_every)
    )
    place = NodeConfig(output / "work", cache=folder / "cache")
    end_class = Supervisor(FolderConnection(output, settings), LocalPlatform(output, settings), place).run()
    if end_class is not EndClass.COMPLETED:
        raise RuntimeError((output / "end.json").read_text())
    return output / "work"


def rival(loop: Callable[..., None], training: TrainingSpec, world: int) -> list[float]:
    """The same of another loop, run by forked processes, of which all take as long as the first."""
    store, address = start_store("127.0.0.1", world)
    reader, writer = make_pipe()
    ranks = [fork(f"rival-{rank}", loop, training, rank, world, address, writer) for rank in range(world)]
    writer.close()
    try:
        return [world * seconds for seconds in differences(reader.recv())]
    except EOFError as error:
        said = os.read(ranks[0].stderr.fileno(), 2**20).decode()
        raise RuntimeError(f"{loop.__name__} died: {said[-2000:]}") from error
    finally:
        for forked in ranks:
            forked.process.join()
        store.process.kill()


def differences(readings: list[float]) -> list[float]:
    return [after - before for before, after in zip(readings, readings[1:], strict=False)][WARM_UP_STEPS - 1 :]


def systems(world: int, compiled: bool) -> dict[str, tuple[Callable[..., None] | None, str]]:
    """Name -> (loop, or None for ours; ZeRO stage)."""
    found: dict[str, tuple[Callable[..., None] | None, str]] = {
        "athanor": (None, "auto"),
        "bare": (rivals.bare, "auto"),
        "bare, mallopt": (rivals.bare_reusing, "auto"),
    }
    if world > 1:
        found |= {"athanor zero 3": (None, "3"), "bare FSDP2": (rivals.bare_sharded, "3")}
    elif not compiled:
        others = {
            "hf trainer": (rivals.hugging_face, "accelerate"),
            "fabric": (rivals.fabric, "lightning_fabric"),
            "litgpt": (rivals.litgpt, "lightning"),  # which litgpt imports
        }
        found |= {name: (loop, "auto") for name, (loop, package) in others.items() if importlib.util.find_spec(package)}
    return found


def compare(world: int, precision: str, compiled: bool, rounds: int, steps: int, folder: Path) -> list[dict[str, Any]]:
    seconds: dict[str, list[float]] = {}
    for _ in range(rounds):
        for name, (loop, zero) in systems(world, compiled).items():
            training = training_spec(steps, precision, compiled, int(zero) if zero.isdigit() else zero)
            taken = ours(training, world, folder) if loop is None else rival(loop, training, world)
            seconds.setdefault(name, []).extend(taken)
    tokens = training_spec(steps, precision, compiled, "auto").tokens_per_step
    medians = {name: statistics.median(taken) for name, taken in seconds.items()}
    return [
        {
            "system": name, "processes": world, "precision": precision, "compiled": compiled,
            "tokens_per_cpu_second": tokens / median, "athanor_is": median / medians["athanor"],
        }
        for name, median in medians.items()
    ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--precision", nargs="+", default=["fp32", "bf16"])
    compiled = parser.add_mutually_exclusive_group()
    compiled.add_argument(
        "--compiled", action="store_const", const=(False, True), default=(False,), help="also compiled"
    )
    compiled.add_argument("--compiled-only", action="store_const", const=(True,), dest="compiled")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=6)
    arguments = parser.parse_args()
    start_fork_server()
    results = []
    print(f"{'':28} {'tokens/CPU-s':>12} {'athanor is':>11}")
    with tempfile.TemporaryDirectory() as folder:
        for world in arguments.processes:
            for precision in arguments.precision:
                for compiled in arguments.compiled:
                    title = f"{world} x {precision}{' compiled' if compiled else ''}"
                    rows = compare(world, precision, compiled, arguments.rounds, arguments.steps, Path(folder))
                    for row in rows:
                        speed, ratio = row["tokens_per_cpu_second"], row["athanor_is"]
                        print(f"{title:14} {row['system']:14}{speed:12,.0f} {ratio:10.2f}x", flush=True)
                    results += rows
    name = "trainer_throughput_compiled" if all(arguments.compiled) else "trainer_throughput"
    sys.stdout.write(json.dumps({name: results}) + "\n")


if __name__ == "__main__":
    main()
