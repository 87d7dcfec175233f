"""Fetch price and carbon series of providers when due, by one worker, from allowed addresses."""

from datetime import timedelta
from functools import partial
from typing import Any

from django.db import transaction
from django.db.models import Q, QuerySet
from django.utils import timezone

from athanor.accounts import audit
from athanor.accounts.failures import run_isolated
from athanor.accounts.models import User
from athanor.budgets import series as points
from athanor.budgets.models import Series
from athanor.core import outbound, task_triggers
from athanor.core.errors import AthanorError

MAX_RESPONSE_BYTES = 4 * 2**20
AGAIN_SECONDS = 300  # after a failure, at most
APART_SECONDS = 10  # between two requests to a provider that users ask for


def due() -> QuerySet[Series]:
    """Return the series with a provider whose next fetch is due."""
    return Series.objects.filter(~Q(url=""), Q(fetch_at__isnull=True) | Q(fetch_at__lte=timezone.now()))


def fetch_due() -> None:
    """Fetch every due series; an error of one does not stop the others."""
    for series_id in due().values_list("pk", flat=True):
        run_isolated(task_triggers.METER, f"fetching series {series_id}", partial(fetch, series_id))


def fetch(series_id: str, user: User | None = None) -> str:
    """Ask the provider of a series now. Return the problem, empty when there was none.

    With `user`, who asked for it, the request is audited, and left out when the provider was asked within the last
    APART_SECONDS: what it answered then is stored.
    """
    now = timezone.now()
    wanted = Series.objects.filter(pk=series_id).exclude(url="")
    if user is not None:
        wanted = wanted.filter(Q(asked_at=None) | Q(asked_at__lte=now - timedelta(seconds=APART_SECONDS)))
    with transaction.atomic():  # the time of the next request is set first: no other worker asks meanwhile
        row = wanted.select_for_update(no_key=True, skip_locked=True).first()
        if row is None:
            return ""
        row.asked_at, row.fetch_at = now, now + timedelta(seconds=min(row.fetch_seconds, AGAIN_SECONDS))
        row.save(update_fields=["asked_at", "fetch_at"])
        if user is not None:
            audit.record("series.fetch", actor=user, target=("series", row.id), after=audit.address(row.url))
    answer = outbound.get(row.url, outbound.allowed_for_webhooks(), max_bytes=MAX_RESPONSE_BYTES)
    problem = answer.error
    if not problem:
        try:
            found = points.from_answer(row, answer.answer)
        except AthanorError as error:
            problem = error.message
        else:
            with transaction.atomic():
                points.store(row, found)
    facts: dict[str, Any] = {"problem": problem[:500]}
    if not problem:
        facts |= {"fetched_at": now, "fetch_at": now + timedelta(seconds=row.fetch_seconds)}
    Series.objects.filter(pk=series_id, url=row.url).update(**facts)
    return problem
