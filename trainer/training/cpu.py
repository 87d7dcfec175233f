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
    """From here on Python looks for unreachable cycles only when `collect_garbage` says so: a pause on one rank is a
    pause on all, and ranks left to themselves pause at different steps. Objects that exist by now are in the oldest
    generation, which `collect_garbage` does not search."""
    gc.collect()
    gc.disable()


def collect_garbage(step: int) -> None:
    """On all ranks after the same steps; young objects only."""
    if step % STEPS_BETWEEN_COLLECTIONS == 0:
        gc.collect(1)


def share_cores(processes_per_node: int) -> int:
    """Give this process its part of the cores it may use; returns how many threads that is."""
    threads = max(1, len(os.sched_getaffinity(0)) // processes_per_node)
    torch.set_num_threads(threads)
    return threads


def reuse_freed_memory() -> None:
    """Let the allocator reuse large blocks: by default each activation of each step is mapped, faulted in and unmapped.

    For runs on the CPU only, whose steps ask for the same sizes again and again. Without the GNU C library, nothing.
    """
    if sys.platform != "linux":
        return
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(_M_MMAP_MAX, 0)
        libc.mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)
        libc.mallopt(_M_TOP_PAD, _TOP_PAD_BYTES)
