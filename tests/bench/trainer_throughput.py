"""Tokens per second of the trainer against a bare PyTorch loop of the same model, alternating in one run.

The bare loop is what one writes by hand: the same decoder, batches already in memory, fused AdamW,
`clip_grad_norm_`, DistributedDataParallel for more than one process; no data pipeline, no reports, no skips.
`python -m tests.bench.trainer_throughput [--processes 1 2] [--rounds 3] [--steps 12]`
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from trainer.agent.supervisor import NodePlace, Supervisor
from trainer.contract.run import EndClass
from trainer.contract.training import CheckpointPolicy, ProcessLayout, TrainingSpec
from trainer.local_platform import LocalPlatform, LocalSettings
from trainer.resilience.assignment import FolderConnection
from trainer.resilience.forking import fork, make_pipe, start_fork_server
from trainer.resilience.rendezvous import StoreAddress, start_store

WARM_UP_STEPS = 5


def training_spec(steps: int, preset: str) -> TrainingSpec:
    return TrainingSpec.model_validate(
        {
            "model": {"preset": preset},
            "data": {"source": "builtin:python-stdlib"},
            "steps": steps + WARM_UP_STEPS,
            "tokens_per_step": 8192,
            "sequence_length": 256,
            "schedule": {"warmup_steps": 0},
            "evaluation": {"every_steps": 10_000, "sequences": 1},
        }
    )


def bare_rank(training: TrainingSpec, vocab_size: int, rank: int, world: int, store: StoreAddress, report: Any) -> None:
    """The hand-written loop; runs in a forked process."""
    import os

    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    from trainer.models.decoder import Decoder

    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // world))
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    client = dist.PrefixStore("bare", dist.TCPStore(store.host, store.port, is_master=False))
    dist.init_process_group("gloo", store=client, rank=rank, world_size=world)
    torch.manual_seed(1)
    model: Any = Decoder(training.model.resolve(), vocab_size, training.sequence_length)
    if world > 1:
        model = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    sequences = training.sequences_per_step // world
    tokens = torch.randint(0, vocab_size, (4, sequences, training.sequence_length + 1))
    seconds = []
    for step in range(training.steps):
        begin = time.monotonic()
        batch = tokens[step % 4]
        loss = model(batch[:, :-1], batch[:, 1:]) / (sequences * training.sequence_length)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        loss.item()
        seconds.append(time.monotonic() - begin)
    if rank == 0:
        report.send(seconds)
    del model, optimizer
    dist.destroy_process_group()


def bare_seconds(training: TrainingSpec, vocab_size: int, world: int) -> list[float]:
    store, address = start_store("127.0.0.1", 0)
    reader, writer = make_pipe()
    ranks = [fork(f"bare-{r}", bare_rank, training, vocab_size, r, world, address, writer) for r in range(world)]
    writer.close()
    seconds = reader.recv()
    for rank in ranks:
        rank.process.join()
    store.process.kill()
    return seconds[WARM_UP_STEPS:]


def trainer_seconds(training: TrainingSpec, world: int, output: Path, cache: Path) -> list[float]:
    settings = LocalSettings(training, ProcessLayout(processes_per_node=world), CheckpointPolicy(every_steps=10_000))
    platform = LocalPlatform(output, settings)
    supervisor = Supervisor(FolderConnection(output), platform, NodePlace(output / "work", cache=cache))
    end_class = supervisor.run()
    if end_class is not EndClass.COMPLETED:
        raise RuntimeError((output / "end.json").read_text())
    points = map(json.loads, (output / "metrics.jsonl").read_text().splitlines())
    found = [point["values"]["time/step_seconds"] for point in points if "time/step_seconds" in point["values"]]
    return found[WARM_UP_STEPS:]


def compare(training: TrainingSpec, world: int, rounds: int, folder: Path) -> dict[str, float]:
    bare: list[float] = []
    ours: list[float] = []
    for number in range(rounds):
        ours += trainer_seconds(training, world, folder / f"run-{world}-{number}", folder / "cache")
        bare += bare_seconds(training, training.tokenizer.vocab_size, world)
    speeds = {
        "bare_tokens_per_second": training.tokens_per_step / statistics.median(bare),
        "trainer_tokens_per_second": training.tokens_per_step / statistics.median(ours),
    }
    return {"processes": world, **speeds, "ratio": statistics.median(bare) / statistics.median(ours)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--preset", default="llama-1m")
    arguments = parser.parse_args()
    start_fork_server()
    training = training_spec(arguments.steps, arguments.preset)
    results = []
    with tempfile.TemporaryDirectory() as folder:
        for world in arguments.processes:
            results.append(compare(training, world, arguments.rounds, Path(folder)))
    out = sys.stdout.write
    out(f"{'processes':>9} {'bare tokens/s':>14} {'trainer tokens/s':>17} {'ratio':>7}\n")
    for row in results:
        out(f"{row['processes']:>9} {row['bare_tokens_per_second']:>14,.0f} "
            f"{row['trainer_tokens_per_second']:>17,.0f} {row['ratio']:>7.3f}\n")  # fmt: skip
    out(json.dumps({"trainer_throughput": results}) + "\n")


if __name__ == "__main__":
    main()
