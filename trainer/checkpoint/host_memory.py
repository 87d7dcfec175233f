"""Memory of the host for copies of the state."""

import mmap

import torch
from torch import Tensor

PAGE = mmap.PAGESIZE


def reserve(num_bytes: int) -> Tensor:
    """Return memory of at least so many bytes, uint8, that begins and ends at pages. The kernel allocates each page
    when it is first written."""
    pages = -(-max(num_bytes, 1) // PAGE)
    return torch.frombuffer(mmap.mmap(-1, pages * PAGE), dtype=torch.uint8)


def allocate(memory: Tensor) -> None:
    """Let the kernel allocate memory, without a change of its content. It begins and ends at pages."""
    memory.view(-1, PAGE)[:, 0].add_(0)


def pin(memory: Tensor) -> None:
    """Let a GPU copy to this memory by itself. Where the driver refuses it, copies are slower."""
    torch.cuda.cudart().cudaHostRegister(memory.data_ptr(), memory.nbytes, 0)
