"""Exclusive work on a row: claim it, do the slow work outside any transaction, apply the result under the same token.

The database's clock decides when a lease expires, so clocks of workers do not matter. A worker that outlives its lease
finds its token replaced and must drop its result.

Here and everywhere rows are locked FOR NO KEY UPDATE: keys never change, and a plain FOR UPDATE would block, and could
deadlock with, every insert of a row that refers to the locked one. Locks are taken job first, then attempt.
"""

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

from django.db import models, transaction
from django.db.models import Q, QuerySet
from django.db.models.functions import Now


class LeasedModel(models.Model):
    """A model whose rows a worker can lease. A row is free when `lease_until` is null or in the past."""

    lease_token = models.UUIDField(null=True, editable=False)
    lease_until = models.DateTimeField(null=True, editable=False)

    class Meta:
        abstract = True


Row = TypeVar("Row", bound=LeasedModel)


@dataclass(frozen=True)
class Lease:
    """A claimed row. `token` must still match when the result is applied."""

    pk: str
    token: uuid.UUID


def claim(queryset: QuerySet[Row], *, seconds: float, limit: int) -> list[Lease]:
    """Lease up to `limit` free rows of `queryset`, in its order, for `seconds`. Skip rows that others hold or lock."""
    free = Q(lease_until__isnull=True) | Q(lease_until__lt=Now())
    token = uuid.uuid4()
    with transaction.atomic():
        pks = list(
            queryset.filter(free)
            .select_for_update(no_key=True, skip_locked=True, of=("self",))
            .values_list("pk", flat=True)[:limit]
        )
        queryset.model._default_manager.filter(pk__in=pks).update(
            lease_token=token, lease_until=Now() + timedelta(seconds=seconds)
        )
    return [Lease(pk, token) for pk in pks]


def claim_each(queryset: QuerySet[Row], *, seconds: float, limit: int) -> Iterator[Lease]:
    """Lease up to `limit` free rows one at a time, each when it is its turn.

    Each lease gets all of `seconds`, and a worker that is killed blocks only one row. A row is not claimed twice, even
    if it was released.
    """
    seen: list[str] = []
    while len(seen) < limit:
        found = claim(queryset.exclude(pk__in=seen), seconds=seconds, limit=1)
        if not found:
            return
        seen.append(found[0].pk)
        yield found[0]


def renew(model: type[Row], lease: Lease, *, seconds: float) -> bool:
    """Extend the lease. Return False if it has expired; another worker may hold the row."""
    held = model._default_manager.filter(pk=lease.pk, lease_token=lease.token, lease_until__gt=Now())
    return held.update(lease_until=Now() + timedelta(seconds=seconds)) == 1


@contextmanager
def applying(model: type[Row], lease: Lease) -> Iterator[Row | None]:
    """Lock the leased row in a transaction and release it at the end. Yields None if the lease is stale."""
    with transaction.atomic():
        rows = model._default_manager.select_for_update(no_key=True).filter(
            pk=lease.pk, lease_token=lease.token, lease_until__gt=Now()
        )
        row = rows.first()
        yield row
        if row is not None:
            release(model, lease)


def release(model: type[Row], lease: Lease) -> None:
    """Free the row if this lease still holds it."""
    model._default_manager.filter(pk=lease.pk, lease_token=lease.token).update(lease_token=None, lease_until=None)
