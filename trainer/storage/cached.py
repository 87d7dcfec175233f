"""A copy of what a job stored, kept near its nodes: a restart reads it from a disk instead of the object store.

What is kept is the same ciphertext, so a node's disk, or a file system that many share, learns nothing.
"""

import hashlib
import os
import shutil
import socket
import time
from pathlib import Path

from trainer.storage.base import Storage

DELETE_AFTER_SECONDS = 7 * 86_400.0  # of jobs that never came back to clear away what they kept
_CACHED_STEPS = 2


class CachedStorage:
    """`folder`: of this job alone. Only checkpoints are kept, the newest `_CACHED_STEPS` of them; everything goes to
    `inner` first. A copy that is damaged, or cannot be written, is as good as none."""

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
    """Of a job that is over."""
    shutil.rmtree(folder, ignore_errors=True)


def delete_abandoned(root: Path) -> None:
    """Folders of jobs below `root` in which nothing was written for long."""
    limit = time.time() - DELETE_AFTER_SECONDS
    for folder in root.glob("*"):
        try:
            newest = max([folder.stat().st_mtime, *(path.stat().st_mtime for path in folder.iterdir())])
        except OSError:
            continue
        if newest < limit:
            shutil.rmtree(folder, ignore_errors=True)


def _step_of(key: str) -> str | None:
    """`step-00000020-1-0` of a checkpoint's object: step, attempt, generation."""
    _, found, rest = key.partition("checkpoints/")
    return rest.partition("/")[0] if found and rest.startswith("step-") else None
