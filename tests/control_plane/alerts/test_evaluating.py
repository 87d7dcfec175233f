"""Rules on real series, queues, budgets and storage: alerts open, fire, are resolved, and notify once."""

from collections.abc import Callable

import pytest
from django.db import IntegrityError, connection, transaction
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from athanor.accounts.models import Membership, Team, User
from athanor.alerts import services
from athanor.alerts.evaluating import evaluate_due
from athanor.alerts.models import Alert, AlertRule, Notification
from athanor.artifacts.models import Dataset
from athanor.backends.fake.backend import World
from athanor.budgets.models import Budget, BudgetPeriod
from athanor.jobs.models import Attempt, Job, JobEvent
from athanor.quotas import services as quotas
from athanor.quotas.models import QuotaNode
from athanor.telemetry import recent
from athanor.telemetry.models import MetricBlock, MetricChunk
from tests.control_plane import drive
from tests.control_plane.alerts.conftest import MFU, Run, minutes
from trainer.contract.run import EndClass

pytestmark = pytest.mark.django_db

LOSS = "train/loss"


def states() -> list[tuple[str, str]]:
    return list(Alert.objects.order_by("id").values_list("subject_name", "state"))


def inbox(user: User) -> list[str]:
    return list(Notification.objects.filter(user=user).order_by("id").values_list("title", flat=True))


def test_low_mfu_fires_after_the_hold_notifies_once_and_is_resolved_at_the_clear_threshold(
    running: Callable[..., Run], make_rule: Callable[..., AlertRule], user: User
) -> None:
    rule = make_rule(clear_threshold=0.32, for_seconds=300)
    run, now = running(name="llama"), timezone.now()
    run.report(0.4)
    evaluate_due(now)
    assert states() == []
    run.report(0.21)
    evaluate_due(now)
    assert states() == [("llama", "pending")]
    assert inbox(user) == []
    evaluate_due(now + minutes(5))
    evaluate_due(now + minutes(6))
    assert states() == [("llama", "firing")]
    assert inbox(user) == ["low MFU: llama"]
    note = Notification.objects.get()
    assert note.text == f"llama: {MFU} is 0.21; the alert fires below 0.28"
    run.report(0.3)
    evaluate_due(now + minutes(7))
    assert states() == [("llama", "firing")], "between the thresholds it stays"
    run.report(0.33)
    evaluate_due(now + minutes(8))
    evaluate_due(now + minutes(9))
    assert states() == [("llama", "resolved")]
    assert inbox(user) == ["low MFU: llama", "Resolved: low MFU: llama"]
    found = JobEvent.objects.filter(job=run.job, type__startswith="alert.").order_by("seq")
    assert [(event.type, event.data["rule"], event.data["value"]) for event in found] == [
        ("alert.firing", rule.id, 0.21),
        ("alert.resolved", rule.id, 0.33),
    ]


def test_a_pending_alert_that_clears_leaves_nothing(
    running: Callable[..., Run], make_rule: Callable[..., AlertRule]
) -> None:
    make_rule(for_seconds=300)
    run, now = running(), timezone.now()
    run.report(0.1)
    evaluate_due(now)
    run.report(0.5)
    evaluate_due(now + minutes(6))
    assert states() == []
    assert not Notification.objects.exists()


def test_no_progress_counts_from_the_newest_step_and_ends_with_the_job(
    running: Callable[..., Run], make_rule: Callable[..., AlertRule], user: User, world: World
) -> None:
    make_rule(name="stuck", measure="no_progress", threshold=10)
    run = running(name="llama")
    started = timezone.now()
    evaluate_due(started + minutes(9))
    assert states() == []
    run.report(0.4)
    evaluate_due(timezone.now() + minutes(11))
    assert states() == [("llama", "firing")]
    drive.end(world, run.attempt, EndClass.COMPLETED)
    assert drive.status_of(run.job)[0] == "succeeded"
    evaluate_due(timezone.now() + minutes(12))
    assert states() == [("llama", "resolved")]
    assert inbox(user) == ["stuck: llama", "Resolved: stuck: llama"]
    assert "not measured any more" in Notification.objects.order_by("id")[1].text


def test_a_node_with_a_slow_clock_is_not_taken_for_one_without_progress(
    running: Callable[..., Run], make_rule: Callable[..., AlertRule]
) -> None:
    make_rule(measure="no_progress", threshold=10)
    run = running(name="behind")
    begin = timezone.now() - minutes(60)
    Attempt.objects.filter(pk=run.attempt.pk).update(created_at=begin, started_at=begin)
    run.attempt.refresh_from_db()
    run.report(0.4, at=timezone.now() - minutes(30))
    evaluate_due(timezone.now() + minutes(9))
    assert states() == []
    evaluate_due(timezone.now() + minutes(10))
    assert states() == [("behind", "firing")]


def test_no_progress_of_a_retried_job_counts_from_its_start(
    running: Callable[..., Run], make_rule: Callable[..., AlertRule]
) -> None:
    make_rule(measure="no_progress", threshold=10)
    run = running()
    run.report(0.4)
    later = timezone.now() + minutes(30)
    Attempt.objects.filter(pk=run.attempt.pk).update(started_at=later)
    evaluate_due(later + minutes(9))
    assert states() == []
    evaluate_due(later + minutes(10))
    assert [state for _, state in states()] == ["firing"]


