"""What the device of a rank decides: how large a micro-batch may be."""

import torch
import torch.distributed as dist

from trainer.parallel.mesh import Mesh


def smallest_device_bytes(mesh: Mesh) -> int | None:
    """Return the memory of the smallest accelerator of all ranks, in bytes; a collective. None for CPUs."""
    if mesh.device.type != "cuda":
        return None
    total = torch.tensor(torch.cuda.get_device_properties(mesh.device).total_memory, device=mesh.device)
    dist.all_reduce(total, dist.ReduceOp.MIN)
    return int(total)
