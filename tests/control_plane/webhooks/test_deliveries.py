"""Deliveries: signed, one per subscribed webhook, retried, given up, and reported."""

import base64
import logging
from collections.abc import Callable
from datetime import timedelta

import pytest
from django.core.management import call_command
from django.db import transaction
from django.utils import timezone
from standardwebhooks.webhooks import Webhook as Standard

from athanor.accounts import audit
from athanor.accounts.models import AuditEvent, Team, User, WorkFailure
from athanor.alerts import services as alert_rules
from athanor.alerts.evaluating import evaluate_due
from athanor.artifacts import keys
from athanor.core import encryption, leases
from athanor.core.errors import NotFound
from athanor.jobs import events
from athanor.jobs import services as jobs
from athanor.jobs.models import Job
from athanor.scheduling import services as scheduling
from athanor.webhooks import delivering, publishing, services
from athanor.webhooks.models import Delivery, Webhook, WebhookSecret
from athanor.webhooks.secrets import associated_data
from tests.control_plane.artifacts.test_team_secrets import whole_database
from tests.control_plane.conftest import Api
from tests.control_plane.webhooks.receiver import Receiver

pytestmark = pytest.mark.django_db(transaction=True)


def run() -> None:
    """Run each reconciler once."""
    publishing.publish_due()
    delivering.deliver_due()


def make_due() -> None:
    Delivery.objects.filter(state="pending").update(next_try_at=timezone.now())
    Webhook.objects.update(paused_until=timezone.now())


def test_an_event_arrives_as_a_signed_cloudevent(
    made: Callable, receiver: Receiver, submit: Callable[..., Job], team: Team
) -> None:
    submit()  # before there was a webhook: not delivered
    webhook = made()
    job = submit()
    run()
    run()
    (got,) = receiver.received
    assert got.headers["Content-Type"].startswith("application/cloudevents+json")
    assert got.is_signed_with(webhook["secret"])
    assert not got.is_signed_with("whsec_" + base64.b64encode(b"another").decode())
    event = got.event
    assert {name: event[name] for name in ("specversion", "id", "type", "subject")} == {
        "specversion": "1.0",
        "id": f"{job.id}/1",
        "type": "athanor.job.submitted",
        "subject": job.id,
    }
    assert event["source"].startswith("http")
    assert event["time"].endswith("Z")
    assert event["data"]["team_id"] == team.id
    assert event["data"]["team_seq"] == 2
    delivery = Delivery.objects.get()
    assert (delivery.state, delivery.tries, delivery.log[0]["status"]) == ("delivered", 1, 200)
    assert delivery.log[0]["answer"] == "th\N{REPLACEMENT CHARACTER}at"
    assert Webhook.objects.get().last_success_at is not None


def test_a_secret_of_before_standard_webhooks_signs_too(
    made: Callable, receiver: Receiver, submit: Callable[..., Job]
) -> None:
    made()
    older = "whsec_" + base64.urlsafe_b64encode(b"\xfb\xff" * 16).decode().rstrip("=")
    assert "-" in older or "_" in older.removeprefix("whsec_")
    row = WebhookSecret.objects.select_related("team").get()
    with transaction.atomic():
        row.wrapped = encryption.wrap(keys.locked_team_keyset(row.team), older, associated_data(row.webhook_id))
        row.save()
    submit()
    run()
    (got,) = receiver.received
    standard = older.replace("-", "+").replace("_", "/").replace("whsec/", "whsec_")
    assert "v1=" in got.headers["Athanor-Signature"]
    Standard(standard).verify(got.body, got.headers)


def test_only_the_types_that_were_asked_for_are_told(
    made: Callable, receiver: Receiver, submit: Callable[..., Job]
) -> None:
    made(types=["job.status.cancelled", "checkpoint"])
    job = submit()
    jobs.request_stop(job.id, "ada")
    scheduling.admit()
    run()
    assert [got.event["type"] for got in receiver.received] == ["athanor.job.status.cancelled"]


def test_a_failure_is_tried_again_with_the_same_body_and_then_given_up(
    made: Callable, receiver: Receiver, submit: Callable[..., Job]
) -> None:
    made()
    receiver.answers = [500, 302]
    receiver.location = receiver.url
    submit()
    run()
    run()
    assert len(receiver.received) == 1, "the next try is not due yet, and a redirect would not be followed"
    make_due()
    run()
    assert Delivery.objects.get().log[1]["error"] == "answered 302; redirects are not followed"
    assert Webhook.objects.get().consecutive_failures == 2
    make_due()
    run()
    assert len({got.body for got in receiver.received}) == 1
    assert len(receiver.received) == 3
    delivery = Delivery.objects.get()
    assert (delivery.state, [entry["status"] for entry in delivery.log]) == ("delivered", [500, 302, 200])
    assert (Webhook.objects.get().consecutive_failures, Webhook.objects.get().failing_since) == (0, None)
    submit()
    receiver.answers = [503]
    publishing.publish_due()
    Delivery.objects.filter(state="pending").update(gives_up_at=timezone.now())
    delivering.deliver_due()
    assert Delivery.objects.latest("pk").state == "failed"


