"""How many uploads and downloads through the server a user may have at a time, in each of its processes.

Their threads wait for the client, at a least rate (gateway/application.py has TRANSFER_THREADS): without a limit
one signed-in user with slow connections would hold up everybody else's.
"""

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

from athanor.accounts.models import User
from athanor.core.errors import TooManyRequests

MAX_TRANSFERS_PER_USER = 4
RETRY_SECONDS = 10
Part = TypeVar("Part", bytes, str)

_lock = threading.Lock()
_running: Counter[str] = Counter()


@contextmanager
def transfer(user: User) -> Iterator[None]:
    """Count a transfer of the user until the block ends. Raises TooManyRequests for one too many."""
    _begin(user.id)
    try:
        yield
    finally:
        _end(user.id)


class Download(Generic[Part]):
    """Content of a response that counts as a transfer of the user until the response is closed.

    Raises TooManyRequests for one too many.
    """

    def __init__(self, user: User, content: Iterator[Part]) -> None:
        _begin(user.id)
        self._user_id: str | None = user.id
        self._content: Iterator[Part] = content

    def __iter__(self) -> Iterator[Part]:
        return iter(self._content)

    def close(self) -> None:
        """End the transfer. The server calls it when the response is complete or its client has left."""
        if self._user_id is not None:
            _end(self._user_id)
            self._user_id = None


def _begin(user_id: str) -> None:
    with _lock:
        if _running[user_id] >= MAX_TRANSFERS_PER_USER:
            raise TooManyRequests(
                "too_many_transfers",
                f"this user has {MAX_TRANSFERS_PER_USER} uploads and downloads running here, the limit",
                remedy="wait until one of them has ended, or cancel one",
                retry_after_seconds=RETRY_SECONDS,
            )
        _running[user_id] += 1


def _end(user_id: str) -> None:
    with _lock:
        _running[user_id] -= 1
        if not _running[user_id]:
            del _running[user_id]
