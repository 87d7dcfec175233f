"""The Django app of telemetry."""

from django.apps import AppConfig


class TelemetryConfig(AppConfig):
    """The app's name."""

    name = "athanor.telemetry"
