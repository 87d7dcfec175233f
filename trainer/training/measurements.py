"""Rates of one device, of its node's disk, of the object store, and of the network between the ranks.

Rates are those of the fastest repetition: what disturbs a repetition for a moment says nothing about the hardware.
"""

import os
import secrets
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median, quantiles

import torch
import torch.distributed as dist
from torch import Tensor

from trainer.contract.encryption import Encryptor
from trainer.parallel.mesh import Mesh
from trainer.resilience.preflight import Pair
from trainer.storage.base import Storage

_all_gather = (
    dist.all_gather_single if hasattr(dist, "all_gather_single") else dist.all_gather_into_tensor
)  # torch 2.13
DEVICE_SECONDS = 0.5
DISK_BYTES, DISK_SECONDS = 64 * 2**20, 2.0
_BLOCK = 8 * 2**20
STORE_BYTES = 8 * 2**20
_REPETITION_SECONDS, _MAX_REPETITIONS = 0.3, 20
LATENCY_REPETITIONS = 100
_PAIR_REPETITIONS = 3
HBM_PEAKS: tuple[tuple[str, float], ...] = (
    ("B300", 8.0e12),
    ("B200", 8.0e12),
    ("H200", 4.8e12),
    ("GH200", 4.0e12),
    ("H100 NVL", 3.9e12),
    ("H100 PCIe", 2.0e12),
    ("H100", 3.35e12),
    ("A100-SXM4-80GB", 2.039e12),
    ("A100 80GB PCIe", 1.935e12),
    ("A100", 1.555e12),
    ("L40S", 8.64e11),
    ("MI300X", 5.3e12),
)
"""Bytes per second of the memory, by a part of the device's name in torch, the first that matches. Sources: the data
sheets named in `trainer.reporting.throughput`."""
ALL_REDUCE_BYTES = 64 * 2**20
ALL_REDUCE_OF_8: tuple[tuple[str, float], ...] = (
    ("H200", 3.68e11),
    ("H100 80GB HBM3", 3.62e11),
    ("A100-SXM4", 1.67e11),
)
"""Bus bandwidth of an all-reduce of 64 MiB by 8 GPUs of one node (Azure, AI-benchmarking-guide: ND A100 v4, ND H100 v5,
ND H200 v5)."""


def matmul_rate(device: torch.device) -> tuple[float, float]:
    """Return FLOP/s of a square matrix product, in bf16 on a GPU and fp32 on a CPU, and a checksum of its result.

    The factors are small whole numbers, of which all sums are exact: a sound device has the same checksum as any other
    of its kind.
    """
    size, dtype = (8192, torch.bfloat16) if device.type == "cuda" else (512, torch.float32)
    generator = torch.Generator().manual_seed(0)  # of its own: the run's random numbers stay as they are
    left, right = (torch.randint(-2, 3, (size, size), generator=generator).to(device, dtype) for _ in range(2))
    product = torch.empty(size, size, device=device, dtype=dtype)
    seconds = _best_seconds(device, lambda: torch.matmul(left, right, out=product))
    weights = torch.arange(size, device=device, dtype=torch.float64)
    return 2 * size**3 / seconds, float((product.to(torch.float64) @ weights).sum())


