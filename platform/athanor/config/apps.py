"""The Django app of the configuration, and the admin's app."""

from django.apps import AppConfig, apps
from django.contrib.admin import apps as admin_apps
from django.db.models.signals import post_migrate


class ConfigConfig(AppConfig):
    """Contains the management commands and starts the Celery app, so that tasks can be triggered."""

    name = "athanor.config"
    label = "athanor_config"
    default = True

    def ready(self) -> None:
        """Start the Celery app, and grant the runtime role its rights after migrations."""
        # Needs the settings, which are ready only now; importing registers the app and the checks.
        from athanor.config import celery, checks, database_roles  # noqa: F401, PLC0415 - see above

        post_migrate.connect(database_roles.grant_after_migrate, sender=apps.get_app_config("accounts"))


class AuditedAdminConfig(admin_apps.AdminConfig):
    """Uses the audited admin site."""

    default = False
    default_site = "athanor.config.admin_site.AuditedAdminSite"
