"""A cache of a data set's token shards on this node's disk, with a size limit and least-recently-used eviction.

All processes of a node share the folder. One of them fetches a shard, under a lock on a file for that shard that the
kernel releases when the process ends, and renames the complete file into place. A process that has mapped a shard can
read it after another process has evicted it.
"""

import fcntl
import hashlib
import os
import socket
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from trainer.data.shards import Shard

Fetch = Callable[[str], bytes]
_FETCHING_THREADS = 4
_EVICTION_LOCK = ".kept-whole.lock"
"""File that is locked while evicting, and for as long as a process needs a folder whose shards it cannot fetch."""


class CorruptShard(Exception):
    """A shard is missing or differs from the index, and cannot be fetched or is damaged in the store as well."""

    def __init__(self, name: str, problem: str) -> None:
        super().__init__(f"{name}: {problem}")
        self.name, self.problem = name, problem


class ShardCache:
    """The shards of a data set on this node's disk, fetched when first read."""

    def __init__(
        self, folder: Path, shards: Sequence[Shard], dtype: str, fetch: Fetch | None, limit_bytes: int, max_open: int
    ) -> None:
        """Open the cache.

        `fetch` returns a shard's bytes from the store or raises CorruptShard; None: the folder contains all shards, and
        none is evicted. `limit_bytes`: size of all shards in the folder. `max_open`: number of shards that stay mapped.
        """
        self._folder, self._shards, self._dtype = folder, shards, np.dtype(dtype).newbyteorder("<")
        self._fetch, self._limit, self._keep_open = fetch, limit_bytes, max_open
        self._open: dict[int, NDArray[np.integer]] = {}
        self._corrupt: dict[int, CorruptShard] = {}
        self._prefetched: set[int] = set()
        self._threads = ThreadPoolExecutor(_FETCHING_THREADS, "shards") if fetch is not None else None
        self._no_eviction = (folder / _EVICTION_LOCK).open("a") if fetch is None else None
        if self._no_eviction is not None:
            fcntl.flock(self._no_eviction, fcntl.LOCK_SH)  # shards prepared here are not in the store yet

    def tokens(self, number: int) -> NDArray[np.integer]:
        """Return the shard's tokens, mapped read-only; the digest is verified when the shard is mapped.

        Raises CorruptShard, StorageError.
        """
        if number in self._corrupt:
            raise self._corrupt[number]
        tokens = self._open.pop(number, None)
        if tokens is None:
            try:
                tokens = self._map(number)
            except CorruptShard as error:
                self._corrupt[number] = error
                raise
        self._open[number] = tokens  # in order of use
        while len(self._open) > self._keep_open:
            self._open.pop(next(iter(self._open)))
        return tokens

    def prefetch(self, numbers: Sequence[int]) -> None:
        """Fetch shards in the background, in this order, at most as many as fit the size limit.

        Errors are raised by `tokens` when such a shard is read.
        """
        if self._threads is None:
            return
        numbers = numbers[: max(1, self._limit // max(shard.tokens * self._dtype.itemsize for shard in self._shards))]
        for number in numbers:
            if number not in self._prefetched:
                self._threads.submit(self._fetch_quietly, number)
        self._prefetched = set(numbers)

    def close(self) -> None:
        """Stop fetching and close all files."""
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
        if self._no_eviction is not None:
            self._no_eviction.close()

    def _map(self, number: int) -> NDArray[np.integer]:
        shard = self._shards[number]
        path = self._folder / shard.name
        for _ in range(2):
            tokens, problem = self._try_map(shard, path)
            if tokens is not None:
                return tokens
            if self._fetch is None:
                break
            self._fetch_if_missing(number)
        raise CorruptShard(shard.name, problem)

    def _try_map(self, shard: Shard, path: Path) -> tuple[NDArray[np.integer] | None, str]:
        """Map the shard's file and verify its digest. Return (tokens, "") or (None, what is wrong with the file).

        Deletes a damaged file if it can be fetched again.
        """
        try:
            with path.open("rb") as file:
                os.utime(file.fileno())  # used: the least recently used is evicted first
                tokens: NDArray[np.integer] = np.memmap(file, dtype=self._dtype, mode="r")
        except FileNotFoundError:
            return None, "the file is missing"
        except ValueError:
            problem = "the file is empty"
        else:
            if hashlib.sha256(tokens.data).hexdigest() == shard.sha256:
                return tokens, ""
            problem = "its SHA-256 digest differs from the one in the index"
        if self._fetch is not None:
            path.unlink(missing_ok=True)
        return None, problem

    def _fetch_quietly(self, number: int) -> None:
        try:
            self._fetch_if_missing(number)
        except Exception:  # noqa: BLE001 - `tokens` fetches it again and raises the error
            return

    def _fetch_if_missing(self, number: int) -> None:
        """Fetch the shard's file into the folder if it is missing. Raises CorruptShard, StorageError."""
        assert self._fetch is not None
        shard = self._shards[number]
        path = self._folder / shard.name
        if path.exists():
            return
        with _file_lock(self._folder / f".{shard.name}.lock"):
            if path.exists():
                return
            content = self._fetch(shard.name)
            if hashlib.sha256(content).hexdigest() != shard.sha256:
                raise CorruptShard(shard.name, "its SHA-256 digest in the store differs from the one in the index")
            self._evict(len(content))
            partial = path.with_name(f".{path.name}.{socket.gethostname()}.{os.getpid()}.partial")
            partial.write_bytes(content)
            partial.replace(path)

    def _evict(self, needed: int) -> None:
        """Delete the least recently used shards until `needed` more bytes are within the limit."""
        with (self._folder / _EVICTION_LOCK).open("a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return  # a run that cannot fetch uses the folder, or another process is evicting
            found = []
            for path in self._folder.glob("*.tokens"):
                try:
                    status = path.stat()
                except FileNotFoundError:
                    continue
                found.append((status.st_mtime_ns, status.st_size, path))
            total = sum(size for _, size, _ in found) + needed
            for _, size, path in sorted(found):
                if total <= self._limit:
                    return
                path.unlink(missing_ok=True)
                total -= size


@contextmanager
def _file_lock(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
