"""Exclusive work on a row: claim, do the slow thing outside any transaction, apply under the same token.

The database's clock decides when a lease is over, so workers' clocks do not matter. A worker that was away for
longer than its lease finds its token gone and must drop its result.

Here and everywhere rows are locked FOR NO KEY UPDATE: keys never change, and a plain FOR UPDATE would hold up, and in
the end deadlock with, every insert of a row that refers to the locked one. Locks are taken job first, then attempt.
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
    lease_token = models.UUIDField(null=True, editable=False)
    lease_until = models.DateTimeField(null=True, editable=False)

    class Meta:
        abstract = True


Row = TypeVar("Row", bound=LeasedModel)


@dataclass(frozen=True)
class Lease:
    pk: str
    token: uuid.UUID


def claim(queryset: QuerySet[Row], *, seconds: float, limit: int) -> list[Lease]:
    """Lease up to `limit` free rows of `queryset`, in its order. Rows that others hold or lock are passed over."""
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
    """Lease up to `limit` free rows one after the other, each when its turn comes: every one has all of `seconds`,
    and a worker that is killed holds up one row. A row is not claimed twice, even if it was released."""
    seen: list[str] = []
    while len(seen) < limit:
        found = claim(queryset.exclude(pk__in=seen), seconds=seconds, limit=1)
        if not found:
            return
        seen.append(found[0].pk)
        yield found[0]


def renew(model: type[Row], lease: Lease, *, seconds: float) -> bool:
    """Hold it for longer. False: it was over, and somebody else may have the row."""
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
    model._default_manager.filter(pk=lease.pk, lease_token=lease.token).update(lease_token=None, lease_until=None)
