"""Advisory locks of PostgreSQL, which belong to a session: the database releases those of a process that is killed."""

from contextlib import suppress

from django.db import DatabaseError, OperationalError, connection

# Any numbers, as long as no two locks have the same.
DELETIONS, BACKUPS, RESTORES = 7_811_590_001, 7_811_590_002, 7_811_590_003


def try_lock(number: int, *, shared: bool = False) -> bool:
    """Take a lock, unless another session has it. Return whether it was taken."""
    return _call("pg_try_advisory_lock_shared" if shared else "pg_try_advisory_lock", number)


def lock(number: int, wait: str) -> bool:
    """Take a lock. Return whether it was taken within `wait`, a duration as PostgreSQL writes it."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT set_config('lock_timeout', %s, false)", [wait])
        try:
            cursor.execute("SELECT pg_advisory_lock(%s)", [number])
        except OperationalError:
            return False
        finally:
            cursor.execute("RESET lock_timeout")
    return True


def unlock(number: int, *, shared: bool = False) -> None:
    """Release a lock."""
    with suppress(DatabaseError):  # the session is gone, and its locks with it
        _call("pg_advisory_unlock_shared" if shared else "pg_advisory_unlock", number)


def session() -> int:
    """Return the number of the database session, which has the locks."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        return int(cursor.fetchone()[0])


def _call(function: str, number: int) -> bool:
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {function}(%s)", [number])
        return bool(cursor.fetchone()[0])