def test_a_receiver_that_is_down_is_not_asked_for_each_event_that_waits_for_it(
    made: Callable, receiver: Receiver, submit: Callable[..., Job]
) -> None:
    made()
    for _ in range(6):
        submit()
    receiver.answers = [500] * 6
    run()
    run()
    tried = len(receiver.received)
    assert tried <= delivering.MAX_CONCURRENT_DELIVERIES, "those that were under way together, then a pause"
    make_due()
    run()
    assert len(receiver.received) == tried + 1, "one, to see whether it is back"
    receiver.answers = []
    make_due()
    run()
    assert not Delivery.objects.exclude(state="delivered").exists(), "it is back: all are delivered"


def test_what_could_not_be_tried_in_time_says_so(
    made: Callable, receiver: Receiver, submit: Callable[..., Job]
) -> None:
    made()
    submit()
    publishing.publish_due()
    Webhook.objects.update(enabled=False)
    Delivery.objects.update(gives_up_at=timezone.now() - timedelta(hours=2))
    delivering.deliver_due()
    delivery = Delivery.objects.get()
    assert (delivery.state, receiver.received) == ("failed", [])
    assert delivery.log[0]["error"].startswith("not tried in time")


@pytest.mark.parametrize("how", ["gone", "failing"])
def test_a_webhook_that_nothing_reaches_is_switched_off_and_says_so(
    made: Callable, receiver: Receiver, submit: Callable[..., Job], admin: Api, how: str
) -> None:
    webhook = made()
    submit()
    receiver.answers = [410 if how == "gone" else 500, 500]
    if how == "failing":
        run()
        Webhook.objects.update(failing_since=timezone.now() - timedelta(hours=72))
        make_due()
    run()
    shown = admin.send("GET", f"webhooks/{webhook['id']}").json()
    assert shown["enabled"] is False
    assert {"gone": "410", "failing": "72 hours"}[how] in shown["disabled_reason"]
    notice = AuditEvent.objects.get(action="webhook.auto_disable")
    assert (notice.target_id, notice.after["enabled"]) == (webhook["id"], False)
    seen = len(receiver.received)
    submit()
    make_due()
    run()
    assert len(receiver.received) == seen, "nothing is sent while it is off"
    test = admin.send("POST", f"webhooks/{webhook['id']}:test")
    assert (test.status_code, test.json()["code"]) == (409, "webhook_disabled")
    back = admin.send("PATCH", f"webhooks/{webhook['id']}", {"enabled": True}).json()
    assert (back["enabled"], back["disabled_reason"], back["consecutive_failures"]) == (True, "", 0)
    newest = submit()
    run()
    assert newest.id in [got.event["subject"] for got in receiver.received], "with what was still pending, in any order"
    assert list(audit.verify()) == []


