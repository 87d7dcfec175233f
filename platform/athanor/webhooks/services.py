"""Changes of webhooks by a team's administrators. Each is recorded in the audit trail, without secrets."""

from datetime import timedelta
from typing import Any

from django.conf import settings
from django.db import IntegrityError, transaction
from django.utils import timezone

from athanor.accounts import audit
from athanor.accounts.models import Team, User
from athanor.core import outbound, task_triggers
from athanor.core.errors import Conflict, NotFound, TooManyRequests
from athanor.jobs import event_feed
from athanor.webhooks import envelope, openlineage, secrets
from athanor.webhooks.models import Delivery, Webhook
from athanor.webhooks.retry_schedule import GIVE_UP_AFTER

MAX_WEBHOOKS_PER_TEAM = 20
DELETE_TRIES = 5
MAX_TESTS = 6  # of a team, within TEST_WINDOW
TEST_WINDOW = timedelta(minutes=1)


def create(
    team: Team, *, url: str, name: str, types: list[str], actor: User, format_: str = Webhook.Format.CLOUDEVENTS
) -> tuple[Webhook, str]:
    """Create a webhook for events from now on. Return it with its secret, which is shown once."""
    outbound.check_webhook_url(url)
    event_feed.assign_numbers()
    with transaction.atomic():
        Team.objects.select_for_update(no_key=True).get(pk=team.pk)  # concurrent requests must not both pass the limit
        if Webhook.objects.filter(team=team).count() >= MAX_WEBHOOKS_PER_TEAM:
            raise Conflict(
                "too_many_webhooks",
                f"team {team.name} has {MAX_WEBHOOKS_PER_TEAM} webhooks",
                remedy="delete one of them",
            )
        webhook = Webhook.objects.create(
            team=team,
            url=url,
            name=name,
            types=types,
            format=format_,
            position=event_feed.newest_numbers([team.id])[team.id],
            created_by=actor,
        )
        secret = secrets.create_secret(webhook, timedelta())
        _record("webhook.create", webhook, actor, after=_facts(webhook))
    return webhook, secret


def change(webhook: Webhook, changes: dict[str, Any], actor: User) -> Webhook:
    """Change url, name, types or enabled. Enabled again, it receives events from then on."""
    if "url" in changes:
        outbound.check_webhook_url(changes["url"])
    event_feed.assign_numbers()
    with transaction.atomic():
        row = _locked(webhook)
        before = _facts(row)
        wanted = changes.get("enabled", row.enabled)
        if wanted and not row.enabled:
            row.position = event_feed.newest_numbers([row.team_id])[row.team_id]
            row.disabled_reason, row.disabled_at = "", None
            row.consecutive_failures, row.failing_since, row.paused_until = 0, None, None
        elif row.enabled and not wanted:
            row.disabled_reason, row.disabled_at = f"by {actor.username}", timezone.now()
        if changes.get("url", row.url) != row.url:  # what another address did not take says nothing of this one
            row.consecutive_failures, row.failing_since, row.paused_until = 0, None, None
        for name, value in changes.items():
            setattr(row, name, value)
        row.save()
        _record("webhook.change", row, actor, before=before, after=_facts(row))
    return row


def delete(webhook: Webhook, actor: User) -> None:
    """Delete a webhook with its deliveries. A delivery that is being sent may still arrive."""
    for _ in range(DELETE_TRIES):
        try:
            _delete(webhook, actor)
        except IntegrityError:  # an event was published for it in between: once more, with that delivery
            continue
        return
    detail = f"{webhook.id} is processing events now"
    raise Conflict("webhook_busy", detail, remedy="send it again after a second", retry_after_seconds=1)


def _delete(webhook: Webhook, actor: User) -> None:
    with transaction.atomic():
        Delivery.objects.filter(webhook=webhook).delete()
        before, identifier = _facts(webhook), webhook.id
        Webhook.objects.filter(pk=identifier).delete()
        webhook.id = identifier
        _record("webhook.delete", webhook, actor, before=before)


def rotate_secret(webhook: Webhook, overlap: timedelta, actor: User) -> str:
    """Create a new secret and return it; for `overlap`, deliveries are also signed with the previous one."""
    with transaction.atomic():
        secret = secrets.create_secret(_locked(webhook), overlap)
        _record("webhook.rotate_secret", webhook, actor, after={"overlap_seconds": int(overlap.total_seconds())})
    return secret


