"""Which flipped bits of a gradient are found, and what the search costs.

`python -m tests.bench.silent_corruption [--rounds 20] [--steps 20000] [--gap 2] [--flips 20000]`

- `recall`: a run of two replicas, in which rank 1 flips a bit of a random number of its own gradient before the sum, in
  every `--gap`th step from the 40th on, each of the 32 positions `--rounds` times. A flip is found if the step has an
  event `gradient.corrupted`, and named if that names rank 1. Beside it: by how much of its norm the flips that were not
  found changed the rank's gradient, at most.
- `checksums`: random bits of random parameters flipped, one at a time, that change the checksum of replicas.
- `recomputation`: the time of a step that was computed twice, as a multiple of the median step.
- `false alarms`: of a run without flips, steps that were called corrupted, and those that were computed again.
- `unsuspected`: the CPU time of the norm of each rank's own gradient and of the decision, as a share of that of the
  process (6.8 million parameters, steps of 4,096 tokens).
"""

import argparse
import json
import os
import random
import tempfile
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any

from tests.bench.trainer_throughput import SHAPE
from tests.trainer.runs import FinishedRun, run_alone, tiny_training
from trainer.agent import worker_group
from trainer.agent.worker_process import run_worker
from trainer.contract.run import EndClass
from trainer.reporting.replica_check import ReplicaCheck
from trainer.resilience.assignment import Assignment
from trainer.resilience.forking import start_fork_server

FIRST, BITS = 40, 32
MEASURED_FROM = 2
FLIPS, COSTS = "flips.jsonl", "costs.json"


@dataclass(frozen=True)
class Flips:
    """A worker whose rank 1 flips the bits, or without a `gap` none, and measures what each step costs. Stands in for
    `run_worker`."""

    folder: Path
    gap: int = 0

    def __call__(self, assignment: Assignment) -> None:
        from trainer.parallel.weights import Weights
        from trainer.reporting.suspicion import StepGate
        from trainer.training import loop

        counted_tokens, measure_own, decide = loop.counted_tokens, Weights.measure_own, StepGate.decide
        due: list[int] = []
        newest, spent, chosen = [-1], [0.0, 0.0], random.Random(7)

        def note(state: Any, batches: Any, step: int) -> object:
            number, rest = divmod(step - FIRST, self.gap or 1)
            is_due = self.gap and assignment.rank == 1 and number >= 0 and rest == 0 and step > newest[0]
            due[:] = [step, number % BITS] if is_due else []
            newest[0] = step
            if step == MEASURED_FROM:
                spent[:] = [0.0, time.process_time()]
            if step == state.training.steps - 1 and assignment.rank == 0:
                costs = {"spent": spent[0], "of": time.process_time() - spent[1]}
                (self.folder / COSTS).write_text(json.dumps(costs))
            return counted_tokens(state, batches, step)

        def flip_and_measure(weights: Weights, gradient: Any) -> None:
            if due:
                step, bit = due
                due.clear()
                change = flip(gradient, bit, chosen)
                with (self.folder / FLIPS).open("a") as file:
                    file.write(json.dumps({"step": step, "bit": bit, "change": change}) + "\n")
            begin = time.thread_time()
            measure_own(weights, gradient)
            spent[0] += time.thread_time() - begin

        def decide_timed(*arguments: Any, **named: Any) -> object:
            begin = time.thread_time()
            found = decide(*arguments, **named)
            spent[0] += time.thread_time() - begin
            return found

        loop.counted_tokens, Weights.measure_own, StepGate.decide = note, flip_and_measure, decide_timed
        run_worker(assignment)


def flip(gradient: Any, bit: int, chosen: random.Random) -> float:
    """Flip a bit of a random number that is not 0. Return by how much the gradient changes, of its norm."""
    import torch

    places = gradient.nonzero().flatten()
    place = places[chosen.randrange(len(places))]
    norm, before = gradient.double().norm().item(), gradient[place].item()
    gradient[place : place + 1].view(torch.int32).bitwise_xor_(-(2**31) if bit == 31 else 1 << bit)
    return abs(gradient[place].item() - before) / norm


def run(folder: Path, gap: int = 0, **changes: Any) -> FinishedRun:
    """Return a finished run of two replicas, which recorded in `folder`."""
    folder.mkdir()
    worker_group.run_worker = Flips(folder, gap)  # type: ignore[assignment] # in this process
    training = tiny_training(parallelism={"zero": 0}, evaluation={"every_steps": 10**6, "sequences": 8}, **changes)
    finished = run_alone(folder / "run", training, processes=2, every_steps=10**6)
    if finished.end_class is not EndClass.COMPLETED:
        raise RuntimeError(finished.end)
    return finished


