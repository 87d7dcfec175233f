"""Free space on the disks that the platform's own data is on.

New work is refused while less than the reserve is free, so that running jobs can end, and what is stored can be
deleted. The reserve is for this: a database that cannot write its log stops.
"""

import os
import tempfile
from pathlib import Path

from django.conf import settings

from athanor.core.errors import Unavailable

MIB = 2**20
MIN_FREE_INODES = 1000
REMEDY = "free space on that disk; then send the request again"


def require_space() -> None:
    """Raise Unavailable if a disk has less free space than ATHANOR_DISK_RESERVE_MIB, few inodes, or is read-only.

    Looks at the folders of ATHANOR_DISKS; without them it does nothing.
    """
    for folder in settings.ATHANOR.disk_folders:
        message = _shortage(folder)
        if message:
            raise Unavailable("disk_full", f"the disk of {folder} {message}", remedy=REMEDY)


def require_writable() -> None:
    """Likewise, and write a file to each folder."""
    require_space()
    for folder in settings.ATHANOR.disk_folders:
        try:
            with tempfile.TemporaryFile(dir=folder) as file:
                file.write(b"0" * 4096)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise Unavailable("disk_full", f"{folder} cannot be written: {error.strerror}", remedy=REMEDY) from error


def _shortage(folder: Path) -> str:
    """Return what the folder's disk lacks, empty if nothing."""
    try:
        disk = os.statvfs(folder)
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    free_mib, reserve_mib = disk.f_bavail * disk.f_frsize // MIB, settings.ATHANOR.disk_reserve_mib
    if disk.f_flag & os.ST_RDONLY:
        return "is read-only"
    if free_mib < reserve_mib:
        return f"has {free_mib} MiB free, and {reserve_mib} MiB are reserved for work that runs"
    if disk.f_files and disk.f_favail < MIN_FREE_INODES:  # some file systems have no fixed number of inodes
        return f"has {disk.f_favail} inodes free, and {MIN_FREE_INODES} are reserved for work that runs"
    return ""
