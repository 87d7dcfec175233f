"""Where backups are stored: a folder, or a prefix of another bucket of the object store.

Names have forward slashes and are made by this package: `objects/` has each object once, by its digest, for all
backups; `backups/ID/` has what belongs to one. Files are 0600 in folders of 0700, and no symbolic link is followed.
"""

import errno
import os
import stat
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

from athanor.artifacts import storage
from athanor.core.errors import Invalid, Unavailable

COPIES_AT_A_TIME = 8
UNFINISHED = ".unfinished"  # the end of a file's name until all of it is written


class Destination(Protocol):
    """A place that has named files."""

    def read(self, name: str) -> bytes | None:
        """Return the content of a file; None if it does not exist."""

    def write(self, name: str, content: bytes) -> None:
        """Write a file, which exists completely or not at all."""

    def sizes(self, folder: str) -> dict[str, int]:
        """Return the size of every file below a folder, by name."""

    def delete(self, names: list[str]) -> None:
        """Delete files."""


def open_destination(address: str) -> Destination:
    """Return the place that an address names: `s3://BUCKET/PREFIX` or a folder.

    Raise Invalid for the platform's bucket.
    """
    if not address.startswith("s3://"):
        return FolderDestination(Path(address))
    if storage.split(address)[0] == storage.bucket():
        raise Invalid(
            "backup_in_the_bucket",
            f"{address} is in the platform's own bucket, with which the backup would be lost",
            remedy="name another bucket or a folder",
        )
    return BucketDestination(address.rstrip("/"))


class FolderDestination:
    """A folder of this machine."""

    def __init__(self, root: Path) -> None:
        """`root` is made by the first write; it may itself be reached by a link."""
        self._root = root

    def read(self, name: str) -> bytes | None:
        """Return the content of a file; None if it does not exist. Raise Invalid for a symbolic link."""
        try:
            descriptor = os.open(self._path(name), os.O_RDONLY | os.O_NOFOLLOW)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._translated(name, error) from error
        with os.fdopen(descriptor, "rb") as file:
            return file.read()

    def write(self, name: str, content: bytes) -> None:
        """Write a file with fsync. Raise Invalid for a symbolic link on its way, Unavailable for a full disk."""
        path = self._path(name, create=True)
        temporary = path.with_name(path.name + UNFINISHED)
        try:
            temporary.unlink(missing_ok=True)
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(descriptor)
            temporary.replace(path)
            _sync(path.parent)
        except OSError as error:
            raise self._translated(name, error) from error

    def sizes(self, folder: str) -> dict[str, int]:
        """Return the size of every file below a folder, by name. Symbolic links are none."""
        return dict(self._below(self._path(folder), folder))

    def delete(self, names: list[str]) -> None:
        """Delete files, and folders that have become empty."""
        for name in names:
            path = self._path(name)
            path.unlink(missing_ok=True)
            if path.parent.exists() and not any(path.parent.iterdir()):
                path.parent.rmdir()

    def _below(self, path: Path, name: str) -> Iterator[tuple[str, int]]:
        try:
            entries = sorted(os.scandir(path), key=lambda entry: entry.name)
        except FileNotFoundError:
            return
        for entry in entries:
            inner = f"{name}/{entry.name}"
            if entry.is_dir(follow_symlinks=False):
                yield from self._below(Path(entry.path), inner)
            elif entry.is_file(follow_symlinks=False) and not entry.name.endswith(UNFINISHED):
                yield inner, entry.stat(follow_symlinks=False).st_size

    def _path(self, name: str, *, create: bool = False) -> Path:
        """Return the path of a file. Raise Invalid if a folder above it, below the root, is a symbolic link."""
        if create:
            self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = self._root
        for piece in name.split("/")[:-1]:
            path /= piece
            if create:
                path.mkdir(mode=0o700, exist_ok=True)
            if path.is_symlink() or (path.exists() and not path.is_dir()):
                raise _no_link(path)
        return path / name.rpartition("/")[2]

    def _translated(self, name: str, error: OSError) -> Invalid | Unavailable:
        path = self._root / name
        if error.errno == errno.ELOOP:
            return _no_link(path)
        return Unavailable("backup_folder", f"{path}: {error.strerror}", remedy="correct it, then run this again")


class BucketDestination:
    """A prefix of a bucket. `base` is its URI, without a slash at the end."""

    def __init__(self, base: str) -> None:
        """Use the object store's own address and credentials."""
        self._base = base

    def read(self, name: str) -> bytes | None:
        """Return the content of a file; None if it does not exist."""
        return storage.get(f"{self._base}/{name}")

    def write(self, name: str, content: bytes) -> None:
        """Write a file."""
        storage.put(f"{self._base}/{name}", content)

    def sizes(self, folder: str) -> dict[str, int]:
        """Return the size of every file below a folder, by name."""
        listed = storage.listing(f"{self._base}/{folder}/")
        return {item.key.removeprefix(f"{self._base}/"): item.size for item in listed}

    def delete(self, names: list[str]) -> None:
        """Delete files."""
        storage.delete([f"{self._base}/{name}" for name in names])


def workers() -> ThreadPoolExecutor:
    """Return the threads that copy objects."""
    return ThreadPoolExecutor(COPIES_AT_A_TIME, thread_name_prefix="backup")


def _no_link(path: Path) -> Invalid:
    kind = "a symbolic link" if path.is_symlink() else stat.filemode(path.stat().st_mode)
    return Invalid(
        "backup_link", f"{path} is {kind}, which no backup contains", remedy="remove it, then run this again"
    )


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
