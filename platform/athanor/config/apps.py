from django.apps import AppConfig


class ConfigConfig(AppConfig):
    """Carries the management commands and starts the Celery application, so that hints can be sent."""

    name = "athanor.config"
    label = "athanor_config"

    def ready(self) -> None:
        from athanor.config import celery  # noqa: F401, PLC0415 - needs the settings, which are ready only now
