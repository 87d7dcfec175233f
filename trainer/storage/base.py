"""The interface of object stores, and its errors."""

from collections.abc import Sequence
from typing import Protocol

from trainer.contract.run import EndClass
from trainer.errors import TrainerError


class StorageError(TrainerError):
    """The store failed to read or write an object, after retries."""

    def __init__(self, message: str) -> None:
        super().__init__(EndClass.STORAGE_ERROR, message)


class MissingObject(StorageError):
    """The store has no object with this key."""


class Storage(Protocol):
    """An object store; objects are written and read completely, and have a bounded size. Thread-safe."""

    def put(self, key: str, data: bytes) -> None:
        """Store, replacing what was there; returns once it is durable. Raises StorageError."""

    def get(self, key: str) -> bytes:
        """Return an object. Raises MissingObject if there is none, StorageError if it cannot be read."""

    def announce(self, keys: Sequence[str]) -> None:
        """Take note that these objects will be stored soon. A store that asks for permission asks for all of them."""

    def delete_prefix(self, prefix: str) -> None:
        """Remove every object below `prefix`, where this store lets its writer do so (else nothing)."""
