"""Serializers of alert rules, alerts, notifications and preferences."""

import re
from datetime import time
from typing import Any

from rest_framework import serializers

from athanor.alerts.decisions import AlertState
from athanor.alerts.measures import DEFAULT_WINDOW, MAX_WINDOW, MEASURES, MIN_WINDOW, Measure
from athanor.alerts.models import Alert, AlertRule, Notification, NotificationPreference, Severity
from athanor.api.bodies import RequestSerializer

MAX_FOR_SECONDS = 7 * 86_400
MAX_READ = 200
MAX_THRESHOLD = 1e15
CLOCK_TIME = re.compile(r"^([01][0-9]|2[0-3]):[0-5][0-9]$")
MEASURE_HELP = " ".join(f"`{name}` ({facts.unit}): {facts.description}" for name, facts in MEASURES.items())
SERIES_HELP = "Name of the series, such as `throughput/mfu_causal`, for measures of a series. Otherwise empty."
WINDOW_HELP = "Number of last points that `series_drop` and `series_spike` look at."
THRESHOLD_HELP = "In the unit of the measure."
CLEAR_HELP = (
    "Value at which an alert that fires is resolved: at most `threshold`, for `series_below` at least. Null is the "
    "threshold itself."
)
FOR_HELP = "Seconds for which the threshold must be passed before the alert fires."
JOB_NAME_HELP = "Only jobs with such a name, where `*` matches any characters. Empty: all."
LABELS_HELP = "Only jobs with all of these labels."
RECIPIENTS_HELP = (
    "`owner`: who submitted the job, or the team's administrators for a budget, for storage, and if that person has "
    "left the team. `team`: all members."
)


class LabelsField(serializers.DictField):
    """Labels by name. A value that is no string is refused, not converted."""

    child = serializers.CharField(max_length=200, allow_blank=True, trim_whitespace=False)

    def to_internal_value(self, data: Any) -> Any:
        """Return the labels. Raise ValidationError naming each value that is no string."""
        if isinstance(data, dict) and (wrong := [key for key, value in data.items() if not isinstance(value, str)]):
            raise serializers.ValidationError({str(key): ["a label's value is a string"] for key in wrong})
        return super().to_internal_value(data)


class NumberField(serializers.FloatField):
    """A number within bounds; an integer too large for a float is refused as others beyond them."""

    def __init__(self, **options: Any) -> None:
        super().__init__(min_value=-MAX_THRESHOLD, max_value=MAX_THRESHOLD, **options)

    def to_internal_value(self, data: Any) -> float:
        """Return the number as a float."""
        try:
            return super().to_internal_value(data)
        except OverflowError:
            self.fail("invalid")


class AlertRuleChangesSerializer(RequestSerializer):
    """Changes of an alert rule. The measure stays."""

    name = serializers.CharField(max_length=100, required=False, help_text="Name, unique in the team.")
    series = serializers.CharField(max_length=200, required=False, help_text=SERIES_HELP)
    window = serializers.IntegerField(min_value=MIN_WINDOW, max_value=MAX_WINDOW, required=False, help_text=WINDOW_HELP)
    threshold = NumberField(required=False, help_text=THRESHOLD_HELP)
    clear_threshold = NumberField(required=False, allow_null=True, help_text=CLEAR_HELP)
    for_seconds = serializers.IntegerField(min_value=0, max_value=MAX_FOR_SECONDS, required=False, help_text=FOR_HELP)
    job_name = serializers.CharField(max_length=100, required=False, allow_blank=True, help_text=JOB_NAME_HELP)
    labels = LabelsField(required=False, help_text=LABELS_HELP)
    severity = serializers.ChoiceField(choices=Severity.values, required=False, help_text="How urgent it is.")
    recipients = serializers.ChoiceField(choices=AlertRule.Recipients.values, required=False, help_text=RECIPIENTS_HELP)
    enabled = serializers.BooleanField(required=False, help_text="Whether the rule is evaluated.")


