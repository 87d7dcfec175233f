"""Webhooks, their signing secrets, and their deliveries."""

from typing import ClassVar

from django.db import models

from athanor.accounts.models import Team, User
from athanor.core import ids
from athanor.core.leases import LeasedModel


class Webhook(models.Model):
    """An address that receives a team's events, from `position` in the team's feed on."""

    class Format(models.TextChoices):
        CLOUDEVENTS = "cloudevents"
        SLACK = "slack"
        OPENLINEAGE = "openlineage"

    id = models.CharField(primary_key=True, max_length=40, default=ids.webhook_id, editable=False)
    team = models.ForeignKey(Team, on_delete=models.PROTECT, related_name="webhooks")
    name = models.CharField(max_length=100, blank=True, default="")
    url = models.CharField(max_length=500)
    types = models.JSONField(default=list)
    format = models.CharField(
        max_length=12, choices=Format.choices, default=Format.CLOUDEVENTS, db_default=Format.CLOUDEVENTS
    )
    enabled = models.BooleanField(default=True)
    disabled_reason = models.CharField(max_length=200, blank=True, default="")
    disabled_at = models.DateTimeField(null=True)
    position = models.BigIntegerField()
    consecutive_failures = models.PositiveIntegerField(default=0)
    failing_since = models.DateTimeField(null=True)
    paused_until = models.DateTimeField(null=True)
    last_success_at = models.DateTimeField(null=True)
    last_failure_at = models.DateTimeField(null=True)
    created_by = models.ForeignKey(User, null=True, on_delete=models.SET_NULL, related_name="+")
    created_at = models.DateTimeField(auto_now_add=True)
    updated_at = models.DateTimeField(auto_now=True)

    def __str__(self) -> str:
        return f"{self.name or self.id} of {self.team_id}"


class WebhookSecret(models.Model):
    """A signing secret, encrypted with the team's key. During a rotation two secrets sign each delivery."""

    id = models.CharField(primary_key=True, max_length=40, default=ids.secret_id, editable=False)
    team = models.ForeignKey(Team, on_delete=models.PROTECT, related_name="+")
    webhook = models.ForeignKey(Webhook, on_delete=models.CASCADE, related_name="secrets")
    wrapped = models.BinaryField()
    created_at = models.DateTimeField(auto_now_add=True)
    retires_at = models.DateTimeField(null=True)

    def __str__(self) -> str:
        return f"secret of {self.webhook_id}"


class Delivery(LeasedModel):
    """One event for one webhook, and the log of its tries. `body` is the same for each try."""

    class State(models.TextChoices):
        PENDING = "pending"
        DELIVERED = "delivered"
        FAILED = "failed"

    id = models.CharField(primary_key=True, max_length=40, default=ids.delivery_id, editable=False)
    team = models.ForeignKey(Team, on_delete=models.PROTECT, related_name="+")
    webhook = models.ForeignKey(Webhook, on_delete=models.CASCADE, related_name="deliveries")
    # None for a test delivery.
    team_seq = models.BigIntegerField(null=True)
    event_type = models.CharField(max_length=60)
    body = models.TextField()
    state = models.CharField(max_length=10, choices=State.choices, default=State.PENDING)
    tries = models.PositiveIntegerField(default=0)
    next_try_at = models.DateTimeField(null=True)
    gives_up_at = models.DateTimeField()
    log = models.JSONField(default=list)
    created_at = models.DateTimeField(auto_now_add=True)
    finished_at = models.DateTimeField(null=True)

    class Meta:
        verbose_name_plural = "deliveries"
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.UniqueConstraint(fields=["webhook", "team_seq"], name="one_delivery_per_webhook_and_event")
        ]
        indexes: ClassVar[list[models.Index]] = [
            models.Index(fields=["webhook", "-id"], name="deliveries_of_a_webhook"),
            models.Index(fields=["next_try_at"], condition=models.Q(state="pending"), name="deliveries_that_are_due"),
        ]

    def __str__(self) -> str:
        return f"{self.event_type} to {self.webhook_id}: {self.state}"
