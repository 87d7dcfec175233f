"""Losses of some steps on some meshes, kept as they were bit for bit: `losses.json`, beside this file.

What bits a sum of floats has depends on the processor and on torch's build; what was stored on such a machine is
compared bitwise, elsewhere within a tolerance. `python -m tests.trainer.stored_losses` adds what it finds on another
machine. After a change that is meant to change numbers, `--replace` drops what other machines have stored.
"""

import argparse
import json
from pathlib import Path

import torch

from tests.trainer.equality import Case, built, my_batches, step_batch
from tests.trainer.ranks import RankPool
from trainer.optim.learning_rate import learning_rate
from trainer.optim.step import ShardOptimizer
from trainer.parallel.balance import ExpertBalancer
from trainer.parallel.mesh import Mesh, all_reduce_world

FILE = Path(__file__).with_name("losses.json")
STEPS = 6
TOLERANCES = {False: 1e-4, True: 1e-2}  # by whether the case computes in bf16
"""On a machine of another kind, after STEPS updates: AVX2 beside AVX-512 differs by up to 2e-5 and 1.4e-3."""

_training = {"steps": STEPS, "optimizer": {"learning_rate": 1e-2}, "schedule": {"warmup_steps": 2}}
STORED_CASES = [
    Case("dense", 1, {}, training=_training),
    Case("moe", 1, {"micro_batch_sequences": 4}, packed=True, training=_training),
    Case("tied", 2, {"zero": 0}, packed=True, training=_training),
    Case("dense", 4, {"zero": 3, "replicate": 2}, training=_training),
    Case("tied", 4, {"pipeline": 2, "tensor": 2, "micro_batch_sequences": 2}, training=_training),
    Case("moe", 4, {"context": 2, "expert": 4, "zero": 3}, packed=True, training=_training),
    Case("dense", 2, {"zero": 0}, training={**_training, "precision": "bf16"}),
    Case("dense", 2, {"zero": 2}, training={**_training, "optimizer": {"name": "muon", "learning_rate": 1e-2}}),
]


def machine() -> str:
    """What decides the bits: processor and torch."""
    wanted, found = ("vendor_id", "cpu family", "model"), {}
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() in wanted:
            found.setdefault(name.strip(), value.strip())
    processor = " ".join(found.get(name, "?") for name in wanted)
    return f"{processor}, {torch.backends.cpu.get_cpu_capability()}, torch {torch.__version__}"


def take_steps(mesh: Mesh, case: Case) -> list[str]:
    """On a rank: the mean loss of each step, exactly (`float.fromhex` reads it)."""
    training = case.spec()
    model, part = built(mesh, training, by_block=case.packed)
    batch = step_batch(case.packed)
    optimizer = ShardOptimizer(model.weights.trainable, model.weights.layouts, training.optimizer)
    balancer = ExpertBalancer(model.stages, model.weights.mesh)
    losses = []
    for step in range(training.steps):
        loss, _ = model.forward_backward(my_batches(batch, part), float(batch.counted))
        mean, square_sum = all_reduce_world(torch.stack([loss, optimizer.gradient_squares().sum()]), mesh).unbind()
        losses.append(mean.item().hex())
        is_finite = square_sum.isfinite()
        optimizer.step(learning_rate(training, step), square_sum.sqrt(), is_finite)
        balancer.step(is_finite)
        model.weights.commit(is_finite)
        optimizer.zero_gradients()
        model.weights.sync_compute_copies()
    return losses


def stored() -> dict[str, dict[str, list[str]]]:
    """By machine, then by case."""
    found: dict[str, dict[str, list[str]]] = json.loads(FILE.read_text()) if FILE.exists() else {}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--replace", action="store_true", help="drop what other machines have stored")
    others = {} if parser.parse_args().replace else stored()
    with RankPool(4) as pool:
        found = {str(case): pool.run(case.world, take_steps, case)[0] for case in STORED_CASES}
    FILE.write_text(json.dumps({**others, machine(): found}, indent=1, sort_keys=True) + "\n")
    print(f"{len(found)} cases stored for {machine()} in {FILE}")


if __name__ == "__main__":
    main()
