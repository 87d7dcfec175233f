"""Create the notifications of an alert, each with the time at which it is mailed."""

from datetime import datetime

from django.conf import settings
from django.utils import timezone

from athanor.accounts.models import Membership, Role
from athanor.alerts.decisions import AlertState
from athanor.alerts.mail_times import Timing, mail_time
from athanor.alerts.models import Alert, AlertRule, Notification, NotificationPreference, Severity
from athanor.core import task_triggers

RANKS = {severity: rank for rank, severity in enumerate(Severity.values)}
NEVER = len(RANKS)


def notify(rule: AlertRule, alert: Alert) -> None:
    """Notify the recipients of a rule that its alert fires or is resolved, once each."""
    members = _recipients(rule, alert)
    preferences = NotificationPreference.objects.in_bulk([each.user_id for each in members])
    kind = Notification.Kind.FIRING if alert.state == AlertState.FIRING.value else Notification.Kind.RESOLVED
    text = f"{alert.subject_name}: {alert.message}"
    rows = [
        Notification(
            team_id=rule.team_id,
            user_id=member.user_id,
            alert=alert,
            kind=kind,
            severity=rule.severity,
            title=f"{'Resolved: ' if kind == Notification.Kind.RESOLVED else ''}{rule.name}: {alert.subject_name}",
            text=text[:500],
            job_id=alert.job_id or "",
            mail_at=_mail_at(member, preferences.get(member.user_id), rule.severity),
        )
        for member in members
    ]
    Notification.objects.bulk_create(rows, ignore_conflicts=True)
    if any(row.mail_at for row in rows):
        task_triggers.trigger_after_commit(task_triggers.SEND_MAILS)


def timing_of(preference: NotificationPreference) -> Timing:
    """Return a user's wishes about the time of mails."""
    return Timing(
        preference.time_zone,
        preference.quiet_from,
        preference.quiet_until,
        preference.digest_at,
        preference.critical_immediately,
    )


def _recipients(rule: AlertRule, alert: Alert) -> list[Membership]:
    """Return the members to notify: all people of the team, or the job's owner.

    Its administrators stand in for an owner who is none of them, and are the owners of budgets and storage.
    """
    members = Membership.objects.filter(team_id=rule.team_id, user__is_active=True, user__service_team=None)
    members = members.select_related("user").order_by("user_id")
    if rule.recipients == AlertRule.Recipients.TEAM:
        return list(members)
    owner = list(members.filter(user_id=alert.job.created_by_id)) if alert.job else []
    return owner or list(members.filter(role=Role.ADMIN))


def _mail_at(member: Membership, preference: NotificationPreference | None, severity: str) -> datetime | None:
    preference = preference or NotificationPreference(user_id=member.user_id)
    if not settings.ATHANOR.smtp_host or not member.user.email:
        return None
    if RANKS[severity] < RANKS.get(preference.mail_from, NEVER):
        return None
    return mail_time(timing_of(preference), severity == Severity.CRITICAL, timezone.now())