class NewAlertRuleSerializer(RequestSerializer):
    """An alert rule to create."""

    name = serializers.CharField(max_length=100, help_text="Name, unique in the team.")
    measure = serializers.ChoiceField(choices=[each.value for each in Measure], help_text=MEASURE_HELP)
    series = serializers.CharField(max_length=200, default="", allow_blank=True, help_text=SERIES_HELP)
    window = serializers.IntegerField(
        min_value=MIN_WINDOW, max_value=MAX_WINDOW, default=DEFAULT_WINDOW, help_text=WINDOW_HELP
    )
    threshold = NumberField(help_text=THRESHOLD_HELP)
    clear_threshold = NumberField(default=None, allow_null=True, help_text=CLEAR_HELP)
    for_seconds = serializers.IntegerField(min_value=0, max_value=MAX_FOR_SECONDS, default=0, help_text=FOR_HELP)
    job_name = serializers.CharField(max_length=100, default="", allow_blank=True, help_text=JOB_NAME_HELP)
    labels = LabelsField(default=dict, help_text=LABELS_HELP)
    severity = serializers.ChoiceField(choices=Severity.values, default=Severity.WARNING, help_text="How urgent it is.")
    recipients = serializers.ChoiceField(
        choices=AlertRule.Recipients.values, default=AlertRule.Recipients.OWNER, help_text=RECIPIENTS_HELP
    )
    enabled = serializers.BooleanField(default=True, help_text="Whether the rule is evaluated.")
    team = serializers.CharField(
        required=False, help_text="Name or id of the team. May be left out if you belong to one team only."
    )


class AlertRuleSerializer(serializers.Serializer[AlertRule]):
    """When to notify whom."""

    id = serializers.CharField()
    team = serializers.CharField(source="team.name", help_text="Name of the team.")
    name = serializers.CharField(help_text="Name, unique in the team.")
    measure = serializers.ChoiceField(choices=[each.value for each in Measure], help_text="What it measures.")
    series = serializers.CharField(allow_blank=True, help_text="Name of the series. Empty for other measures.")
    window = serializers.IntegerField(help_text=WINDOW_HELP)
    threshold = serializers.FloatField(help_text=THRESHOLD_HELP)
    clear_threshold = serializers.FloatField(allow_null=True, help_text=CLEAR_HELP)
    for_seconds = serializers.IntegerField(help_text=FOR_HELP)
    job_name = serializers.CharField(allow_blank=True, help_text=JOB_NAME_HELP)
    labels = serializers.DictField(child=serializers.CharField(), help_text=LABELS_HELP)
    severity = serializers.ChoiceField(choices=Severity.values, help_text="How urgent it is.")
    recipients = serializers.ChoiceField(choices=AlertRule.Recipients.values, help_text=RECIPIENTS_HELP)
    enabled = serializers.BooleanField(help_text="Whether the rule is evaluated.")
    created_by = serializers.CharField(
        source="created_by.username",
        allow_null=True,
        default=None,
        help_text="Username of the person who created it. Null if the account is gone.",
    )
    created_at = serializers.DateTimeField()


class AlertSerializer(serializers.Serializer[Alert]):
    """A rule that is, or was, beyond its threshold for one job, budget or storage limit."""

    id = serializers.CharField()
    team = serializers.CharField(source="team.name", help_text="Name of the team.")
    rule_id = serializers.CharField(help_text="Id of the rule.")
    rule = serializers.CharField(source="rule.name", help_text="Name of the rule.")
    severity = serializers.ChoiceField(
        source="rule.severity", choices=Severity.values, help_text="Severity of the rule."
    )
    measure = serializers.ChoiceField(
        source="rule.measure", choices=[each.value for each in Measure], help_text="What the rule measures."
    )
    subject = serializers.CharField(help_text="Id of the job, the budget or the quota node.")
    subject_name = serializers.CharField(help_text="Its name.")
    job_id = serializers.CharField(allow_null=True, help_text="Id of the job. Null for a budget or storage.")
    state = serializers.ChoiceField(
        choices=[each.value for each in AlertState],
        help_text="`pending` until the threshold was passed for `for_seconds`, then `firing`, in the end `resolved`.",
    )
    since = serializers.DateTimeField(help_text="Time since when the threshold was passed, ISO 8601 in UTC.")
    fired_at = serializers.DateTimeField(
        allow_null=True, help_text="Time at which it fired, ISO 8601 in UTC. Null while it is pending."
    )
    resolved_at = serializers.DateTimeField(
        allow_null=True, help_text="Time at which it was resolved, ISO 8601 in UTC. Null before."
    )
    value = serializers.FloatField(help_text="Value at the last change of its state, in the unit of the measure.")
    message = serializers.CharField(help_text="What was measured, in words.")


