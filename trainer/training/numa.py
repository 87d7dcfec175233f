"""Bind each process to the CPUs next to its GPU, from what sysfs says of the node."""

import os
from pathlib import Path

import torch

from trainer.parallel.mesh import choose_device

SYSFS = Path("/sys")


def bind_to_gpu(local_rank: int, processes_per_node: int) -> bool:
    """Restrict this process to its part of the CPUs of its GPU's NUMA node, and use as many threads.

    Return False, and change nothing, without GPUs or if sysfs does not name the nodes of all GPUs.
    """
    if not torch.cuda.is_available():
        return False
    choose_device(local_rank)  # first, so that no context is created on another process's GPU
    addresses = []
    for number in range(processes_per_node):
        gpu = torch.cuda.get_device_properties(number)
        addresses.append(f"{gpu.pci_domain_id:04x}:{gpu.pci_bus_id:02x}:{gpu.pci_device_id:02x}.0")
    cpus = cpus_of_gpus(SYSFS, addresses, os.sched_getaffinity(0))
    if cpus is None:
        return False
    os.sched_setaffinity(0, cpus[local_rank])
    torch.set_num_threads(len(cpus[local_rank]))
    return True


def cpus_of_gpus(sysfs: Path, addresses: list[str], allowed: set[int]) -> list[set[int]] | None:
    """Return the CPUs of each GPU: the GPUs of a NUMA node divide its `allowed` cores, with both threads of a core.

    `addresses`: PCI addresses of the GPUs, such as 0000:1b:00.0, by local rank. None if the node of a GPU is not known
    or has fewer allowed cores than GPUs.
    """
    nodes = [_read(sysfs / "bus/pci/devices" / address / "numa_node") for address in addresses]
    found: dict[int, set[int]] = {}
    for node in set(nodes):
        cpus = parse_cpu_list(_read(sysfs / f"devices/system/node/node{node}/cpulist")) & allowed
        cores: dict[int, set[int]] = {}
        for cpu in sorted(cpus):
            siblings = parse_cpu_list(_read(sysfs / f"devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"))
            cores.setdefault(min(siblings, default=cpu), set()).add(cpu)
        gpus = [rank for rank, other in enumerate(nodes) if other == node]
        if len(cores) < len(gpus):
            return None
        threads = [cores[core] for core in sorted(cores)]
        for place, rank in enumerate(gpus):
            first, end = place * len(threads) // len(gpus), (place + 1) * len(threads) // len(gpus)
            found[rank] = set().union(*threads[first:end])
    return [found[rank] for rank in range(len(addresses))]


def parse_cpu_list(text: str) -> set[int]:
    """Return the numbers of a list in the kernel's format, such as `0-3,8`."""
    numbers: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        numbers |= set(range(int(first), int(last or first) + 1))
    return numbers


def _read(path: Path) -> str:
    """Return the text of a file of sysfs, empty if there is none."""
    return path.read_text().strip() if path.exists() else ""
