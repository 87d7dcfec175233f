"""Send due deliveries.

A delivery is leased, sent outside any transaction, and its response stored while the lease is valid. After a crash in
between it is sent again, so receivers get every event at least once.
"""

import logging
import random
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from typing import Any

from django.db import connection, transaction
from django.db.models import Q, QuerySet
from django.db.models.functions import Now
from django.utils import timezone

from athanor.accounts import audit
from athanor.accounts.failures import run_isolated
from athanor.core import outbound, task_triggers
from athanor.core.leases import Lease, applying, claim
from athanor.core.metrics import WEBHOOK_TRIES
from athanor.core.outbound import Response
from athanor.webhooks import envelope, retry_schedule, secrets
from athanor.webhooks.models import Delivery, Webhook

log = logging.getLogger(__name__)

LEASE_SECONDS = 120.0
RUN_SECONDS = 20.0
THREADS = 8
MAX_CONCURRENT_WEBHOOKS = 16
MAX_CONCURRENT_DELIVERIES = 4  # of one webhook
MAX_CONCURRENT_WHILE_FAILING = 1
TRIES_KEPT = 20
GONE = 410
ACTOR = "webhooks"

# A receiver may take its time; it must not take more than one of the worker's threads.
_running = threading.Lock()


def deliver_due() -> None:
    """Send due deliveries until none is left or RUN_SECONDS have passed. Only one run per process at a time."""
    if not _running.acquire(blocking=False):
        return
    try:
        _give_up()
        until = time.monotonic() + RUN_SECONDS
        with ThreadPoolExecutor(THREADS, thread_name_prefix="webhooks") as threads:
            while time.monotonic() < until:
                leases = list(_claim())
                if not leases:
                    return
                list(threads.map(_in_thread, leases))
    finally:
        _running.release()


def due_now() -> QuerySet[Delivery]:
    """Return due deliveries, without those of disabled or paused webhooks."""
    due = Delivery.objects.filter(state=Delivery.State.PENDING, next_try_at__lte=Now(), webhook__enabled=True)
    due = due.filter(webhook__team__deleted_at=None)
    return due.filter(Q(webhook__paused_until__isnull=True) | Q(webhook__paused_until__lte=Now()))


def _claim() -> Iterator[Lease]:
    """Lease a few deliveries of each webhook, so that a slow one does not delay the others."""
    waiting = Webhook.objects.filter(pk__in=due_now().values("webhook_id"))
    found = list(waiting.values_list("pk", "consecutive_failures"))
    random.shuffle(found)
    for webhook_id, failures in found[:MAX_CONCURRENT_WEBHOOKS]:
        limit = MAX_CONCURRENT_WHILE_FAILING if failures else MAX_CONCURRENT_DELIVERIES
        yield from claim(
            due_now().filter(webhook_id=webhook_id).order_by("next_try_at", "pk"), seconds=LEASE_SECONDS, limit=limit
        )


def _in_thread(lease: Lease) -> None:
    try:
        run_isolated(
            task_triggers.DELIVER, f"delivery {lease.pk}", partial(deliver, lease), held=(Delivery, lease),
            give_up=partial(_abandon, lease.pk),
        )  # fmt: skip
    finally:
        connection.close()


def _abandon(delivery_id: str, reason: str) -> None:
    now = timezone.now()
    with transaction.atomic():
        row = Delivery.objects.select_for_update(no_key=True).get(pk=delivery_id)
        row.state, row.next_try_at, row.finished_at = Delivery.State.FAILED, None, now
        row.log = [*row.log, _entry(Response(0, 0.0, reason), now.isoformat())][-TRIES_KEPT:]
        row.save(update_fields=["state", "next_try_at", "finished_at", "log"])


