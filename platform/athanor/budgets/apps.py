from django.apps import AppConfig


class BudgetsConfig(AppConfig):
    name = "athanor.budgets"
    verbose_name = "Budgets"

    def ready(self) -> None:
        from athanor.budgets import signals  # noqa: F401, PLC0415 - models are there only now