def print_recall(folder: Path, rounds: int, gap: int) -> None:
    """Print the recall by bit, and the cost of a recomputation."""
    finished = run(folder, gap, steps=FIRST + rounds * BITS * gap)
    flips: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for line in (folder / FLIPS).read_text().splitlines():
        flips[json.loads(line)["bit"]].append(json.loads(line))
    named = {int(event["step"]) - 1: event["ranks"] for event in finished.events("gradient.corrupted")}
    print("bit                 flips  found  named  largest change of those not found")
    total = 0
    for bit in sorted(flips, reverse=True):
        found = [each["step"] for each in flips[bit] if each["step"] in named]
        missed = [each["change"] for each in flips[bit] if each["step"] not in named]
        kind = "sign" if bit == 31 else "exponent" if bit > 22 else "mantissa"
        right = sum(named[step] == "1" for step in found)
        print(f"{bit:2} {kind:<15} {len(flips[bit]):6} {len(found):6} {right:6}  {max(missed, default=0.0):.2g}")
        total += len(found)
    steps = {each["step"] for group in flips.values() for each in group}
    seconds = finished.series("time/step_seconds")
    twice = [seconds[step + 1] for step in named if step + 1 in seconds]
    usual = median(value for step, value in seconds.items() if step - 1 not in named)
    print(
        f"all: {total} of {len(steps)} found; steps without a flip that were called corrupted: "
        f"{len(named.keys() - steps)}"
    )
    if twice:
        print(
            f"a step that is computed twice: {median(twice) / usual:.2f} times the median step of {usual * 1e3:.1f} ms"
        )


def print_checksums(flips: int) -> None:
    """Print how many flipped bits of 100,000 parameters change their checksum."""
    import torch

    chosen, values = random.Random(7), torch.randn(100_000, generator=torch.Generator().manual_seed(7)) * 0.02
    weights: Any = SimpleNamespace(
        trainable={"one": values}, layouts={"one": SimpleNamespace(replica_ranks=(0, 1))}, mesh=SimpleNamespace(rank=0)
    )
    check, bits = ReplicaCheck(weights), values.view(torch.int32)
    before, found = check.checksum().item(), 0
    for _ in range(flips):
        place, bit = chosen.randrange(len(values)), chosen.randrange(BITS)
        mask = -(2**31) if bit == BITS - 1 else 1 << bit
        bits[place] ^= mask
        found += check.checksum().item() != before
        bits[place] ^= mask
    print(f"checksums: {found} of {flips} flipped bits of a parameter found")


def print_false_alarms(folder: Path, steps: int) -> None:
    """Print how often a run without faults computed a step again, and with which result."""
    finished = run(folder, steps=steps)
    corrupted, same = (len(finished.events(kind)) for kind in ("gradient.corrupted", "step.recomputed"))
    replicas = len(finished.events("replicas.differ"))
    print(
        f"{steps} steps without a fault: {corrupted} called corrupted, {same} computed again with the same result, "
        f"{replicas} with replicas that differ"
    )


def print_cost(folder: Path) -> None:
    """Print what the work in each step costs."""
    changes = {"model": {"shape": SHAPE}, "tokens_per_step": 4096, "sequence_length": 128, "steps": 12}
    run(folder, **changes)
    costs = json.loads((folder / COSTS).read_text())
    print(f"unsuspected: {costs['spent'] / costs['of']:.3%} of the CPU time of a rank")


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.silent_corruption")
    parser.add_argument("--rounds", type=int, default=20, help="flips of each bit")
    parser.add_argument("--steps", type=int, default=20_000, help="of the run without faults")
    parser.add_argument("--flips", type=int, default=20_000, help="of parameters, for the checksum")
    parser.add_argument("--gap", type=int, default=2, help="steps from one flip to the next")
    options = parser.parse_args()
    start_fork_server()
    print_checksums(options.flips)
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} before", flush=True)
    with tempfile.TemporaryDirectory(prefix="athanor-corruption-") as place:
        print_recall(Path(place) / "recall", options.rounds, options.gap)
        print_cost(Path(place) / "cost")
        print_false_alarms(Path(place) / "alarms", options.steps)


if __name__ == "__main__":
    main()
