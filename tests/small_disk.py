"""A small file system of a test's own, to fill."""

import itertools
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


class SmallDisk:
    """A mounted file system below `path`, which `fill` fills and `free` makes room on again."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._ballast = path / "ballast"

    def fill(self) -> None:
        """Write until nothing more fits."""
        for size in (2**20, 4096):
            with self._ballast.open("ab", buffering=0) as handle, pytest.raises(OSError, match="No space left"):
                while True:
                    handle.write(b"x" * size)

    def free(self) -> None:
        """Delete what `fill` wrote."""
        self._ballast.unlink()

    def take_inodes(self) -> None:
        """Make empty files until no further one can be made."""
        folder = self.path / "inodes"
        folder.mkdir()
        with pytest.raises(OSError, match="No space left"):
            for number in itertools.count():
                (folder / str(number)).touch()

    def give_inodes(self) -> None:
        """Delete what `take_inodes` made."""
        shutil.rmtree(self.path / "inodes")

    def set_read_only(self, read_only: bool) -> None:
        """Let the file system refuse all writes, or take them again."""
        subprocess.run(["mount", "-o", f"remount,{'ro' if read_only else 'rw'}", str(self.path)], check=True)


@contextmanager
def small_disk(path: Path, size: str, inodes: int | None = None) -> Iterator[SmallDisk]:
    """Mount a file system of `size`, such as "256k", at a new folder `path`. Skips the test where that needs root."""
    path.mkdir()
    limits = f"size={size}" if inodes is None else f"size={size},nr_inodes={inodes}"
    mount = ["mount", "-t", "tmpfs", "-o", limits, "tmpfs", str(path)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("mounting a small file system needs root")
    try:
        yield SmallDisk(path)
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)
