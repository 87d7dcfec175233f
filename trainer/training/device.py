"""What the devices of a run decide, such as its precision, and what is configured before they are used."""

import os
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.attention import SDPBackend, sdpa_kernel

from trainer.parallel.mesh import Mesh

BF16_CAPABILITY = (8, 0)
"""Lowest compute capability whose matrix products have bf16 (Ampere; CUDA C++ Programming Guide, table of
capabilities)."""

HOPPER_CAPABILITY = (9, 0)
ATTENTION_ORDER = [
    SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH,
]  # fmt: skip


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


def prefer_fast_attention(device: torch.device) -> AbstractContextManager[object]:
    """Let attention on GPUs from Hopper on use cuDNN's kernel where that takes the inputs, otherwise FlashAttention's,
    the memory-efficient one, or plain products, in this order. Torch itself would ask FlashAttention first, although
    cuDNN is 1.8 times as fast on an H100 (causal, forward and backward, in bf16: docs/benchmarks.md)."""
    if device.type != "cuda" or torch.cuda.get_device_capability(device) < HOPPER_CAPABILITY:
        return nullcontext()
    order: AbstractContextManager[object] = sdpa_kernel(ATTENTION_ORDER, set_priority=True)
    return order


def use_deterministic_algorithms() -> None:
    """Refuse operations of this process whose results depend on timing (`TrainingSpec.deterministic`).

    To be called before cuBLAS starts: its workspace of a fixed size, 24 MiB, makes products repeatable (cuBLAS,
    "Results reproducibility"). Memory that is not initialised stays so: no operation of the trainer reads it.
    """
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False


def tolerate_failed_compilation() -> None:
    """Let blocks that torch fails to compile run as they are; it logs the error."""
    import torch._dynamo  # noqa: PLC0415 - takes a second to load

    torch._dynamo.config.suppress_errors = True


def record_collectives(folder: Path) -> None:
    """Let NCCL's process groups record their last 2,000 collectives, and write them to `nccl-trace-rank-N` in `folder`
    when one times out, unless the node sets these variables. To be called before process groups are created.

    Sources of the names: FlightRecorder.hpp and ProcessGroupNCCL.hpp of torch 2.13.
    """
    if "TORCH_NCCL_TRACE_BUFFER_SIZE" not in os.environ:  # the older name
        os.environ.setdefault("TORCH_FR_BUFFER_SIZE", "2000")
    os.environ.setdefault("TORCH_NCCL_DUMP_ON_TIMEOUT", "1")
    if "TORCH_NCCL_DEBUG_INFO_TEMP_FILE" not in os.environ:  # the older name
        os.environ.setdefault("TORCH_FR_DUMP_TEMP_FILE", str(folder / "nccl-trace-rank-"))


def _smallest(value: int, mesh: Mesh) -> int:
    found = torch.tensor(value, device=mesh.device)
    dist.all_reduce(found, dist.ReduceOp.MIN)
    return int(found)