def deliver(lease: Lease) -> None:
    """Send a leased delivery and store the response."""
    delivery = Delivery.objects.select_related("webhook").get(pk=lease.pk)
    timestamp = int(time.time())
    is_event = delivery.webhook.format == Webhook.Format.CLOUDEVENTS
    active = secrets.decrypt_active(delivery.webhook)
    headers = {
        "Content-Type": envelope.CONTENT_TYPE if is_event else envelope.JSON_CONTENT_TYPE,
        "User-Agent": "Athanor-Webhooks/1",
        "Connection": "close",
        "Athanor-Delivery": delivery.id,
        "Athanor-Webhook": delivery.webhook_id,
        envelope.SIGNATURE: envelope.signature(active, timestamp, delivery.body),
        **envelope.standard_headers(active, delivery.id, timestamp, delivery.body),
    }
    outcome = outbound.post(delivery.webhook.url, delivery.body.encode(), headers, outbound.allowed_for_webhooks())
    WEBHOOK_TRIES.labels("accepted" if outcome.is_success else "failed").inc()
    with applying(Delivery, lease) as row:
        if row is None:
            log.warning("%s was sent, but its lease is over: it may be sent again", lease.pk)
            return
        _apply(row, outcome)
        _count(row.webhook_id, outcome)


def _apply(delivery: Delivery, outcome: Response) -> None:
    now = timezone.now()
    delivery.tries += 1
    delivery.log = [*delivery.log, _entry(outcome, now.isoformat())][-TRIES_KEPT:]
    if outcome.is_success:
        delivery.state, delivery.next_try_at, delivery.finished_at = Delivery.State.DELIVERED, None, now
    else:
        delivery.next_try_at = retry_schedule.next_try(delivery.tries, now, delivery.gives_up_at, random.random())  # noqa: S311 - spreads tries
        if delivery.next_try_at is None:
            delivery.state, delivery.finished_at = Delivery.State.FAILED, now
    delivery.save(update_fields=["tries", "log", "state", "next_try_at", "finished_at"])


def _entry(outcome: Response, at: str) -> dict[str, Any]:
    return {
        "at": at,
        "status": outcome.status or None,
        "seconds": round(outcome.seconds, 3),
        "error": outcome.error,
        "answer": outcome.answer,
    }


def _count(webhook_id: str, outcome: Response) -> None:
    """Update the webhook's state, and disable it after failing for too long or on 410 Gone."""
    webhook = Webhook.objects.select_for_update(no_key=True).get(pk=webhook_id)
    now = timezone.now()
    if outcome.is_success:
        webhook.consecutive_failures, webhook.failing_since, webhook.last_success_at = 0, None, now
        webhook.paused_until = None
    else:
        webhook.consecutive_failures += 1
        webhook.paused_until = now + timedelta(seconds=retry_schedule.pause_seconds(webhook.consecutive_failures))
        webhook.failing_since = webhook.failing_since or now
        webhook.last_failure_at = now
    webhook.save(
        update_fields=["consecutive_failures", "failing_since", "paused_until", "last_success_at", "last_failure_at"]
    )
    if not webhook.enabled or outcome.is_success or webhook.failing_since is None:
        return
    if outcome.status == GONE:
        _disable(webhook, "it answered 410: gone")
    elif now - webhook.failing_since >= retry_schedule.DISABLE_AFTER:
        hours = retry_schedule.DISABLE_AFTER // timedelta(hours=1)
        _disable(webhook, f"nothing was taken for {hours} hours; the last try: {outcome.error}")


def _disable(webhook: Webhook, reason: str) -> None:
    webhook.enabled, webhook.disabled_reason, webhook.disabled_at = False, reason[:200], timezone.now()
    webhook.save(update_fields=["enabled", "disabled_reason", "disabled_at"])
    log.warning("webhook %s was switched off: %s", webhook.id, reason)
    audit.record(
        "webhook.auto_disable",
        actor=ACTOR,
        target=("webhook", webhook.id),
        team_id=webhook.team_id,
        before={"enabled": True},
        after={"enabled": False, "reason": webhook.disabled_reason},
    )


def _give_up() -> None:
    """Fail deliveries whose time is over, because their webhook was disabled or kept failing."""
    now = timezone.now()
    with transaction.atomic():
        late = Delivery.objects.filter(state=Delivery.State.PENDING, gives_up_at__lt=now - timedelta(hours=1))
        never = Response(0, 0.0, "not tried in time: the webhook was off, or nothing reached it")
        late.filter(tries=0).update(log=[_entry(never, now.isoformat())])
        late.update(state=Delivery.State.FAILED, next_try_at=None, finished_at=now)
