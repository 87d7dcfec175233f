from django.apps import AppConfig, apps
from django.contrib.admin import apps as admin_apps
from django.db.models.signals import post_migrate


class ConfigConfig(AppConfig):
    """Carries the management commands and starts the Celery application, so that hints can be sent."""

    name = "athanor.config"
    label = "athanor_config"
    default = True

    def ready(self) -> None:
        from athanor.config import celery, database_roles  # noqa: F401, PLC0415 - needs the settings, ready only now

        post_migrate.connect(database_roles.grant_after_migrate, sender=apps.get_app_config("accounts"))


class AuditedAdminConfig(admin_apps.AdminConfig):
    default = False
    default_site = "athanor.config.admin_site.AuditedAdminSite"
