"""The Django app of budgets."""

from django.apps import AppConfig


class BudgetsConfig(AppConfig):
    """Connects the receiver that releases reservations."""

    name = "athanor.budgets"
    verbose_name = "Budgets"

    def ready(self) -> None:
        """Connect the receiver that releases reservations."""
        from athanor.budgets import signals  # noqa: F401, PLC0415 - models are there only now
