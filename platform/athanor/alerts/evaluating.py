"""Evaluate alert rules: open, fire and resolve alerts, each with its event and notifications in one transaction."""

from datetime import datetime, timedelta
from functools import partial

from django.db import transaction
from django.db.models import Q
from django.utils import timezone

from athanor.accounts.failures import run_isolated
from athanor.alerts import notifying, samples
from athanor.alerts.decisions import OPEN, AlertState, Condition, next_state
from athanor.alerts.measures import MEASURES, Measure
from athanor.alerts.models import Alert, AlertRule
from athanor.alerts.samples import Sample
from athanor.core import task_triggers
from athanor.jobs import events
from athanor.jobs.models import Job

ACTOR = "alerts"
OPEN_STATES = [state.value for state in OPEN]


def evaluate_due(now: datetime | None = None) -> None:
    """Evaluate every enabled rule. Alerts of disabled rules, and of subjects that are not measured, are resolved."""
    now = now or timezone.now()
    rules = list(AlertRule.objects.filter(enabled=True, team__deleted_at=None).order_by("id"))
    open_alerts = {
        (alert.rule_id, alert.subject): alert
        for alert in Alert.objects.filter(state__in=OPEN_STATES).select_related("rule")
    }
    found = samples.measure(rules, now)
    for rule in rules:
        for sample in found.get(rule.id, []):
            alert = open_alerts.pop((rule.id, sample.subject), None)
            if _decide(rule, alert, sample, now) != (alert and AlertState(alert.state)):
                _isolated(rule, sample, now)
    for alert in open_alerts.values():
        _isolated(alert.rule, Sample(alert.subject, alert.subject_name, None, alert.job_id), now, is_gone=True)


def condition_of(rule: AlertRule) -> Condition:
    """Return when alerts of the rule fire and clear."""
    clear = rule.threshold if rule.clear_threshold is None else rule.clear_threshold
    return Condition(
        MEASURES[Measure(rule.measure)].fires_above, rule.threshold, clear, timedelta(seconds=rule.for_seconds)
    )


def _decide(rule: AlertRule, alert: Alert | None, sample: Sample, now: datetime) -> AlertState | None:
    state, since = (AlertState(alert.state), alert.since) if alert else (None, now)
    return next_state(condition_of(rule), state, since, sample.value, now)


def _isolated(rule: AlertRule, sample: Sample, now: datetime, *, is_gone: bool = False) -> None:
    work = f"alert rule {rule.id} on {sample.subject}"
    run_isolated(task_triggers.ALERT, work, partial(_apply, rule.id, sample, now, is_gone))


@transaction.atomic
def _apply(rule_id: str, sample: Sample, now: datetime, is_gone: bool) -> None:
    """Decide again on locked rows, and write the alert's new state. Jobs are locked first, as everywhere.

    The rule's row is the lock of its alerts: of two workers, the second finds the state that the first has written.
    """
    job = _job_of_event(rule_id, sample)
    rule = AlertRule.objects.select_for_update(no_key=True).filter(pk=rule_id).first()
    if rule is None:
        return
    alert = Alert.objects.filter(rule=rule, subject=sample.subject, state__in=OPEN_STATES).first()
    if is_gone:
        if alert is not None:
            _end(rule, alert, job, now, "It is not measured any more: the job left this state, or the rule changed.")
        return
    state = _decide(rule, alert, sample, now)
    if state is None:
        if alert is not None:
            alert.delete()
    elif state is AlertState.RESOLVED and alert is not None:
        _end(rule, alert, job, now, f"Now: {describe(rule, sample.value)}.", sample.value)
    elif alert is None or state is not AlertState(alert.state):
        alert = alert or Alert(team_id=rule.team_id, rule=rule, subject=sample.subject, since=now)
        alert.subject_name, alert.job_id, alert.state = sample.name[:100], sample.job_id, state.value
        alert.value = alert.value if sample.value is None else sample.value
        alert.message = f"{describe(rule, alert.value)}; {describe_limit(rule)}"
        if state is AlertState.FIRING:
            alert.fired_at = now
        alert.save()
        if state is AlertState.FIRING:
            _publish(rule, alert, job)


def _end(
    rule: AlertRule, alert: Alert, job: Job | None, now: datetime, message: str, value: float | None = None
) -> None:
    """Resolve an alert that fires; delete one that has not fired."""
    if alert.state == AlertState.PENDING.value:
        alert.delete()
        return
    alert.state, alert.resolved_at, alert.message = AlertState.RESOLVED.value, now, message
    alert.value = alert.value if value is None else value
    alert.save()
    _publish(rule, alert, job)


def describe(rule: AlertRule, value: float | None) -> str:
    """Return what was measured, as a phrase."""
    return MEASURES[Measure(rule.measure)].message.format(series=rule.series, value=value)


def describe_limit(rule: AlertRule) -> str:
    """Return the threshold of a rule, as a phrase."""
    facts = MEASURES[Measure(rule.measure)]
    unit = "" if rule.series and not facts.has_window else f" {facts.unit}"
    return f"the alert fires {'at or above' if facts.fires_above else 'below'} {rule.threshold:.6g}{unit}"


def _job_of_event(rule_id: str, sample: Sample) -> Job | None:
    """Lock and return the job to which the event is appended: the subject, or the newest job of the team."""
    which = Q(pk=sample.job_id)
    if sample.job_id is None:
        newest = Job.objects.filter(team__in=AlertRule.objects.filter(pk=rule_id).values("team")).order_by("-id")
        which = Q(pk__in=list(newest.values_list("pk", flat=True)[:1]))
    return Job.objects.select_for_update(no_key=True).filter(which).first()


def _publish(rule: AlertRule, alert: Alert, job: Job | None) -> None:
    """Append the event, which webhooks and streams get, and notify the recipients."""
    if job is not None:
        facts = {
            "alert": alert.id,
            "rule": rule.id,
            "name": rule.name,
            "severity": rule.severity,
            "measure": rule.measure,
            "subject": alert.subject,
            "value": alert.value,
            "threshold": rule.threshold,
        }
        message = f"{rule.name}: {alert.message}"
        if alert.state == AlertState.FIRING.value:
            events.append(job, "alert.firing", actor=ACTOR, message=message, data=facts)
        else:
            events.append(job, "alert.resolved", actor=ACTOR, message=message, data=facts)
        job.save(update_fields=["event_seq", "updated_at"])
        task_triggers.trigger_after_commit(task_triggers.PUBLISH)
    notifying.notify(rule, alert)
