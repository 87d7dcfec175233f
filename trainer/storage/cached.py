"""A cache of a job's checkpoints near its nodes, from which a restart reads instead of the object store.

It contains the same ciphertext as the store, so a shared file system needs no further protection.
"""

import hashlib
import os
import shutil
import socket
import time
from collections.abc import Sequence
from pathlib import Path

from trainer.storage.base import Storage

DELETE_AFTER_SECONDS = 7 * 86_400.0  # for jobs that have not deleted their cache themselves
_CACHED_STEPS = 2


class CachedStorage:
    """A write-through cache of the newest `_CACHED_STEPS` checkpoints in `folder`, which belongs to this job alone.

    Every object is written to `inner` first. Copies that are damaged or cannot be written are ignored.
    """

    def __init__(self, inner: Storage, folder: Path) -> None:
        self._inner, self._folder = inner, folder

    def put(self, key: str, data: bytes) -> None:
        """Store an object, then copy one of a checkpoint to the cache."""
        self._inner.put(key, data)
        step = _step_of(key)
        if step is None:
            return
        try:
            path = self._path(step, key)
            path.parent.mkdir(parents=True, exist_ok=True)
            partial = path.with_name(f".{path.name}.{socket.gethostname()}.{os.getpid()}")
            partial.write_bytes(hashlib.sha256(data).digest() + data)
            partial.replace(path)
            self._delete_older()
        except OSError:
            return

    def get(self, key: str) -> bytes:
        """Return an object, from the cache if it is there."""
        step = _step_of(key)
        if step is not None:
            path = self._path(step, key)
            try:
                content = path.read_bytes()
            except OSError:
                content = b""
            digest, data = content[:32], content[32:]
            if digest and hashlib.sha256(data).digest() == digest:
                return data
        return self._inner.get(key)

    def announce(self, keys: Sequence[str]) -> None:
        """Announce objects to the store."""
        self._inner.announce(keys)

    def delete_prefix(self, prefix: str) -> None:
        """Delete objects from the store."""
        self._inner.delete_prefix(prefix)

    def _path(self, step: str, key: str) -> Path:
        return self._folder / step / hashlib.sha256(key.encode()).hexdigest()

    def _delete_older(self) -> None:
        newest_last = sorted(self._folder.iterdir(), key=lambda path: path.stat().st_mtime)
        for folder in newest_last[:-_CACHED_STEPS]:
            shutil.rmtree(folder, ignore_errors=True)


def delete_cached(folder: Path) -> None:
    """Delete the cache of a job that has ended."""
    shutil.rmtree(folder, ignore_errors=True)


def delete_abandoned(root: Path) -> None:
    """Delete the folders of jobs below `root` in which nothing was written for DELETE_AFTER_SECONDS."""
    limit = time.time() - DELETE_AFTER_SECONDS
    for folder in root.glob("*"):
        try:
            newest = max([folder.stat().st_mtime, *(path.stat().st_mtime for path in folder.iterdir())])
        except OSError:
            continue
        if newest < limit:
            shutil.rmtree(folder, ignore_errors=True)


def _step_of(key: str) -> str | None:
    """Return the folder of a checkpoint's object, `step-STEP-ATTEMPT-GENERATION`; None for other objects."""
    _, found, rest = key.partition("checkpoints/")
    return rest.partition("/")[0] if found and rest.startswith("step-") else None
