"""Queries of rules, alerts and notifications, limited to what the principal may see."""

from django.db.models import QuerySet

from athanor.accounts.models import User
from athanor.accounts.selectors import Principal
from athanor.alerts.models import Alert, AlertRule, Notification, NotificationPreference
from athanor.core.errors import NotFound


def rules_of(principal: Principal) -> QuerySet[AlertRule]:
    """Return the rules of the principal's teams."""
    rows = AlertRule.objects.filter(team_id__in=principal.team_ids).select_related("team", "created_by")
    return rows.order_by("team__name", "name")


def rule_of(principal: Principal, rule_id: str) -> AlertRule:
    """Return a rule of one of the principal's teams, or raise NotFound."""
    row = rules_of(principal).filter(pk=rule_id).first()
    if row is None:
        raise NotFound("alert rule", rule_id)
    return row


def alerts_of(principal: Principal, state: str | None = None) -> QuerySet[Alert]:
    """Return the alerts of the principal's teams, in this state or in any."""
    rows = Alert.objects.filter(team_id__in=principal.team_ids).select_related("team", "rule")
    return rows if state is None else rows.filter(state=state)


def inbox_of(principal: Principal) -> QuerySet[Notification]:
    """Return the principal's own notifications, of the teams that they belong to now."""
    rows = Notification.objects.filter(user=principal.user, team_id__in=principal.team_ids)
    return rows.select_related("team", "mail")


def count_unread(principal: Principal) -> int:
    """Return how many notifications in the principal's inbox are not marked as read."""
    return inbox_of(principal).filter(read_at=None).count()


def preference_of(user: User) -> NotificationPreference:
    """Return what a user gets by mail and when: the defaults before they choose."""
    return NotificationPreference.objects.filter(pk=user.pk).first() or NotificationPreference(user=user)
