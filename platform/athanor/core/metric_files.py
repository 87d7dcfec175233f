"""Files of counters that a full disk does not turn into the end of their process.

`prometheus_client` maps files with holes into memory. A write to a hole that the disk has no room for ends the process
with SIGBUS. Here all bytes of a file are allocated before they are mapped.
"""

import errno
import logging
import os
from contextlib import suppress
from pathlib import Path

from prometheus_client import values
from prometheus_client.mmap_dict import MmapedDict

RESERVED_BYTES = 2**18
"""Size of a new file: a counter needs about 200 bytes, a histogram 15 times as many."""

_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EROFS}

log = logging.getLogger(__name__)


class AllocatedDict(MmapedDict):
    """Counters of one process in a file that has no holes.

    Without room for a new file they are in the memory of this process, and no other process reads them. Without room
    for a new counter in a file, the library keeps its value until there is room.
    """

    def __init__(self, filename: str, read_mode: bool = False) -> None:
        if not read_mode:
            filename = _allocated(Path(filename))
        self._is_full = False
        super().__init__(filename, read_mode)  # type: ignore[no-untyped-call] # the library has no types

    def read_value(self, key: str) -> tuple[float, float]:
        """Return a counter's value and when it was set, in seconds; zeros if there is no room for it."""
        if not self._has_room(key):
            return 0.0, 0.0
        found: tuple[float, float] = super().read_value(key)  # type: ignore[no-untyped-call] # likewise
        return found

    def write_value(self, key: str, value: float, timestamp: float) -> None:
        """Set a counter, if there is room for it."""
        if self._has_room(key):
            super().write_value(key, value, timestamp)  # type: ignore[no-untyped-call] # likewise

    def _has_room(self, key: str) -> bool:
        if key in self._positions:
            return True
        end = self._used + len(key.encode()) + 32  # its length, padding, value and time
        size = self._capacity
        while size < end:
            size *= 2
        try:
            if size > self._capacity:
                os.posix_fallocate(self._f.fileno(), 0, size)
        except OSError as error:
            if not self._is_full:
                log.warning(
                    "%s cannot grow (%s): new counters are not shared until there is room", self._fname, error.strerror
                )
            self._is_full = True
            return False
        self._is_full = False
        return True


def _allocated(path: Path) -> str:
    """Return a file with all its bytes allocated: `path`, or one in memory if the disk has no room."""
    try:
        with path.open("ab") as file:
            if os.fstat(file.fileno()).st_size == 0:
                os.posix_fallocate(file.fileno(), 0, RESERVED_BYTES)
    except OSError as error:
        if error.errno not in _NO_ROOM:  # such as a folder that does not exist
            raise
        log.warning("%s has no room for counters (%s): those of this process are not shared", path, error.strerror)
        with suppress(OSError):
            path.unlink(missing_ok=True)  # an empty file cannot be read
        return f"/proc/self/fd/{os.memfd_create(path.name)}"
    return str(path)


def install() -> None:
    """Let the library use these files. To be called before the first counter is made."""
    if hasattr(os, "posix_fallocate"):
        values.MmapedDict = AllocatedDict  # type: ignore[attr-defined] # the library has no place to choose it
