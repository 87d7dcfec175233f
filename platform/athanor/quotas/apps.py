"""The Django app of quotas."""

from django.apps import AppConfig


class QuotasConfig(AppConfig):
    """The quota tree and the admission settings."""

    name = "athanor.quotas"
    verbose_name = "Quotas"

    def ready(self) -> None:
        """Connect the signal that creates the leaf of a new team."""
        from athanor.quotas import signals  # noqa: F401, PLC0415 - models are there only now
