"""The Django app of alerts."""

from django.apps import AppConfig


class AlertsConfig(AppConfig):
    """Alert rules, alerts and notifications."""

    name = "athanor.alerts"
    verbose_name = "Alerts"
