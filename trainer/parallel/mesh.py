"""The process group: devices, backends, and the few collectives the loop needs."""

import datetime
import gc
import os
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

COLLECTIVE_TIMEOUT = datetime.timedelta(minutes=10)


@dataclass(frozen=True)
class Mesh:
    """This rank's place. One axis so far: `data`."""

    rank: int
    world_size: int
    local_rank: int
    device: torch.device

    @property
    def axes(self) -> dict[str, int]:
        return {"data": self.world_size}


def choose_device(local_rank: int) -> torch.device:
    if torch.cuda.is_available():
        device = torch.device("cuda", local_rank)
        torch.cuda.set_device(device)
        return device
    return torch.device("cpu")


def join(rank: int, world_size: int, local_rank: int, store: dist.Store, *, single_node: bool) -> Mesh:
    """Form the process group over `store`, whose keys no earlier generation has used."""
    device = choose_device(local_rank)
    if single_node:
        # Otherwise gloo resolves the host's name, which may be missing or point to a slow interface.
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group(
        "nccl" if device.type == "cuda" else "gloo",
        store=store,
        rank=rank,
        world_size=world_size,
        timeout=COLLECTIVE_TIMEOUT,
        device_id=device if device.type == "cuda" else None,
    )
    return Mesh(rank, world_size, local_rank, device)


def leave() -> None:
    """Callers drop model and optimizer first: a sharded tensor that outlives its group aborts the process at exit."""
    gc.collect()
    if dist.is_initialized():
        dist.destroy_process_group()


def sum_over_ranks(values: Tensor, mesh: Mesh) -> Tensor:
    """In place; a run of one process pays nothing."""
    if mesh.world_size > 1:
        dist.all_reduce(values)
    return values