def test_a_worker_that_dies_between_sending_and_noting_it_sends_again(
    made: Callable, receiver: Receiver, submit: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    made()
    submit()
    publishing.publish_due()
    monkeypatch.setattr(delivering, "_apply", lambda *_: 1 / 0)
    delivering.deliver_due()
    monkeypatch.undo()
    assert len(receiver.received) == 1
    delivering.deliver_due()
    assert len(receiver.received) == 1, "leased"
    Delivery.objects.update(lease_until=timezone.now())
    WorkFailure.objects.update(next_try_at=timezone.now())
    delivering.deliver_due()
    assert len(receiver.received) == 2
    assert receiver.received[0].event["id"] == receiver.received[1].event["id"], "so the receiver can deduplicate"
    assert Delivery.objects.get().state == "delivered"


def test_a_late_outcome_is_dropped(made: Callable, receiver: Receiver, submit: Callable[..., Job]) -> None:
    made()
    submit()
    publishing.publish_due()
    (lease,) = leases.claim(Delivery.objects.all(), seconds=0, limit=1)
    delivering.deliver(lease)
    assert Delivery.objects.get().tries == 0


def test_publishing_twice_at_once_makes_one_delivery(
    made: Callable, receiver: Receiver, submit: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    webhook = made()
    monkeypatch.setattr(publishing, "PAGE", 2)
    for _ in range(5):
        submit()
    publishing.publish_due()
    Webhook.objects.update(position=Webhook.objects.get().position)
    publishing.publish_due()
    assert Delivery.objects.filter(webhook_id=webhook["id"]).count() == 5


def test_a_secret_is_replaced_while_both_sign(
    made: Callable, receiver: Receiver, admin: Api, submit: Callable[..., Job]
) -> None:
    webhook = made()
    fresh = admin.send("POST", f"webhooks/{webhook['id']}:rotate_secret", {"overlap_seconds": 60}).json()
    assert len(fresh["secrets"]) == 2
    submit()
    run()
    assert receiver.received[-1].is_signed_with(webhook["secret"])
    assert receiver.received[-1].is_signed_with(fresh["secret"])
    newest = admin.send("POST", f"webhooks/{webhook['id']}:rotate_secret", {"overlap_seconds": 0}).json()
    assert len(newest["secrets"]) == 2
    submit()
    run()
    assert receiver.received[-1].is_signed_with(newest["secret"])
    assert not receiver.received[-1].is_signed_with(webhook["secret"])
    assert not receiver.received[-1].is_signed_with(fresh["secret"])


def test_a_teams_new_key_seals_the_secrets_too(
    made: Callable, receiver: Receiver, team: Team, submit: Callable[..., Job]
) -> None:
    webhook = made()
    before = bytes(WebhookSecret.objects.get().wrapped)
    assert webhook["secret"].encode() not in before
    call_command("rotate_team_key", team.name)
    assert bytes(WebhookSecret.objects.get().wrapped) != before
    submit()
    run()
    assert receiver.received[-1].is_signed_with(webhook["secret"])


def test_neither_secret_nor_path_of_the_address_is_anywhere_but_where_it_belongs(
    made: Callable, receiver: Receiver, admin: Api, submit: Callable[..., Job], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    webhook = made(url=f"{receiver.url}/T0-CANARY-path")
    fresh = admin.send("POST", f"webhooks/{webhook['id']}:rotate_secret").json()
    submit()
    receiver.answers = [410]
    run()
    everywhere = whole_database() + caplog.text
    for secret in (webhook["secret"], fresh["secret"]):
        assert secret not in everywhere
    assert everywhere.count("T0-CANARY-path") == 1, "in the webhook's own row"
    assert AuditEvent.objects.filter(action="webhook.create", after__host__startswith="http://127.0.0.1:").exists()


def test_a_test_and_a_redelivery(made: Callable, receiver: Receiver, admin: Api, submit: Callable[..., Job]) -> None:
    webhook = made()
    tested = admin.send("POST", f"webhooks/{webhook['id']}:test")
    assert tested.status_code == 202
    delivering.deliver_due()
    assert receiver.received[0].event["type"] == "athanor.webhook.test"
    assert receiver.received[0].is_signed_with(webhook["secret"])
    submit()
    receiver.answers = [500]
    run()
    listed = admin.send("GET", f"webhooks/{webhook['id']}/deliveries").json()["items"]
    assert [item["state"] for item in listed] == ["pending", "delivered"]
    assert admin.send("GET", f"deliveries/{listed[0]['id']}").json()["body"] == receiver.received[-1].body
    again = admin.send("POST", f"deliveries/{listed[0]['id']}:redeliver")
    assert again.status_code == 202
    run()
    shown = admin.send("GET", f"deliveries/{listed[0]['id']}").json()
    assert (shown["state"], [entry["status"] for entry in shown["log"]]) == ("delivered", [500, 200])


def test_a_failed_test_is_not_tried_again(made: Callable, receiver: Receiver, admin: Api) -> None:
    webhook = made()
    receiver.answers = [500]
    admin.send("POST", f"webhooks/{webhook['id']}:test")
    run()
    assert Delivery.objects.get().state == "failed"


def test_what_is_over_is_forgotten_after_a_month(
    made: Callable, receiver: Receiver, submit: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    made()
    submit()
    run()
    monkeypatch.setattr(publishing, "KEPT", timedelta(seconds=-5))
    publishing.publish_due()
    assert not Delivery.objects.exists()


def test_a_deleted_webhook_takes_all_of_it_along(
    made: Callable, receiver: Receiver, admin: Api, submit: Callable[..., Job]
) -> None:
    webhook = made()
    submit()
    run()
    assert admin.send("DELETE", f"webhooks/{webhook['id']}").status_code == 204
    assert not Delivery.objects.exists()
    assert not WebhookSecret.objects.exists()
    actions = list(AuditEvent.objects.filter(target_type="webhook").order_by("seq").values_list("action", flat=True))
    assert actions == ["webhook.create", "webhook.delete"]


def test_what_somebody_else_has_deleted_meanwhile_is_not_found(
    made: Callable, user: User, submit: Callable[..., Job]
) -> None:
    webhook = Webhook.objects.get(pk=made()["id"])
    submit()
    publishing.publish_due()
    delivery = Delivery.objects.select_related("webhook").get()
    services.delete(Webhook.objects.get(pk=webhook.pk), user)
    for act in (
        lambda: services.change(webhook, {"name": "late"}, user),
        lambda: services.rotate_secret(webhook, timedelta(), user),
        lambda: services.redeliver(delivery, user),
    ):
        with pytest.raises(NotFound):
            act()


def test_what_one_address_did_not_take_is_not_held_against_another(
    made: Callable, receiver: Receiver, admin: Api
) -> None:
    webhook = made()
    failing = Webhook.objects.filter(pk=webhook["id"])
    later = timezone.now() + timedelta(minutes=5)
    failing.update(consecutive_failures=9, failing_since=timezone.now() - timedelta(hours=71), paused_until=later)
    assert admin.send("PATCH", f"webhooks/{webhook['id']}", {"name": "same"}).json()["consecutive_failures"] == 9
    changed = admin.send("PATCH", f"webhooks/{webhook['id']}", {"url": f"{receiver.url}-new"}).json()
    assert (changed["consecutive_failures"], changed["failing_since"]) == (0, None)
    assert failing.get().paused_until is None


def test_test_events_are_limited_and_audited(made: Callable, admin: Api, team: Team) -> None:
    first, second = made(), made()
    answers = [admin.send("POST", f"webhooks/{each['id']}:test") for each in (first, second) * 4]
    assert [answer.status_code for answer in answers] == [202] * 6 + [429] * 2
    refused = answers[-1].json()
    assert refused["code"] == "too_many_webhook_tests"
    assert 0 < int(answers[-1].headers["Retry-After"]) <= 61
    assert Delivery.objects.filter(event_type="webhook.test").count() == 6
    tested = AuditEvent.objects.filter(action="webhook.test").values_list("target_id", flat=True)
    assert sorted(tested) == sorted([first["id"], second["id"]] * 3)
    long_ago = timezone.now() - services.TEST_WINDOW
    Delivery.objects.update(created_at=long_ago)
    assert admin.send("POST", f"webhooks/{first['id']}:test").status_code == 202


def test_slack_gets_a_text_whose_names_and_messages_format_nothing(
    made: Callable, receiver: Receiver, submit: Callable[..., Job], admin: Api
) -> None:
    webhook = made(format="slack")
    assert webhook["format"] == "slack"
    job = submit()
    Job.objects.filter(pk=job.pk).update(name="<!channel> a|b & <https://evil.example|x>\n")
    with transaction.atomic():
        row = Job.objects.select_for_update().get(pk=job.pk)
        events.append(row, "job.waiting", actor="scheduling", message="<!here> waits", data={"reason": "x"})
        row.save()
    run()
    # They are sent at the same time, and arrive in any order.
    submitted, waiting = sorted(receiver.received, key=lambda got: "job.waiting" in got.event["text"])
    assert waiting.headers["Content-Type"] == "application/json; charset=utf-8"
    assert waiting.is_signed_with(webhook["secret"])
    (text,) = waiting.event.values()
    link = f"/jobs/{job.id}|&lt;!channel&gt; a b &amp; &lt;https://evil.example x&gt; >"
    assert text.startswith("<http")
    assert text.endswith(f"{link} job.waiting: &lt;!here&gt; waits")
    assert list(submitted.event) == ["text"]
    admin.send("POST", f"webhooks/{webhook['id']}:test")
    run()
    assert receiver.received[-1].event == {"text": "Athanor: this is a test"}


def test_an_alert_reaches_the_webhooks_that_subscribe_to_alerts(
    made: Callable, receiver: Receiver, submit: Callable[..., Job], team: Team, user: User
) -> None:
    webhook = made(types=["alert.firing"])
    alert_rules.create(team, user, name="waits", measure="queue_wait", threshold=0.0)
    job = submit()
    evaluate_due()
    run()
    (got,) = receiver.received
    assert got.is_signed_with(webhook["secret"])
    assert got.event["type"] == "athanor.alert.firing"
    assert got.event["subject"] == job.id
    assert got.event["data"]["data"]["name"] == "waits"
