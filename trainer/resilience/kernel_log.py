"""The kernel's log since a moment, where this process may read it: it names faults of GPUs by Xid numbers."""

import os
from contextlib import suppress
from pathlib import Path

from trainer.contract.run import EndClass
from trainer.resilience.error_patterns import classify_xid

KERNEL_LOG = Path("/dev/kmsg")
_READ_BYTES = 65_536  # more than the longest record; a read of the device returns one


class KernelLog:
    """The lines that the kernel logs from now on; none where the log cannot be opened, as in most containers."""

    def __init__(self, path: Path = KERNEL_LOG) -> None:
        self._descriptor: int | None = None
        self._lines: list[str] = []
        with suppress(OSError):
            self._descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
            os.lseek(self._descriptor, 0, os.SEEK_END)

    def gpu_error(self) -> tuple[EndClass, str] | None:
        """Return the first fault of a GPU of this node since the start, or else the first exception: its class and
        its line."""
        self._read_more()
        found = [(end_class, line) for line in self._lines if (end_class := classify_xid(line)) is not None]
        return min(found, key=lambda each: each[0] is not EndClass.GPU_FAULT, default=None)

    def close(self) -> None:
        """Close the log; what was read remains."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _read_more(self) -> None:
        if self._descriptor is None:
            return
        with suppress(BlockingIOError):  # no more
            while True:
                try:
                    content = os.read(self._descriptor, _READ_BYTES)
                except BrokenPipeError:  # records were overwritten before they were read: the next read continues
                    continue
                if not content:
                    return
                # A record of the device: "priority,number,microseconds,flags;NVRM: Xid ...".
                self._lines += [line.rpartition(",-;")[2] for line in content.decode(errors="replace").splitlines()]
