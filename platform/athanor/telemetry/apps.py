from django.apps import AppConfig


class TelemetryConfig(AppConfig):
    name = "athanor.telemetry"
