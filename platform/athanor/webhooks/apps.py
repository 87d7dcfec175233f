"""The Django app of webhooks."""

from django.apps import AppConfig


class WebhooksConfig(AppConfig):
    """Registers the secrets of webhooks for key rotation."""

    name = "athanor.webhooks"
    verbose_name = "Webhooks"

    def ready(self) -> None:
        """Register the secrets of webhooks for key rotation."""
        from athanor.artifacts import rotation  # noqa: PLC0415 - models are ready only now
        from athanor.webhooks import models, secrets  # noqa: PLC0415 - likewise

        rotation.register(models.WebhookSecret, lambda row: secrets.associated_data(row.webhook_id))
