"""End a process together with its parent, by the kernel's parent-death signal."""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def die_with_parent(parent: int | None = None) -> None:
    """Let the kernel send SIGKILL to this process when the thread that started it ends. Does nothing but on Linux.

    `parent`: the parent's process id. If it has ended before the call, the process kills itself, since the signal is
    sent only if the parent ends later.
    """
    if sys.platform != "linux":
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if parent is not None and os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)
