"""The object store of runs on the platform, accessed by presigned URLs: nodes have no storage credentials."""

import random
import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol

import httpx

from trainer.contract.run import PresignReply
from trainer.storage.base import MissingObject, StorageError

RETRY_SECONDS = 120.0  # long enough for a restart of the store
_MAX_PAUSE_SECONDS = 5.0
_NO_BUCKET = "<Code>NoSuchBucket</Code>"  # in the answer of an object store that is set up wrongly
_TRANSFER_TIMEOUT = httpx.Timeout(60.0, connect=5.0)


class Presigner(Protocol):
    """Gives presigned URLs of objects."""

    def presign(self, operation: str, keys: list[str]) -> PresignReply:
        """Return a URL for each key. `operation`: get or put."""
        ...


class PresignedStorage:
    """An object store behind presigned URLs. Each try has a new URL, since one may expire during an outage.

    Retries connection errors and all error statuses with growing pauses of at most 5 s, for `retry_seconds`; a 404 of a
    read raises MissingObject immediately, unless it is the bucket that does not exist.
    """

    def __init__(
        self, presigner: Presigner, retry_seconds: float = RETRY_SECONDS, wait: Callable[[float], object] | None = None
    ) -> None:
        """`wait` pauses for so many seconds between tries; a test passes its own."""
        self._presigner = presigner
        self._retry_seconds = retry_seconds
        self._wait = wait or threading.Event().wait
        self._lock = threading.Lock()
        self._announced: dict[str, str] = {}
        self._http = httpx.Client(timeout=_TRANSFER_TIMEOUT, trust_env=False)

    def put(self, key: str, data: bytes) -> None:
        """Store an object, with retries."""
        self._retry("put", key, lambda url: self._http.put(url, content=data))

    def get(self, key: str) -> bytes:
        """Return an object, with retries."""
        return self._retry("get", key, self._http.get).content

    def announce(self, keys: Sequence[str]) -> None:
        """Request the URLs of objects that will be stored, in one request. Unused ones of before are forgotten."""
        reply = self._presigner.presign("put", list(keys))
        with self._lock:
            self._announced = {each.key: each.url for each in reply.urls}

    def delete_prefix(self, prefix: str) -> None:
        """Retention is the platform's: an attempt's token cannot delete."""

    def _url(self, operation: str, key: str) -> str:
        """Return the announced URL of an object, for its first try, or a new one."""
        with self._lock:
            announced = self._announced.pop(key, None) if operation == "put" else None
        return announced or self._presigner.presign(operation, [key]).urls[0].url

    def _retry(self, operation: str, key: str, send: Callable[[str], httpx.Response]) -> httpx.Response:
        deadline = None
        pause = 0.1
        while True:
            problem = ""
            # Retries towards the platform have a time limit of their own.
            url = self._url(operation, key)
            deadline = deadline or time.monotonic() + self._retry_seconds
            try:
                response = send(url)
            except httpx.TransportError as error:
                problem = f"{type(error).__name__}: {error}"
            else:
                if response.is_success:
                    return response
                is_absent = response.status_code == httpx.codes.NOT_FOUND and _NO_BUCKET not in response.text
                if is_absent and operation == "get":
                    raise MissingObject(f"the store has no object {key}")
                problem = f"HTTP {response.status_code}: {response.text[:200]}"
            if time.monotonic() + pause > deadline:
                raise StorageError(
                    f"{operation} of {key} has failed for {self._retry_seconds:.0f} s ({problem}); "
                    "check that the object store is up and reachable from the nodes"
                )
            self._wait(pause * random.uniform(0.5, 1.0))  # noqa: S311 - jitter, not a secret
            pause = min(pause * 2, _MAX_PAUSE_SECONDS)
