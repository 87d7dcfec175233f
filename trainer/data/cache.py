"""The shards of one data set on this node: opened from the folder, or fetched into it, never more than fit.

All processes of a node share the folder. A shard is fetched by one of them, under a lock on a file of its own that dies
with its holder, and appears by a rename. Evicting a shard that a process has mapped takes it nothing: the map stays.
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
_KEPT_WHOLE = ".kept-whole.lock"


class CorruptShard(Exception):
    """A shard is not what the index says, and the store has no better copy."""

    def __init__(self, name: str, problem: str) -> None:
        super().__init__(f"{name}: {problem}")
        self.name, self.problem = name, problem


class ShardCache:
    """The shards of a data set on this node's disk, fetched when first read."""

    def __init__(
        self, folder: Path, shards: Sequence[Shard], dtype: str, fetch: Fetch | None, limit_bytes: int, keep_open: int
    ) -> None:
        """`fetch` gives a shard's bytes from the store, or raises CorruptShard; without it the folder holds all, and
        nothing is ever evicted. `keep_open`: shards that stay mapped."""
        self._folder, self._shards, self._dtype = folder, shards, np.dtype(dtype).newbyteorder("<")
        self._fetch, self._limit, self._keep_open = fetch, limit_bytes, keep_open
        self._open: dict[int, NDArray[np.integer]] = {}
        self._corrupt: dict[int, CorruptShard] = {}
        self._asked: set[int] = set()
        self._threads = ThreadPoolExecutor(_FETCHING_THREADS, "shards") if fetch is not None else None
        self._kept = (folder / _KEPT_WHOLE).open("a") if fetch is None else None
        if self._kept is not None:
            fcntl.flock(self._kept, fcntl.LOCK_SH)  # what was prepared here is not in the store yet: no one may evict

    def tokens(self, number: int) -> NDArray[np.integer]:
        """Return the shard's tokens, read-only, verified when it was opened. Raises CorruptShard, StorageError."""
        if number in self._corrupt:
            raise self._corrupt[number]
        tokens = self._open.pop(number, None)
        if tokens is None:
            try:
                tokens = self._map(number)
            except CorruptShard as error:
                self._corrupt[number] = error
                raise
        self._open[number] = tokens  # the last used is last
        while len(self._open) > self._keep_open:
            self._open.pop(next(iter(self._open)))
        return tokens

    def expect(self, coming: Sequence[int]) -> None:
        """Begin to fetch what will be asked for, in this order; errors are raised when a shard is requested."""
        if self._threads is None:
            return
        coming = coming[: max(1, self._limit // max(shard.tokens * self._dtype.itemsize for shard in self._shards))]
        for number in coming:
            if number not in self._asked:
                self._threads.submit(self._fetch_quietly, number)
        self._asked = set(coming)

    def close(self) -> None:
        """Stop fetching and close all files."""
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
        if self._kept is not None:
            self._kept.close()

    def _map(self, number: int) -> NDArray[np.integer]:
        shard = self._shards[number]
        path = self._folder / shard.name
        for _ in range(2):
            tokens, problem = self._mapped(shard, path)
            if tokens is not None:
                return tokens
            if self._fetch is None:
                break
            self._ensure(number)
        raise CorruptShard(shard.name, problem)

    def _mapped(self, shard: Shard, path: Path) -> tuple[NDArray[np.integer] | None, str]:
        """Map the shard if its file is present and intact; else return the problem, and delete a damaged file that
        can be
        fetched again."""
        try:
            with path.open("rb") as file:
                os.utime(file.fileno())  # used: the least recently used is evicted first
                tokens: NDArray[np.integer] = np.memmap(file, dtype=self._dtype, mode="r")
        except FileNotFoundError:
            return None, "is not there"
        except ValueError:
            problem = "is empty"
        else:
            if hashlib.sha256(tokens.data).hexdigest() == shard.sha256:
                return tokens, ""
            problem = "its digest differs from the index's"
        if self._fetch is not None:
            path.unlink(missing_ok=True)
        return None, problem

    def _fetch_quietly(self, number: int) -> None:
        try:
            self._ensure(number)
        except Exception:  # noqa: BLE001 - the reader of the shard meets the same error and reports it
            return

    def _ensure(self, number: int) -> None:
        """Fetch the shard's file into the folder if it is missing. Raises CorruptShard, StorageError."""
        assert self._fetch is not None
        shard = self._shards[number]
        path = self._folder / shard.name
        if path.exists():
            return
        with _locked(self._folder / f".{shard.name}.lock"):
            if path.exists():
                return
            content = self._fetch(shard.name)
            if hashlib.sha256(content).hexdigest() != shard.sha256:
                raise CorruptShard(shard.name, "what the store holds differs from the index")
            self._make_room(len(content))
            partial = path.with_name(f".{path.name}.{socket.gethostname()}.{os.getpid()}.partial")
            partial.write_bytes(content)
            partial.replace(path)

    def _make_room(self, needed: int) -> None:
        """Evict the least recently used until `needed` bytes more are within the limit."""
        with (self._folder / _KEPT_WHOLE).open("a") as kept:
            try:
                fcntl.flock(kept, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return  # in use by a run that cannot fetch, or another process is at it
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
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
