"""Nothing outlives its parent: the kernel kills a process when the one that started it is gone."""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def die_with_parent(parent: int | None = None) -> None:
    """SIGKILL for this process when its parent's thread ends; Linux only, elsewhere it does nothing.

    `parent`: the parent's process id. Where it is already gone, this process ends here, since the signal is
    sent only for a death after the call.
    """
    if sys.platform != "linux":
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if parent is not None and os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)
