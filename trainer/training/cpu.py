"""How a process shares the node's cores and memory with its neighbours."""

import ctypes
import gc
import os
import sys

import torch

# malloc.h of the GNU C library
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_MAX = -1, -2, -4
_TOP_PAD_BYTES = 64 * 2**20


STEPS_BETWEEN_COLLECTIONS = 50


def disable_automatic_collection() -> None:
    """Disable automatic garbage collection; `collect_garbage` then runs it on all ranks after the same steps.

    A pause of one rank delays all others. Existing objects are in the oldest generation, which
    `collect_garbage` does not search.
    """
    gc.collect()
    gc.disable()


def collect_garbage(step: int) -> None:
    """Collect young objects every STEPS_BETWEEN_COLLECTIONS steps."""
    if step % STEPS_BETWEEN_COLLECTIONS == 0:
        gc.collect(1)


def share_cores(processes_per_node: int) -> int:
    """Give this process its part of the cores it may use; returns how many threads that is."""
    threads = max(1, len(os.sched_getaffinity(0)) // processes_per_node)
    torch.set_num_threads(threads)
    return threads


def reuse_freed_memory() -> None:
    """Let malloc keep freed large blocks; by default it maps and unmaps the memory of each activation in each step.

    For runs on a CPU, whose steps allocate the same sizes. Does nothing without the GNU C library.
    """
    if sys.platform != "linux":
        return
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(_M_MMAP_MAX, 0)
        libc.mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)
        libc.mallopt(_M_TOP_PAD, _TOP_PAD_BYTES)
