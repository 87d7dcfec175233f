"""Create deliveries from a team's feed: each event once per subscribed webhook, even after a crash."""

from collections.abc import Mapping
from datetime import timedelta
from functools import partial

from django.conf import settings
from django.db import transaction
from django.db.models import F, OuterRef, Subquery
from django.utils import timezone
from ulid import ULID

from athanor.accounts.failures import run_isolated
from athanor.core import task_triggers
from athanor.jobs import event_feed
from athanor.jobs.models import EventHead, Job, JobEvent
from athanor.webhooks import envelope, openlineage
from athanor.webhooks.models import Delivery, Webhook
from athanor.webhooks.retry_schedule import GIVE_UP_AFTER

PAGE = 500
KEPT = timedelta(days=30)
MAX_DELETED_PER_RUN = 1000
NAMES_JOBS = (Webhook.Format.SLACK, Webhook.Format.OPENLINEAGE)
HEAD = Subquery(EventHead.objects.filter(team_id=OuterRef("team_id")).values("seq")[:1])


def publish_due() -> None:
    """Assign numbers to new events, and create their deliveries."""
    event_feed.assign_numbers()
    behind = (
        Webhook.objects.filter(enabled=True, team__deleted_at=None).annotate(head=HEAD).filter(head__gt=F("position"))
    )
    for webhook_id in behind.values_list("pk", flat=True):
        run_isolated(task_triggers.PUBLISH, f"events for webhook {webhook_id}", partial(_publish_all, webhook_id))
    _forget_old()


def _publish_all(webhook_id: str) -> None:
    while _publish(webhook_id):
        continue


def _publish(webhook_id: str) -> bool:
    """Create the deliveries of one page of events. Return True if there may be more.

    The webhook's row is the lock, and its position records progress.
    """
    with transaction.atomic():
        rows = Webhook.objects.select_for_update(no_key=True, skip_locked=True)
        webhook = rows.filter(pk=webhook_id, enabled=True).first()
        if webhook is None:
            return False
        events = event_feed.events_after({webhook.team_id: webhook.position}, PAGE)
        if not events:
            return False
        now = timezone.now()
        selected = [event for event in events if envelope.is_subscribed(webhook.types, envelope.full_type(event))]
        jobs = Job.objects.in_bulk({event.job_id for event in selected}) if webhook.format in NAMES_JOBS else {}
        bodies = ((event, _body(webhook, event, jobs)) for event in selected)
        Delivery.objects.bulk_create(
            Delivery(
                team_id=webhook.team_id,
                webhook=webhook,
                team_seq=event.team_seq,
                event_type=envelope.full_type(event),
                body=body,
                next_try_at=now,
                gives_up_at=now + GIVE_UP_AFTER,
            )
            for event, body in bodies
            if body is not None
        )
        webhook.position = events[-1].team_seq or webhook.position
        webhook.save(update_fields=["position"])
        if selected:
            task_triggers.trigger_after_commit(task_triggers.DELIVER)
    return len(events) == PAGE


def _body(webhook: Webhook, event: JobEvent, jobs: Mapping[str, Job]) -> str | None:
    """Return the body of an event, None if the webhook's format has none for it."""
    source = settings.ATHANOR.public_url
    if webhook.format == Webhook.Format.SLACK:
        return envelope.for_slack(event, jobs[event.job_id].name, source)
    if webhook.format == Webhook.Format.OPENLINEAGE:
        run_event = openlineage.run_event_of(event, jobs[event.job_id], source)
        return envelope.encoded(run_event) if run_event else None
    return envelope.of_event(event, source)


def _forget_old() -> None:
    """Delete finished deliveries older than KEPT. Ids sort by creation time, so the primary key finds them."""
    oldest_kept = f"dlv_{ULID.from_datetime(timezone.now() - KEPT)}"
    old = Delivery.objects.filter(pk__lt=oldest_kept).order_by("pk").values_list("pk", flat=True)
    Delivery.objects.filter(pk__in=list(old[:MAX_DELETED_PER_RUN])).exclude(state=Delivery.State.PENDING).delete()
