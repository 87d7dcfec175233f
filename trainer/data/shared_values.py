"""Values that the processes of a preparation share through the store of one of them, encrypted with the data set's
key."""

import json
import threading
import zlib
from collections.abc import Iterator
from typing import Any, TypeVar

from pydantic import TypeAdapter
from torch.distributed import Store

from trainer.contract.encryption import Encryptor
from trainer.contract.run import EndClass
from trainer.errors import TrainerError

Value = TypeVar("Value")

_CHUNK_BYTES = 4 * 2**20
"""torch's store takes values of up to 8 MiB."""
_POLL_SECONDS = 0.2
_ERROR = "error"


class SharedValues:
    """Named values of one data set; waiting for one ends when a process reports an error."""

    def __init__(self, store: Store, encryptor: Encryptor, recipe: str) -> None:
        self._store, self._encryptor, self._prefix = store, encryptor, f"preparation/{recipe}"
        self._pause = threading.Event().wait

    def set(self, name: str, value: Any) -> None:
        """Set a value: any that pydantic can write as JSON."""
        key = self._key(name)
        content = zlib.compress(TypeAdapter(type(value)).dump_json(value), 1)
        ciphertext, _ = self._encryptor.encrypt(content, key)
        chunks = range(0, len(ciphertext), _CHUNK_BYTES)
        for number, start in enumerate(chunks):
            self._store.set(f"{key}/{number}", ciphertext[start : start + _CHUNK_BYTES])
        self._store.set(key, str(len(chunks)))

    def get(self, name: str, kind: type[Value]) -> Value:
        """Wait for a value. Raises TrainerError once a process has reported one, DistNetworkError without the store."""
        key = self._key(name)
        # Polled: a wait of torch's store whose time is over may lose the reply to the next one (torch 2.13).
        while not self._store.check([key]):
            self._pause(_POLL_SECONDS)
            if self._store.check([self._key(_ERROR)]):
                end_class, message = json.loads(self._read(self._key(_ERROR)))
                raise TrainerError(EndClass(end_class), message)
        return TypeAdapter(kind).validate_json(self._read(key))

    def discard(self, name: str) -> None:
        """Delete a value that nobody needs any more."""
        key = self._key(name)
        for number in range(int(self._store.get(key))):
            self._store.delete_key(f"{key}/{number}")

    def fail(self, error: TrainerError) -> None:
        """Report an error to all processes."""
        self.set(_ERROR, [error.end_class.value, str(error)])

    def take_numbers(self, name: str, count: int) -> Iterator[int]:
        """Yield those of 0 .. count - 1 that no other process takes, one after another."""
        while (number := self._store.add(f"{self._prefix}/{name}", 1) - 1) < count:
            yield number

    def _key(self, name: str) -> str:
        return f"{self._prefix}/{name}"

    def _read(self, key: str) -> bytes:
        chunks = [self._store.get(f"{key}/{number}") for number in range(int(self._store.get(key)))]
        return zlib.decompress(self._encryptor.decrypt_unlisted(b"".join(chunks), key))