def test_a_drop_of_throughput_and_a_spike_of_the_loss_are_relative_to_the_series_own_median(
    running: Callable[..., Run], make_rule: Callable[..., AlertRule]
) -> None:
    speed = "throughput/tokens_per_second"
    make_rule(name="slow", measure="series_drop", series=speed, threshold=30, window=10)
    make_rule(name="spike", measure="series_spike", series=LOSS, threshold=50, window=10)
    fast, spiky, short = running(name="fast"), running(name="spiky"), running(name="short")
    fast.report(*[1000.0] * 9, name=speed)
    spiky.report(*[2.0] * 8, 3.5, 2.0, name=LOSS)
    short.report(1000.0, 1.0, name=speed)  # fewer points than the window: nothing is known
    evaluate_due()
    assert states() == [("spiky", "firing")], "a spike is noticed although newer points are normal"
    fast.report(690.0, name=speed)
    spiky.report(*[2.0] * 10, name=LOSS)
    evaluate_due()
    assert states() == [("spiky", "resolved"), ("fast", "firing")]
    assert Alert.objects.get(subject_name="fast").value == pytest.approx(31)


def test_last_points_are_read_from_blocks_tails_and_chunks(running: Callable[..., Run]) -> None:
    run = running()
    values = [float(number) for number in range(1150)]
    for first in range(0, 1150, 50):
        run.report(*values[first : first + 50])
    assert MetricBlock.objects.filter(level=0).exists()
    assert MetricChunk.objects.exists()
    found = recent.last_points([run.job.id], [MFU], 200)[run.job.id, MFU]
    assert list(found[2]) == values[-200:]
    assert list(found[0]) == list(range(951, 1151))


def test_waiting_jobs_are_measured_and_matched_by_name_and_labels(
    submit: Callable[..., Job], make_rule: Callable[..., AlertRule]
) -> None:
    make_rule(name="names", measure="queue_wait", threshold=60, job_name="llama-*")
    make_rule(name="labels", measure="queue_wait", threshold=60, labels={"tier": "gold"})
    submit(name="llama-7b")
    submit(name="other", labels={"tier": "gold", "x": "y"})
    submit(name="third", labels={"tier": "silver"})
    now = timezone.now()
    evaluate_due(now + minutes(59))
    assert states() == []
    evaluate_due(now + minutes(61))
    assert sorted(Alert.objects.values_list("rule__name", "subject_name")) == [
        ("labels", "other"),
        ("names", "llama-7b"),
    ]


def test_budgets_and_storage_of_the_team_and_above_are_measured(
    team: Team, other_team: Team, make_rule: Callable[..., AlertRule], make_user: Callable[..., User], user: User
) -> None:
    make_rule(name="budget", measure="budget_used", threshold=80)
    make_rule(name="disk", measure="storage_used", threshold=90, recipients="team")
    boss = make_user("hal", team, "admin")
    now = timezone.now()
    root = QuotaNode.objects.get(parent=None)
    for name, node, spent in (
        ("ours", quotas.leaf_of(team), 79), ("all", root, 80), ("theirs", quotas.leaf_of(other_team), 99)
    ):  # fmt: skip
        budget = Budget.objects.create(node=node, name=name, unit="slot_hours", period="month", amount=100)
        BudgetPeriod.objects.create(budget=budget, start=now - minutes(9), end=now + minutes(9), spent=spent)
    QuotaNode.objects.filter(team__in=[team, other_team]).update(max_storage_bytes=1000)
    data = {"origin": Dataset.Origin.SEALED}
    Dataset.objects.create(team=team, name="a", size_bytes=900, **data)
    Dataset.objects.create(team=other_team, name="b", size_bytes=999, **data)
    evaluate_due(now)
    assert sorted(states()) == [("all", "firing"), ("red", "firing")]
    assert inbox(boss) == ["budget: all", "disk: red"]
    assert inbox(user) == ["disk: red"], "the administrators own the budget"


def test_a_disabled_rule_resolves_its_alerts_and_a_deleted_one_leaves_the_inbox(
    running: Callable[..., Run], make_rule: Callable[..., AlertRule], user: User
) -> None:
    rule = make_rule()
    running(name="llama").report(0.1)
    evaluate_due()
    services.change(rule, {"enabled": False}, user)
    evaluate_due()
    assert states() == [("llama", "resolved")]
    services.delete(rule, user)
    assert states() == []
    assert len(inbox(user)) == 2


def test_there_is_at_most_one_open_alert_of_a_rule_and_subject(
    running: Callable[..., Run], make_rule: Callable[..., AlertRule]
) -> None:
    make_rule()
    running().report(0.1)
    evaluate_due()
    alert = Alert.objects.get()
    alert.pk = "alt_second"
    with pytest.raises(IntegrityError, match="one_open_alert"), transaction.atomic():
        alert.save(force_insert=True)


def test_the_owner_who_left_is_replaced_by_the_administrators(
    running: Callable[..., Run],
    make_rule: Callable[..., AlertRule],
    make_user: Callable[..., User],
    user: User,
    team: Team,
) -> None:
    make_rule()
    running(name="llama").report(0.1)
    boss = make_user("hal", team, "admin")
    Membership.objects.filter(user=user).delete()
    evaluate_due()
    assert (inbox(user), inbox(boss)) == ([], ["low MFU: llama"])


def test_the_number_of_queries_does_not_grow_with_rules_and_jobs(
    running: Callable[..., Run], make_rule: Callable[..., AlertRule]
) -> None:
    def count() -> int:
        with CaptureQueriesContext(
            connection,
        ) as queries:
            evaluate_due()
        return len(queries)

    measures = ("series_below", "series_drop", "no_progress", "queue_wait", "budget_used", "storage_used")
    thresholds = dict.fromkeys(measures, 1e6) | {"series_below": -1.0}
    for measure in measures:
        make_rule(name=measure, measure=measure, threshold=thresholds[measure])
    running(name="first").report(0.5)
    before = count()
    for number in range(4):
        running(name=f"more-{number}").report(0.5)
        for measure in measures:
            make_rule(name=f"{measure} {number}", measure=measure, threshold=thresholds[measure])
    assert count() == before
    assert states() == []
