from django.apps import AppConfig


class AccountsConfig(AppConfig):
    name = "athanor.accounts"
    verbose_name = "People and teams"

    def ready(self) -> None:
        from athanor.accounts import signals  # noqa: PLC0415 - its models are ready only now

        signals.connect()