def test(webhook: Webhook, actor: User) -> Delivery:
    """Queue a delivery of a test event. Raise TooManyRequests beyond MAX_TESTS in TEST_WINDOW for a team."""
    _refuse_if_off(webhook)
    now = timezone.now()
    with transaction.atomic():
        Team.objects.select_for_update(no_key=True).get(pk=webhook.team_id)  # parallel requests are counted one by one
        recent = Delivery.objects.filter(
            team_id=webhook.team_id, event_type=envelope.TEST, created_at__gt=now - TEST_WINDOW
        ).order_by("created_at")
        times = list(recent.values_list("created_at", flat=True))
        if len(times) >= MAX_TESTS:
            wait = int((times[-MAX_TESTS] + TEST_WINDOW - now).total_seconds()) + 1
            raise TooManyRequests(
                "too_many_webhook_tests",
                f"team {webhook.team.name} has sent {len(times)} test events in a minute; {MAX_TESTS} are allowed",
                remedy=f"try again in {wait} seconds",
                retry_after_seconds=wait,
            )
        delivery = Delivery(
            team_id=webhook.team_id,
            webhook=webhook,
            event_type=envelope.TEST,
            next_try_at=now,
            gives_up_at=now,
        )
        if webhook.format == Webhook.Format.SLACK:
            delivery.body = envelope.test_for_slack()
        elif webhook.format == Webhook.Format.OPENLINEAGE:
            delivery.body = envelope.encoded(openlineage.test_event(now, settings.ATHANOR.public_url))
        else:
            delivery.body = envelope.of_test(delivery.id, webhook.id, now.isoformat(), settings.ATHANOR.public_url)
        delivery.save(force_insert=True)
        _try_now(webhook)
        task_triggers.trigger_after_commit(task_triggers.DELIVER)
        _record("webhook.test", webhook, actor, after={"delivery": delivery.id})
    return delivery


def redeliver(delivery: Delivery, actor: User) -> Delivery:
    """Deliver the same body again; receivers can deduplicate by its id."""
    _refuse_if_off(delivery.webhook)
    now = timezone.now()
    with transaction.atomic():
        rows = Delivery.objects.select_for_update(no_key=True, of=("self",)).select_related("webhook")
        row = rows.filter(pk=delivery.pk).first()
        if row is None:  # deleted with its webhook, or too old, meanwhile
            raise NotFound("delivery", delivery.id)
        row.state, row.tries, row.finished_at = Delivery.State.PENDING, 0, None
        row.next_try_at, row.gives_up_at = now, now + GIVE_UP_AFTER
        row.save(update_fields=["state", "tries", "finished_at", "next_try_at", "gives_up_at"])
        _try_now(row.webhook)
        task_triggers.trigger_after_commit(task_triggers.DELIVER)
        _record("webhook.redeliver", row.webhook, actor, after={"delivery": row.id})
    return row


def _locked(webhook: Webhook) -> Webhook:
    """Return the locked webhook. Raises NotFound if it was deleted meanwhile."""
    rows = Webhook.objects.select_for_update(no_key=True, of=("self",)).select_related("team")
    row = rows.filter(pk=webhook.pk).first()
    if row is None:
        raise NotFound("webhook", webhook.id)
    return row


def _try_now(webhook: Webhook) -> None:
    """End the pause of a failing webhook: a manual request does not wait for it."""
    Webhook.objects.filter(pk=webhook.pk).update(paused_until=None)


def _refuse_if_off(webhook: Webhook) -> None:
    if not webhook.enabled:
        raise Conflict("webhook_disabled", f"{webhook.id} is switched off", remedy="switch it on first (enabled: true)")


def _facts(webhook: Webhook) -> dict[str, Any]:
    """Return the audited facts. The path of the address, which is often a secret, is left out."""
    return {
        "name": webhook.name,
        **audit.address(webhook.url),
        "types": list(webhook.types),
        "format": webhook.format,
        "enabled": webhook.enabled,
    }


def _record(action: str, webhook: Webhook, actor: User, **facts: Any) -> None:
    audit.record(action, actor=actor, target=("webhook", webhook.id), team_id=webhook.team_id, **facts)