def memory_rate(device: torch.device) -> float:
    """Return bytes per second, read and written, of a copy within the memory of the device."""
    source = torch.zeros((256 if device.type == "cuda" else 64) * 2**20, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    num_bytes: int = 2 * source.numel()
    return num_bytes / _best_seconds(device, lambda: target.copy_(source))


def disk_rate(folder: Path) -> float:
    """Return bytes per second of a file that is written and synchronised in `folder`. Raises OSError."""
    block, path = secrets.token_bytes(_BLOCK), folder / f"preflight-{os.getpid()}"
    folder.mkdir(parents=True, exist_ok=True)
    begin, written = time.perf_counter(), 0
    try:
        with path.open("wb", buffering=0) as file:
            while written < DISK_BYTES and time.perf_counter() - begin < DISK_SECONDS:
                written += file.write(block)
            os.fsync(file.fileno())
        return written / (time.perf_counter() - begin)
    finally:
        path.unlink(missing_ok=True)


def store_rates(storage: Storage, encryptor: Encryptor, key: str) -> tuple[float, float]:
    """Return bytes per second of writing and of reading one encrypted object. Raises TrainerError."""
    ciphertext, _ = encryptor.encrypt(secrets.token_bytes(STORE_BYTES), key)
    begin = time.perf_counter()
    storage.put(key, ciphertext)
    written = time.perf_counter()
    found = storage.get(key)
    read = time.perf_counter()
    storage.delete_prefix(key)
    if found != ciphertext:
        raise OSError("the object store has returned other bytes than were stored")
    return len(ciphertext) / (written - begin), len(ciphertext) / (read - written)


def synchronise(device: torch.device) -> None:
    """Wait until the device has done all that was asked of it."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def highest(value: float, mesh: Mesh) -> float:
    """Return the highest value of all ranks; a collective."""
    found = torch.tensor(value, dtype=torch.float64, device=mesh.device)
    if mesh.world_size > 1:
        dist.all_reduce(found, dist.ReduceOp.MAX)
    return float(found)


def gather(values: list[float], mesh: Mesh) -> list[list[float]]:
    """Return the values of all ranks, which all have the same number of; a collective."""
    mine = torch.tensor(values, dtype=torch.float64, device=mesh.device)
    found = torch.empty(mesh.world_size * len(values), dtype=torch.float64, device=mesh.device)
    if mesh.world_size > 1:
        _all_gather(found, mine)
    else:
        found.copy_(mine)
    rows: list[list[float]] = found.view(mesh.world_size, len(values)).tolist()
    return rows


def collective_seconds(name: str, size: int, mesh: Mesh) -> float:
    """Return the mean time of a collective of all ranks over `size` bytes, of the slowest rank; a collective.

    As in nccl-tests, `size` is the buffer of an all-reduce and an all-to-all, and the result of an all-gather.
    """
    count = size // 4 // mesh.world_size * mesh.world_size
    whole = torch.zeros(count, device=mesh.device)
    action: Callable[[], object]
    if name == "all_reduce":
        action = lambda: dist.all_reduce(whole)  # noqa: E731 - one of three
    elif name == "all_gather":
        part = torch.zeros(count // mesh.world_size, device=mesh.device)
        action = lambda: _all_gather(whole, part)  # noqa: E731 - as above
    else:
        other = torch.zeros_like(whole)
        action = lambda: dist.all_to_all_single(other, whole)  # noqa: E731 - as above
    action()  # connections are made by the first
    first = highest(_timed(action, mesh.device), mesh)
    repetitions = min(max(int(_REPETITION_SECONDS / first), 1), _MAX_REPETITIONS)  # the same on all ranks

    def repeat() -> None:
        for _ in range(repetitions):
            action()

    return highest(_timed(repeat, mesh.device) / repetitions, mesh)


def bus_factor(name: str, num_ranks: int) -> float:
    """Return the bus bandwidth of a collective as a multiple of its bytes per second (nccl-tests, PERFORMANCE.md)."""
    return (2 if name == "all_reduce" else 1) * (num_ranks - 1) / num_ranks


def latency(mesh: Mesh) -> tuple[float, float]:
    """Return the median and the 99th percentile of the time of an all-reduce of 8 bytes, in seconds; a collective."""
    value = torch.zeros(2, device=mesh.device)
    dist.all_reduce(value)
    times = [_timed(lambda: dist.all_reduce(value), mesh.device) for _ in range(LATENCY_REPETITIONS)]
    return median(times), quantiles(times, n=100)[98]


def pair_rates(rounds: list[list[tuple[int, int]]], ranks: list[int], size: int, mesh: Mesh) -> list[Pair]:
    """Return the bytes per second in each direction between the pairs of places, whose ranks are `ranks`, while the
    pairs of a round send at the same time; a collective."""
    found = []
    for number, pairs in enumerate(rounds):
        partner = {ranks[a]: ranks[b] for a, b in pairs} | {ranks[b]: ranks[a] for a, b in pairs}
        dist.barrier()
        mine = float("nan")
        if mesh.rank in partner:
            mine = _exchange_rate(partner[mesh.rank], size, mesh)
        rates = gather([mine], mesh)
        found += [Pair(number, a, b, min(rates[ranks[a]][0], rates[ranks[b]][0])) for a, b in pairs]
    return found


def _exchange_rate(peer: int, size: int, mesh: Mesh) -> float:
    sent, received = (torch.zeros(size // 4, device=mesh.device) for _ in range(2))

    def exchange() -> None:
        for work in dist.batch_isend_irecv(_ops(sent, received, peer)):
            work.wait()

    exchange()
    return size / min(_timed(exchange, mesh.device) for _ in range(_PAIR_REPETITIONS))


def _ops(sent: Tensor, received: Tensor, peer: int) -> list[dist.P2POp]:
    return [dist.P2POp(dist.isend, sent, peer), dist.P2POp(dist.irecv, received, peer)]


def _best_seconds(device: torch.device, action: Callable[[], object]) -> float:
    _timed(action, device)  # kernels are loaded and memory is touched by the first
    begin, best = time.perf_counter(), _timed(action, device)
    while time.perf_counter() - begin < DEVICE_SECONDS:
        best = min(best, _timed(action, device))
    return best


def _timed(action: Callable[[], object], device: torch.device) -> float:
    synchronise(device)
    begin = time.perf_counter()
    action()
    synchronise(device)
    return time.perf_counter() - begin


def expected_memory_rate(device: torch.device) -> float | None:
    """Return the peak of the device's memory in bytes per second, None if it is not known."""
    return _of_device(device, HBM_PEAKS)


def expected_bus_rate(name: str, size: int, mesh: Mesh, num_nodes: int) -> float | None:
    """Return the published bus bandwidth of a collective on such a machine, None if it is not known."""
    is_known = name == "all_reduce" and size == ALL_REDUCE_BYTES and (mesh.world_size, num_nodes) == (8, 1)
    return _of_device(mesh.device, ALL_REDUCE_OF_8) if is_known else None


def _of_device(device: torch.device, table: tuple[tuple[str, float], ...]) -> float | None:
    if device.type != "cuda":
        return None
    name = torch.cuda.get_device_name(device)
    return next((value for part, value in table if part in name), None)
