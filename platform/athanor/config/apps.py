from django.apps import AppConfig
from django.contrib.admin import apps as admin_apps


class ConfigConfig(AppConfig):
    """Carries the management commands and starts the Celery application, so that hints can be sent."""

    name = "athanor.config"
    label = "athanor_config"
    default = True

    def ready(self) -> None:
        from athanor.config import celery  # noqa: F401, PLC0415 - needs the settings, which are ready only now


class AuditedAdminConfig(admin_apps.AdminConfig):
    default = False
    default_site = "athanor.config.admin_site.AuditedAdminSite"
