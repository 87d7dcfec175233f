"""A save of 1.2 GB beside a training loop, ours against torch.save and torch's asynchronous distributed checkpoint.

Each system saves the same state three times in a process of its own, to a folder; ours encrypts: a part at a time as on
CPUs, three parts by threads, and three by processes as beside a GPU. The loop multiplies matrices with one thread, so
that on two cores the save has the other one. A second loop, beside three more saves, launches many small operations, as
a rank with a GPU does.

- `stall`: what the loop waited for the save to begin. torch.save stops it for all of the save.
- `pause`: the longest time in which no other thread of Python ran.
- `steps`: the median step during the save against those before.
- `launches`: the mean step of the second loop during the save against those before.
- `memory`: the most that the process took beyond the state, in units of it.
"""

import argparse
import json
import multiprocessing
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint import async_save

from trainer.checkpoint.encrypting_processes import EncryptingProcesses
from trainer.checkpoint.file import EncodedFile
from trainer.checkpoint.state import Shard, Snapshot
from trainer.contract.encryption import Encryptor, new_keyset
from trainer.contract.manifest import PARTS_IN_FLIGHT
from trainer.storage.encrypted import PartEncryptor, put_pieces
from trainer.storage.folder import FolderStorage

TENSORS, NUMBERS = 48, 6_250_000  # 25 MB each, 1.2 GB in all
STATE_BYTES = TENSORS * NUMBERS * 4
ROUNDS, STEPS_BEFORE, STEP_SIZE = 3, 40, 500
State = dict[str, torch.Tensor]
Save = Callable[[State, Path], Callable[[], object]]
"""Begins to save, and returns what waits for its end."""


class Ours:
    """As the trainer saves: a copy of the state, which a thread encrypts and stores."""

    def __init__(self, in_flight: int = 1, *, with_processes: bool = False) -> None:
        self._snapshot, self._in_flight, key = Snapshot(), in_flight, new_keyset()
        self._encryptor: PartEncryptor = EncryptingProcesses(key, in_flight) if with_processes else Encryptor(key)

    def __call__(self, state: State, folder: Path) -> Callable[[], object]:
        shards = [Shard(tensor, (0,), tuple(tensor.shape), name) for name, tensor in state.items()]
        copies = self._snapshot.take(shards)

        def store() -> None:
            file = EncodedFile(copies, {})
            put_pieces(
                FolderStorage(folder), self._encryptor, "", "rank0", file.pieces(), file.size, in_flight=self._in_flight
            )

        thread = threading.Thread(target=store)
        thread.start()
        return thread.join


def torch_save(state: State, folder: Path) -> Callable[[], object]:
    folder.mkdir(parents=True)
    torch.save(state, folder / "state.pt")
    return lambda: None


def torch_async(state: State, folder: Path) -> Callable[[], object]:
    saving = async_save(state, checkpoint_id=folder)
    return saving.result  # type: ignore[union-attr] # a Future: no other kind was asked for


SYSTEMS: dict[str, Callable[[], Save]] = {
    "athanor (encrypted)": Ours,
    "by 3 threads": lambda: Ours(PARTS_IN_FLIGHT),
    "by 3 processes": lambda: Ours(PARTS_IN_FLIGHT, with_processes=True),
    "torch.save": lambda: torch_save,
    "torch async_save": lambda: torch_async,
}


class Ticker:
    """A thread that wants to run every half millisecond; `longest` is what it waited at most."""

    def __init__(self) -> None:
        self.longest, self._stop = 0.0, threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        last = time.monotonic()
        while not self._stop.wait(0.0005):
            now = time.monotonic()
            self.longest, last = max(self.longest, now - last), now

    def stop(self) -> float:
        self._stop.set()
        self._thread.join()
        return self.longest


def resident_bytes(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(name)).split()[1]) * 1024


def step(matrix: torch.Tensor) -> float:
    begin = time.monotonic()
    for _ in range(4):
        matrix = matrix @ matrix.T / STEP_SIZE
    return time.monotonic() - begin


def launches(layers: torch.nn.Module) -> float:
    begin = time.monotonic()
    layers(torch.ones(4, 16)).sum().backward()
    return time.monotonic() - begin


def launches_beside_saves(save: Save, state: State, folder: Path) -> float:
    """Return the mean step of a loop of small operations beside saves, against those before."""
    layers = torch.nn.Sequential(*(torch.nn.Linear(16, 16) for _ in range(100)))
    before = [launches(layers) for _ in range(5 * STEPS_BEFORE)][STEPS_BEFORE:]
    during = []
    for number in range(ROUNDS):
        waiter = threading.Thread(target=save(state, folder / f"launches{number}"))
        waiter.start()
        while waiter.is_alive():
            during.append(launches(layers))
    return statistics.mean(during) / statistics.mean(before) if during else 0.0


def run(name: str, folder: str, answer: Any) -> None:
    """In a process of its own: send the figures of each round."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    state = {f"weight{number}": torch.randn(NUMBERS) for number in range(TENSORS)}
    matrix, save, found = torch.randn(STEP_SIZE, STEP_SIZE), SYSTEMS[name](), []
    for _ in range(STEPS_BEFORE):
        step(matrix)
    base = resident_bytes("VmRSS")
    for number in range(ROUNDS):
        before = [step(matrix) for _ in range(STEPS_BEFORE)]
        Path("/proc/self/clear_refs").write_text("5")  # forget the peak
        cpu, begin, ticker = time.process_time(), time.monotonic(), Ticker()
        wait = save(state, Path(folder) / str(number))
        stall, during = time.monotonic() - begin, []
        waiter = threading.Thread(target=wait)
        waiter.start()
        loop = time.thread_time()
        while waiter.is_alive():
            during.append(step(matrix))
        loop = time.thread_time() - loop
        found.append(
            {
                "stall_seconds": stall,
                "pause_seconds": ticker.stop(),
                "steps": statistics.median(during) / statistics.median(before) if during else 0.0,
                "cpu_seconds": time.process_time() - cpu - loop,
                "seconds": time.monotonic() - begin,
                "memory": (resident_bytes("VmHWM") - base) / STATE_BYTES,
            }
        )
    more = launches_beside_saves(save, state, Path(folder))
    answer.send([{**each, "launches": more} for each in found])
    dist.destroy_process_group()


def figures(name: str) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe(duplex=False)
        process = context.Process(target=run, args=(name, folder, theirs))
        process.start()
        theirs.close()
        found = ours.recv()
        process.join()
    return {key: statistics.median(each[key] for each in found) for key in found[0]} | {
        "memory": max(each["memory"] for each in found)
    }


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    found = {}
    print(f"{'':<22}{'stall':>8}{'pause':>10}{'steps':>8}{'launches':>10}{'CPU':>8}{'all':>8}{'memory':>9}")
    for name in SYSTEMS:
        found[name] = of = figures(name)
        print(
            f"{name:<22}{of['stall_seconds']:>6.2f} s{of['pause_seconds'] * 1000:>7.0f} ms{of['steps']:>7.2f}x"
            f"{of['launches']:>9.2f}x{of['cpu_seconds']:>6.2f} s{of['seconds']:>6.2f} s{of['memory']:>8.2f}x",
            flush=True,
        )
    sys.stdout.write(json.dumps({"trainer_saves": found}) + "\n")


if __name__ == "__main__":
    main()
