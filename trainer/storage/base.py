"""What the trainer asks of an object store."""

from typing import Protocol

from trainer.contract.run import EndClass
from trainer.errors import TrainerError


class StorageError(TrainerError):
    """The store did not take or give an object within its deadline."""

    def __init__(self, message: str) -> None:
        super().__init__(EndClass.STORAGE_ERROR, message)


class MissingObject(StorageError):
    """The store answers, and has no such object."""


class Storage(Protocol):
    """Whole objects of bounded size. Safe to use from several threads."""

    def put(self, key: str, data: bytes) -> None:
        """Store, replacing what was there; returns once it is durable. Raises StorageError."""

    def get(self, key: str) -> bytes:
        """Return an object. Raises MissingObject if there is none, StorageError if it cannot be read."""

    def delete_prefix(self, prefix: str) -> None:
        """Remove every object below `prefix`, where this store lets its writer do so (else nothing)."""
