from django.apps import AppConfig


class QuotasConfig(AppConfig):
    name = "athanor.quotas"
    verbose_name = "Quotas"

    def ready(self) -> None:
        from athanor.quotas import signals  # noqa: F401, PLC0415 - models are there only now
