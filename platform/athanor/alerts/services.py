"""Changes of alert rules, by members who may submit jobs, and of a user's inbox and preferences."""

import math
from datetime import datetime
from typing import Any
from zoneinfo import available_timezones

from django.db import IntegrityError, transaction
from django.utils import timezone

from athanor.accounts import audit
from athanor.accounts.models import Team, User
from athanor.alerts.measures import MEASURES, Measure
from athanor.alerts.models import AlertRule, Notification, NotificationPreference
from athanor.alerts.selectors import preference_of
from athanor.core import task_triggers
from athanor.core.errors import Conflict, FieldProblem, Invalid, NotFound

MAX_RULES_PER_TEAM = 100
FACTS = (
    "name", "measure", "series", "window", "threshold", "clear_threshold", "for_seconds", "job_name", "labels",
    "severity", "recipients", "enabled",
)  # fmt: skip


def create(team: Team, actor: User, **facts: Any) -> AlertRule:
    """Create a rule, which is evaluated from now on."""
    rule = AlertRule(team=team, created_by=actor, **facts)
    _check(rule)
    with transaction.atomic():
        Team.objects.select_for_update(no_key=True).get(pk=team.pk)  # concurrent requests must not both pass the limit
        if AlertRule.objects.filter(team=team).count() >= MAX_RULES_PER_TEAM:
            detail = f"team {team.name} has {MAX_RULES_PER_TEAM} alert rules"
            raise Conflict("too_many_alert_rules", detail, remedy="delete one of them")
        _save(rule)
        _record("alert_rule.create", rule, actor, after=_facts(rule))
        task_triggers.trigger_after_commit(task_triggers.ALERT)
    return rule


def change(rule: AlertRule, changes: dict[str, Any], actor: User) -> AlertRule:
    """Change a rule. Its open alerts are decided by the new thresholds; those of a disabled rule are resolved."""
    with transaction.atomic():
        row = AlertRule.objects.select_for_update(no_key=True, of=("self",)).select_related("team").filter(pk=rule.pk)
        found = row.first()
        if found is None:
            raise NotFound("alert rule", rule.pk)
        before = _facts(found)
        for name, value in changes.items():
            setattr(found, name, value)
        _check(found)
        _save(found)
        _record("alert_rule.change", found, actor, before=before, after=_facts(found))
        task_triggers.trigger_after_commit(task_triggers.ALERT)
    return found


def delete(rule: AlertRule, actor: User) -> None:
    """Delete a rule with its alerts. Notifications stay in the inboxes."""
    with transaction.atomic():
        _record("alert_rule.delete", rule, actor, before=_facts(rule))
        AlertRule.objects.filter(pk=rule.pk).delete()


def mark_read(user: User, team_ids: frozenset[str], notification_ids: list[str] | None, before: datetime) -> int:
    """Mark notifications of the user as read: these, or all that were created up to `before`. Return how many."""
    rows = Notification.objects.filter(user=user, team_id__in=team_ids, read_at=None)
    rows = rows.filter(created_at__lte=before) if notification_ids is None else rows.filter(pk__in=notification_ids)
    return rows.update(read_at=timezone.now())


def change_preference(user: User, changes: dict[str, Any]) -> NotificationPreference:
    """Change what a user gets by mail and when, for notifications from now on."""
    row = preference_of(user)
    for name, value in changes.items():
        setattr(row, name, value)
    problems = []
    if row.time_zone not in available_timezones():
        detail = f"time_zone={row.time_zone!r} is no name of the IANA time zone database, such as Europe/Berlin"
        problems.append(FieldProblem("/time_zone", "zone", detail))
    if (row.quiet_from is None) != (row.quiet_until is None) or (row.quiet_from and row.quiet_from == row.quiet_until):
        detail = "quiet hours need quiet_from and quiet_until, at different times; null for both is none"
        problems.append(FieldProblem("/quiet_until", "quiet_hours", detail))
    _refuse("invalid_preferences", problems)
    row.save()
    return row


def _check(rule: AlertRule) -> None:
    """Raise Invalid for fields that do not fit each other."""
    facts = MEASURES[Measure(rule.measure)]
    problems = []
    if facts.has_series and not rule.series:
        detail = f"{rule.measure} needs series, such as throughput/mfu_causal"
        problems.append(FieldProblem("/series", "required", detail))
    if rule.series and not facts.has_series:
        problems.append(FieldProblem("/series", "not_used", f"{rule.measure} measures no series; leave it out"))
    if not facts.of_jobs and (rule.job_name or rule.labels):
        detail = f"{rule.measure} measures no job; leave job_name and labels out"
        problems.append(FieldProblem("/job_name", "not_used", detail))
    numbers = [rule.threshold, rule.threshold if rule.clear_threshold is None else rule.clear_threshold]
    if not all(math.isfinite(number) for number in numbers):
        problems.append(FieldProblem("/threshold", "number", "thresholds are finite numbers"))
    elif numbers[1] > numbers[0] if facts.fires_above else numbers[1] < numbers[0]:
        side = "at most" if facts.fires_above else "at least"
        detail = f"clear_threshold={numbers[1]:g}: {rule.measure} clears at {side} its threshold, {numbers[0]:g}"
        problems.append(FieldProblem("/clear_threshold", "side", detail))
    _refuse("invalid_alert_rule", problems)


def _refuse(code: str, problems: list[FieldProblem]) -> None:
    if problems:
        remedy = "correct the fields listed in errors"
        raise Invalid(code, problems[0].detail, remedy=remedy, problems=tuple(problems))


def _save(rule: AlertRule) -> None:
    try:
        with transaction.atomic():
            rule.save()
    except IntegrityError as error:
        detail = f"team {rule.team.name} has an alert rule {rule.name!r}"
        raise Conflict("alert_rule_exists", detail, remedy="choose another name, or change that one") from error


def _facts(rule: AlertRule) -> dict[str, Any]:
    return {name: getattr(rule, name) for name in FACTS}


def _record(action: str, rule: AlertRule, actor: User, **facts: Any) -> None:
    audit.record(action, actor=actor, target=("alert_rule", rule.id), team_id=rule.team_id, **facts)
