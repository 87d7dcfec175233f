"""Alert rules, alerts, notifications and their mails, and preferences of users."""

from typing import ClassVar

from django.db import models
from django.utils import timezone

from athanor.accounts.models import Team, User
from athanor.alerts.decisions import OPEN, AlertState
from athanor.alerts.measures import DEFAULT_WINDOW, Measure
from athanor.core import ids
from athanor.core.leases import LeasedModel
from athanor.jobs.models import Job


class Severity(models.TextChoices):
    """Severity of a rule and its alerts, in rising order."""

    INFO = "info"
    WARNING = "warning"
    CRITICAL = "critical"


class AlertRule(models.Model):
    """When to notify whom. Of jobs, a rule covers those of its team that match `job_name` and `labels`."""

    class Recipients(models.TextChoices):
        OWNER = "owner"
        TEAM = "team"

    id = models.CharField(primary_key=True, max_length=40, default=ids.alert_rule_id, editable=False)
    team = models.ForeignKey(Team, on_delete=models.PROTECT, related_name="+")
    name = models.CharField(max_length=100)
    measure = models.CharField(max_length=20, choices=[(each.value, each.value) for each in Measure])
    series = models.CharField(max_length=200, blank=True, default="")
    window = models.PositiveIntegerField(default=DEFAULT_WINDOW)
    threshold = models.FloatField()
    clear_threshold = models.FloatField(null=True)
    for_seconds = models.PositiveIntegerField(default=0)
    job_name = models.CharField(max_length=100, blank=True, default="")
    labels = models.JSONField(default=dict)
    severity = models.CharField(max_length=10, choices=Severity.choices, default=Severity.WARNING)
    recipients = models.CharField(max_length=10, choices=Recipients.choices, default=Recipients.OWNER)
    enabled = models.BooleanField(default=True)
    created_by = models.ForeignKey(User, null=True, on_delete=models.SET_NULL, related_name="+")
    created_at = models.DateTimeField(default=timezone.now)

    class Meta:
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.UniqueConstraint(fields=["team", "name"], name="alert_rule_name_is_unique_in_a_team")
        ]

    def __str__(self) -> str:
        return f"{self.name} of {self.team_id}"


class Alert(models.Model):
    """A rule that is, or was, beyond its threshold for one subject: a job, a budget or the team's storage.

    `subject`: id of the job, the budget or the quota node. `since`: when it became pending. A pending alert that clears
    is deleted.
    """

    id = models.CharField(primary_key=True, max_length=40, default=ids.alert_id, editable=False)
    team = models.ForeignKey(Team, on_delete=models.PROTECT, related_name="+")
    rule = models.ForeignKey(AlertRule, on_delete=models.CASCADE, related_name="alerts")
    subject = models.CharField(max_length=40)
    subject_name = models.CharField(max_length=100)
    job = models.ForeignKey(Job, null=True, on_delete=models.CASCADE, related_name="+")
    state = models.CharField(max_length=10, choices=[(each.value, each.value) for each in AlertState])
    since = models.DateTimeField()
    fired_at = models.DateTimeField(null=True)
    resolved_at = models.DateTimeField(null=True)
    value = models.FloatField()
    message = models.CharField(max_length=400)

    class Meta:
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.UniqueConstraint(
                fields=["rule", "subject"],
                condition=models.Q(state__in=sorted(state.value for state in OPEN)),
                name="one_open_alert_per_rule_and_subject",
            )
        ]
        indexes: ClassVar[list[models.Index]] = [models.Index(fields=["team", "-id"], name="alerts_of_a_team")]

    def __str__(self) -> str:
        return f"{self.rule_id} on {self.subject}: {self.state}"


class Mail(LeasedModel):
    """A mail to a user with the notifications of a team that were due together."""

    class State(models.TextChoices):
        PENDING = "pending"
        SENT = "sent"
        FAILED = "failed"

    id = models.CharField(primary_key=True, max_length=40, default=ids.mail_id, editable=False)
    team = models.ForeignKey(Team, on_delete=models.PROTECT, related_name="+")
    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="+")
    state = models.CharField(max_length=10, choices=State.choices, default=State.PENDING)
    tries = models.PositiveIntegerField(default=0)
    next_try_at = models.DateTimeField(null=True)
    gives_up_at = models.DateTimeField()
    error = models.CharField(max_length=500, blank=True, default="")
    created_at = models.DateTimeField(default=timezone.now)
    sent_at = models.DateTimeField(null=True)

    class Meta:
        indexes: ClassVar[list[models.Index]] = [
            models.Index(fields=["next_try_at"], condition=models.Q(state="pending"), name="mails_that_are_due")
        ]

    def __str__(self) -> str:
        return f"{self.id} to {self.user_id}: {self.state}"


class Notification(models.Model):
    """A message in a user's inbox: an alert fired, or was resolved. `mail_at`: None if it is not mailed."""

    class Kind(models.TextChoices):
        FIRING = "firing"
        RESOLVED = "resolved"

    id = models.CharField(primary_key=True, max_length=40, default=ids.notification_id, editable=False)
    team = models.ForeignKey(Team, on_delete=models.PROTECT, related_name="+")
    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="+")
    alert = models.ForeignKey(Alert, null=True, on_delete=models.SET_NULL, related_name="+")
    kind = models.CharField(max_length=10, choices=Kind.choices)
    severity = models.CharField(max_length=10, choices=Severity.choices)
    title = models.CharField(max_length=250)
    text = models.CharField(max_length=500)
    job_id = models.CharField(max_length=40, blank=True, default="")
    created_at = models.DateTimeField(default=timezone.now)
    read_at = models.DateTimeField(null=True)
    mail_at = models.DateTimeField(null=True)
    mail = models.ForeignKey(Mail, null=True, on_delete=models.CASCADE, related_name="notifications")

    class Meta:
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.UniqueConstraint(fields=["alert", "user", "kind"], name="one_notification_per_alert_user_and_kind")
        ]
        indexes: ClassVar[list[models.Index]] = [
            models.Index(fields=["user", "-id"], name="inbox_of_a_user"),
            models.Index(
                fields=["mail_at"],
                condition=models.Q(mail=None, mail_at__isnull=False),
                name="notifications_to_mail",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.title} to {self.user_id}"


class NotificationPreference(models.Model):
    """What a user gets by mail, and when. Without a row, the defaults apply."""

    class MailFrom(models.TextChoices):
        INFO = "info"
        WARNING = "warning"
        CRITICAL = "critical"
        NEVER = "never"

    user = models.OneToOneField(User, primary_key=True, on_delete=models.CASCADE, related_name="+")
    mail_from = models.CharField(max_length=10, choices=MailFrom.choices, default=MailFrom.WARNING)
    time_zone = models.CharField(max_length=60, default="UTC")
    quiet_from = models.TimeField(null=True)
    quiet_until = models.TimeField(null=True)
    digest_at = models.TimeField(null=True)
    critical_immediately = models.BooleanField(default=True)

    def __str__(self) -> str:
        return f"preferences of {self.user_id}"
