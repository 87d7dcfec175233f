"""Objects as files below one folder: the store of a standalone run."""

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from trainer.storage.base import MissingObject, StorageError


class FolderStorage:
    """An object store in a folder; keys are relative paths. A file gets its name only when it is complete and
    synced."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def put(self, key: str, data: bytes) -> None:
        """Write an object. A reader sees it complete or not at all."""
        path = self._path(key)
        partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with partial.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            partial.replace(path)
        except OSError as error:
            raise StorageError(f"cannot write {path}: {error}; free space or choose another folder") from error

    def get(self, key: str) -> bytes:
        """Return an object. Raises MissingObject."""
        path = self._path(key)
        try:
            return path.read_bytes()
        except FileNotFoundError as error:
            raise MissingObject(f"{path} does not exist") from error
        except OSError as error:
            raise StorageError(f"cannot read {path}: {error}") from error

    def announce(self, keys: Sequence[str]) -> None:
        """Do nothing: a folder needs no permission."""

    def delete_prefix(self, prefix: str) -> None:
        """Delete the objects below a prefix."""
        shutil.rmtree(self._path(prefix.rstrip("/")), ignore_errors=True)

    def _path(self, key: str) -> Path:
        if key.startswith("/") or ".." in key.split("/"):
            raise StorageError(f"object key {key!r} is outside the store")
        return self._root / key
