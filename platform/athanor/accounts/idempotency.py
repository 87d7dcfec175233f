"""Stored responses of requests that create something, so that a repeated request gets the same response.

A response is stored in the transaction of the change that it reports, so that after a crash there are both or neither.
It belongs to one credential (a token, or a user's sessions): another token of the same user does not read it, since
responses contain secrets that are shown once. It is encrypted by the master key together with the digest of the request
that it answers: a plain digest would let a reader of the database guess short secrets of request bodies.

Callers authorise each request before they look for its response. Submissions of jobs have a table of their own
(`jobs.models.IdempotencyRecord`): their keys belong to a team and never expire.
"""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from typing import TypeVar

import psycopg
from django.db import OperationalError, connection, transaction
from django.db.models import QuerySet
from django.utils import timezone

from athanor.accounts.models import IdempotentAnswer
from athanor.core import encryption
from athanor.core.errors import Conflict, Invalid, Misconfigured

STORED_FOR = timedelta(hours=24)
MAX_WAIT_MILLISECONDS = 2000
SWEPT_ROWS = 1000

Result = TypeVar("Result")


@dataclass(frozen=True)
class KeyedRequest:
    """A request with a key. `digest` is of its body."""

    credential: str
    key: str
    path: str
    digest: str


@dataclass(frozen=True)
class Answer:
    """A response to store. `body` is the JSON that was sent."""

    status: int
    body: str
    headers: dict[str, str] = field(default_factory=dict)


def run_atomically(make: Callable[[], Result]) -> Result:
    """Return what `make` returns, run in one transaction as `once` runs it. For a request without a key."""
    with transaction.atomic():
        return make()


def once(request: KeyedRequest, make: Callable[[], Answer]) -> tuple[Answer, bool]:
    """Return the stored response of this request, otherwise what `make` returns; and True for a stored one.

    `make` runs in one transaction with the record of its response; if it raises, nothing is stored. Raise Invalid for a
    key that belongs to another request, and Conflict while the same request is in progress for longer than
    MAX_WAIT_MILLISECONDS.
    """
    with transaction.atomic():
        _lock(request)
        answer = find(request)
        if answer is not None:
            return answer, True
        answer = make()
        store(request, answer)
    return answer, False


def find(request: KeyedRequest) -> Answer | None:
    """Return the stored response. Raise Invalid for a key that was used for another address or body."""
    rows = IdempotentAnswer.objects.filter(credential=request.credential, key=request.key)
    row = rows.filter(created_at__gt=timezone.now() - STORED_FOR).first()
    if row is None:
        return None
    stored = json.loads(encryption.unwrap_by_master(row.encrypted, _owner(row)))
    if row.path != request.path or stored.pop("digest") != request.digest:
        what = "another body" if row.path == request.path else f"another address, {row.path}"
        raise Invalid(
            "idempotency_key_reused",
            f"Idempotency-Key {request.key!r} was used for {what}",
            remedy="use a new key for a new request",
        )
    return Answer(**stored)


def has_answer(request: KeyedRequest) -> bool:
    """Return whether the key was used, for any request."""
    rows = IdempotentAnswer.objects.filter(credential=request.credential, key=request.key)
    return rows.filter(created_at__gt=timezone.now() - STORED_FOR).exists()


def store(request: KeyedRequest, answer: Answer) -> None:
    """Store a response in the caller's transaction. Raise IntegrityError if the key has one already."""
    IdempotentAnswer.objects.filter(
        credential=request.credential, key=request.key, created_at__lte=timezone.now() - STORED_FOR
    ).delete()
    row = IdempotentAnswer(credential=request.credential, key=request.key, path=request.path, status=answer.status)
    text = json.dumps({"digest": request.digest, **asdict(answer)})
    row.encrypted = encryption.wrap_by_master(text, _owner(row))
    row.save(force_insert=True)


def expired() -> QuerySet[IdempotentAnswer]:
    """Return the expired responses."""
    return IdempotentAnswer.objects.filter(created_at__lte=timezone.now() - STORED_FOR)


def sweep() -> int:
    """Delete expired responses. Return how many."""
    count = 0
    while deleted := expired().filter(pk__in=list(expired().values_list("pk", flat=True)[:SWEPT_ROWS])).delete()[0]:
        count += deleted
    return count


def rewrap() -> None:
    """Encrypt stored responses with the current master key. Delete those that no key decrypts."""
    for pk in IdempotentAnswer.objects.order_by("pk").values_list("pk", flat=True):
        with transaction.atomic():
            row = IdempotentAnswer.objects.select_for_update(no_key=True).filter(pk=pk).first()
            if row is None or encryption.is_wrapped_by(encryption.master_keyset(), row.encrypted):
                continue
            try:
                text = encryption.unwrap_by_master(row.encrypted, _owner(row))
            except Misconfigured:
                row.delete()
                continue
            row.encrypted = encryption.wrap_by_master(text, _owner(row))
            row.save(update_fields=["encrypted"])


def _owner(row: IdempotentAnswer) -> str:
    return f"idempotency:{row.credential}:{row.key}"


def _lock(request: KeyedRequest) -> None:
    """Lock the key until the end of the transaction, so that only one of several equal requests runs."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT current_setting('lock_timeout'), set_config('lock_timeout', %s, true)",
            [str(MAX_WAIT_MILLISECONDS)],
        )
        before = cursor.fetchone()[0]
        try:
            cursor.execute(
                "SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", [f"{request.credential}:{request.key}"]
            )
        except OperationalError as error:
            if not isinstance(error.__cause__, psycopg.errors.LockNotAvailable):
                raise
            raise Conflict(
                "request_in_progress",
                f"a request with the Idempotency-Key {request.key!r} is in progress",
                remedy="send it again after a second: it gets the answer of the first",
                retry_after_seconds=1,
            ) from error
        cursor.execute("SELECT set_config('lock_timeout', %s, true)", [before])
