"""Tokenising 500 MB of text with a new vocabulary of 8,192: one process as before, and groups of one and two.

- `rate`: bytes of text per second, from the start of the preparation to the written index.
- `memory`: the most that a process took.

Standalone runs of the agent's own code, on files of 6 MB in units of 64 MiB; each in a process of its own.
"""

import argparse
import json
import multiprocessing
import os
import statistics
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from trainer.agent import dataset
from trainer.agent.dataset import DatasetPreparer, NodeProcesses
from trainer.agent.node_servers import NodeServers
from trainer.client.local import LocalPlatform, LocalSettings
from trainer.contract.training import CheckpointPolicy, ProcessLayout, TrainingSpec
from trainer.data.documents import builtin_stdlib
from trainer.resilience.assignment import FolderConnection
from trainer.resilience.forking import ForkedProcess, start_fork_server

TOTAL_BYTES, UNIT_BYTES = 500_000_000, 64 * 2**20
SYSTEMS = {"one process": 0, "group of 1": 1, "group of 2": 2}
"""Name -> processes of a group; 0: the agent's own process, with one tokenizer thread for each core."""


def write_text(folder: Path, total: int) -> list[Path]:
    """Write Python sources of at least `total` bytes, in files of 6 MB."""
    content = b"".join(b"".join(raw.read()) for raw in builtin_stdlib())
    paths = [folder / f"{number:03}.txt" for number in range(-(-total // len(content)))]
    for path in paths:
        path.write_bytes(content)
    return paths


def ignore(process: ForkedProcess, rank: int) -> None:
    """Leave the output of a process unread."""


def prepare(folder: Path, files: list[Path], processes: int) -> None:
    """Prepare the files in `folder`."""
    spec = {
        "model": {"preset": "llama-1m"}, "data": {"source": "dataset:text"}, "tokenizer": {"vocab_size": 8192},
        "steps": 1, "tokens_per_step": 512, "sequence_length": 64, "schedule": {"warmup_steps": 0},
    }  # fmt: skip
    settings = LocalSettings(TrainingSpec.model_validate(spec), ProcessLayout(), CheckpointPolicy(), 0)
    platform, connection = LocalPlatform(folder, settings), FolderConnection(folder, settings)
    dataset.UNIT_BYTES = UNIT_BYTES
    dataset.num_processes = lambda units, nodes: processes
    group = NodeProcesses(connection, 0, NodeServers("127.0.0.1", ignore), ignore) if processes else None
    run, keys = platform.run(), platform.keys()
    preparer = DatasetPreparer(folder / "cache", run, keys, platform, platform.storage, lambda: False, processes=group)
    preparer.fetch_or_prepare(files)


def record_peaks(peaks: dict[int, int], is_over: threading.Event) -> None:
    """Record the peak memory in bytes of each process of this session, twice a second."""
    while not is_over.wait(0.5):
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError, StopIteration):
                if os.getsid(int(folder.name)) == os.getpid():
                    lines = (folder / "status").read_text().splitlines()
                    peaks[int(folder.name)] = 1024 * next(int(line.split()[1]) for line in lines if "VmHWM" in line)


def measure_one(files: list[Path], processes: int, results: Any) -> None:
    """Report the seconds and the peak memory in bytes of one preparation."""
    os.setsid()
    start_fork_server()
    peaks: dict[int, int] = {}
    is_over = threading.Event()
    threading.Thread(target=record_peaks, args=(peaks, is_over), daemon=True).start()
    with tempfile.TemporaryDirectory() as folder:
        begin = time.monotonic()
        prepare(Path(folder), files, processes)
        seconds = time.monotonic() - begin
    is_over.set()
    results.put((seconds, max(peaks.values())))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--megabytes", type=int, default=TOTAL_BYTES // 10**6)
    parser.add_argument("--rounds", type=int, default=1)
    options = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    found: dict[str, list[tuple[float, int]]] = {name: [] for name in SYSTEMS}
    with tempfile.TemporaryDirectory() as folder:
        files = write_text(Path(folder), options.megabytes * 10**6)
        size = sum(path.stat().st_size for path in files)
        for _ in range(options.rounds):
            for name, processes in SYSTEMS.items():
                results = context.Queue()
                process = context.Process(target=measure_one, args=(files, processes, results))
                process.start()
                found[name].append(results.get())
                process.join()
    figures = {}
    for name, measured in found.items():
        rate = size / statistics.median(seconds for seconds, _ in measured)
        memory = max(peak for _, peak in measured)
        figures[name] = {"bytes_per_second": rate, "peak_bytes": memory}
        print(f"{name:>12}: {rate / 1e6:6.1f} MB/s, {memory / 2**20:6.0f} MiB", flush=True)
    print(json.dumps({"trainer preparation": figures}))


if __name__ == "__main__":
    main()