class NotificationSerializer(serializers.Serializer[Notification]):
    """A message in your inbox."""

    id = serializers.CharField()
    team = serializers.CharField(source="team.name", help_text="Name of the team.")
    alert_id = serializers.CharField(allow_null=True, help_text="Id of the alert. Null if its rule was deleted.")
    kind = serializers.ChoiceField(
        choices=Notification.Kind.values, help_text="Whether the alert fires or was resolved."
    )
    severity = serializers.ChoiceField(choices=Severity.values, help_text="Severity of the rule.")
    title = serializers.CharField(help_text="Rule and job, budget or quota node.")
    text = serializers.CharField(help_text="What was measured, in words.")
    job_id = serializers.CharField(allow_blank=True, help_text="Id of the job. Empty for a budget or storage.")
    created_at = serializers.DateTimeField()
    read_at = serializers.DateTimeField(
        allow_null=True, help_text="Time at which you marked it as read, ISO 8601 in UTC. Null before."
    )
    mail_at = serializers.DateTimeField(
        allow_null=True, help_text="Time from which it is mailed, ISO 8601 in UTC. Null if it is not mailed."
    )
    mail_state = serializers.CharField(
        source="mail.state",
        allow_null=True,
        default=None,
        help_text="`pending`, `sent` or `failed`. Null before `mail_at`, and if it is not mailed.",
    )
    mail_error = serializers.CharField(
        source="mail.error", allow_null=True, default=None, help_text="Why the last try to send it failed, if it did."
    )


class UnreadSerializer(serializers.Serializer[Any]):
    """Number of notifications that you have not read."""

    unread = serializers.IntegerField(help_text="Number of unread notifications in your inbox.")


class ReadSerializer(RequestSerializer):
    """Notifications to mark as read."""

    ids = serializers.ListField(
        child=serializers.CharField(max_length=40),
        max_length=MAX_READ,
        required=False,
        help_text="Ids of notifications. Without it, all that you have now. Those of others are ignored.",
    )


class PreferenceChangesSerializer(RequestSerializer):
    """Changes of your preferences."""

    mail_from = serializers.ChoiceField(
        choices=NotificationPreference.MailFrom.values,
        required=False,
        help_text="Lowest severity that is mailed to you, or `never`.",
    )
    time_zone = serializers.CharField(
        max_length=60, required=False, help_text="Your time zone, such as `Europe/Berlin`."
    )
    quiet_from = serializers.RegexField(
        CLOCK_TIME, required=False, allow_null=True, help_text="Start of your quiet hours, `HH:MM`. Null: none."
    )
    quiet_until = serializers.RegexField(
        CLOCK_TIME, required=False, allow_null=True, help_text="End of your quiet hours, `HH:MM`. Null: none."
    )
    digest_at = serializers.RegexField(
        CLOCK_TIME,
        required=False,
        allow_null=True,
        help_text="Time of one mail a day, `HH:MM`. Null: mails are immediate.",
    )
    critical_immediately = serializers.BooleanField(
        required=False, help_text="Whether critical alerts wait neither for the digest nor for the end of quiet hours."
    )

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """Return the fields with times of day instead of their text."""
        given = {name: attrs[name] for name in ("quiet_from", "quiet_until", "digest_at") if attrs.get(name)}
        return {**attrs, **{name: time.fromisoformat(text) for name, text in given.items()}}


class PreferenceSerializer(serializers.Serializer[NotificationPreference]):
    """What you get by mail, and when."""

    email = serializers.CharField(
        source="user.email", allow_blank=True, help_text="Your address. Empty: you get no mail."
    )
    mail_from = serializers.ChoiceField(
        choices=NotificationPreference.MailFrom.values, help_text="Lowest severity that is mailed to you, or `never`."
    )
    time_zone = serializers.CharField(help_text="Your time zone.")
    quiet_from = serializers.TimeField(
        format="%H:%M", allow_null=True, help_text="Start of your quiet hours. Null: none."
    )
    quiet_until = serializers.TimeField(
        format="%H:%M", allow_null=True, help_text="End of your quiet hours. Null: none."
    )
    digest_at = serializers.TimeField(
        format="%H:%M", allow_null=True, help_text="Time of one mail a day. Null: mails are immediate."
    )
    critical_immediately = serializers.BooleanField(
        help_text="Whether critical alerts wait neither for the digest nor for the end of quiet hours."
    )
    mail_is_on = serializers.SerializerMethodField(help_text="Whether the platform has a mail server.")

    def get_mail_is_on(self, row: NotificationPreference) -> bool:
        """Return whether ATHANOR_SMTP_HOST is set."""
        return bool(self.context["mail_is_on"])
