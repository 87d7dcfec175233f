"""Signing secrets of webhooks: shown once, encrypted with the team's key. Two are active during a rotation."""

import base64
import secrets
from datetime import timedelta

from django.db.models import Q, QuerySet
from django.utils import timezone

from athanor.artifacts import keys
from athanor.core import encryption
from athanor.webhooks.envelope import SECRET_PREFIX
from athanor.webhooks.models import Webhook, WebhookSecret

KEY_BYTES = 32


def associated_data(webhook_id: str) -> str:
    """Return the associated data of a secret: moved to another webhook, it does not decrypt."""
    return f"webhook:{webhook_id}"


def create_secret(webhook: Webhook, overlap: timedelta) -> str:
    """Create a secret and return it. The previous one also signs for `overlap`; older ones are deleted.

    In the caller's transaction, which holds the webhook's row.
    """
    retires = timezone.now() + overlap
    active = list(_active(webhook).order_by("-created_at").values_list("pk", flat=True)[:1])
    WebhookSecret.objects.filter(webhook=webhook).exclude(pk__in=active).delete()
    WebhookSecret.objects.filter(pk__in=active).update(retires_at=retires)
    secret = SECRET_PREFIX + base64.b64encode(secrets.token_bytes(KEY_BYTES)).decode()
    wrapped = encryption.wrap(keys.locked_team_keyset(webhook.team), secret, associated_data(webhook.id))
    WebhookSecret.objects.create(team_id=webhook.team_id, webhook=webhook, wrapped=wrapped)
    return secret


def decrypt_active(webhook: Webhook) -> list[str]:
    """Return the decrypted active secrets, the newest first."""
    rows = _active(webhook).order_by("-created_at").annotate(team_wrapped=keys.TEAM_WRAPPED)
    return [keys.opened(row, associated_data(row.webhook_id)) for row in rows]


def _active(webhook: Webhook) -> QuerySet[WebhookSecret]:
    return WebhookSecret.objects.filter(webhook=webhook).filter(
        Q(retires_at__isnull=True) | Q(retires_at__gt=timezone.now())
    )
