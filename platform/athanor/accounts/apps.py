"""The Django app of accounts."""

from django.apps import AppConfig


class AccountsConfig(AppConfig):
    """Connects the receivers that record sign-ins and sign-outs."""

    name = "athanor.accounts"
    verbose_name = "People and teams"

    def ready(self) -> None:
        """Connect the receivers that record sign-ins and sign-outs."""
        from athanor.accounts import signals  # noqa: PLC0415 - its models are ready only now

        signals.connect()
