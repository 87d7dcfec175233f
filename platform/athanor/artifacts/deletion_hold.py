"""Backups hold off the deletion of objects, so that all that their copy of the database refers to is still stored.

Each run of a reconciler that deletes objects takes a shared advisory lock, a backup the exclusive one: it waits for the
runs under way, and later runs do nothing until it ends. Objects are stored longer meanwhile; the rows still say what to
delete.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial, wraps
from typing import ParamSpec

from django.db import DatabaseError

from athanor.core import advisory_locks
from athanor.core.advisory_locks import BACKUPS, DELETIONS
from athanor.core.errors import Conflict, Unavailable

Parameters = ParamSpec("Parameters")
WAIT_FOR_DELETIONS = "10min"


def unless_held(sweep: Callable[Parameters, int]) -> Callable[Parameters, int]:
    """Decorate a function that deletes objects and returns how many: it does nothing during a backup."""

    @wraps(sweep)
    def run(*args: Parameters.args, **kwargs: Parameters.kwargs) -> int:
        if not advisory_locks.try_lock(DELETIONS, shared=True):
            return 0
        try:
            return sweep(*args, **kwargs)
        finally:
            advisory_locks.unlock(DELETIONS, shared=True)

    return run


@contextmanager
def hold() -> Iterator[Callable[[], None]]:
    """Hold off deletions within the block. Yield a function that raises Unavailable if the hold was lost meanwhile.

    Raise Conflict if another backup runs, Unavailable if a run that deletes does not end.
    """
    if not advisory_locks.try_lock(BACKUPS):
        raise Conflict("backup_runs", "another backup of this database is running", remedy="wait for its end")
    try:
        if not advisory_locks.lock(DELETIONS, WAIT_FOR_DELETIONS):
            raise Unavailable(
                "deletions_run",
                f"a worker has been deleting objects for {WAIT_FOR_DELETIONS}",
                remedy="run the backup again later",
            )
        try:
            yield partial(_require_session, advisory_locks.session())
        finally:
            advisory_locks.unlock(DELETIONS)
    finally:
        advisory_locks.unlock(BACKUPS)


def _require_session(number: int) -> None:
    try:
        is_same = advisory_locks.session() == number
    except DatabaseError:
        is_same = False
    if not is_same:
        raise Unavailable(
            "hold_lost",
            "the connection to the database was lost during the backup, and objects may have been deleted since",
            remedy="run the backup again: what it has copied is used",
        )
