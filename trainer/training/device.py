"""What the devices of a run decide: its precision, and how large a micro-batch may be."""

import torch
import torch.distributed as dist

from trainer.parallel.mesh import Mesh

BF16_CAPABILITY = (8, 0)
"""Lowest compute capability whose matrix products have bf16 (Ampere; CUDA C++ Programming Guide, table of
capabilities)."""


def smallest_device_bytes(mesh: Mesh) -> int | None:
    """Return the memory of the smallest accelerator of all ranks, in bytes; a collective. None for CPUs."""
    if mesh.device.type != "cuda":
        return None
    return _smallest(torch.cuda.get_device_properties(mesh.device).total_memory, mesh)


def has_bf16(mesh: Mesh) -> bool:
    """Return whether the devices of all ranks are GPUs whose matrix products have bf16; a collective."""
    if mesh.device.type != "cuda":
        return False
    return bool(_smallest(int(torch.cuda.get_device_capability(mesh.device) >= BF16_CAPABILITY), mesh))


def allow_tf32(device: torch.device) -> None:
    """Round the inputs of fp32 matrix products to TF32 (10 bits of fraction) on a GPU, which is about 7 times as fast:
    495 instead of 67 TFLOP/s on an H100 SXM (NVIDIA's data sheet, 2023). CPUs compute as before."""
    if device.type == "cuda":
        torch.set_float32_matmul_precision("high")


def _smallest(value: int, mesh: Mesh) -> int:
    found = torch.tensor(value, device=mesh.device)
    dist.all_reduce(found, dist.ReduceOp.MIN)
    return int(found)
