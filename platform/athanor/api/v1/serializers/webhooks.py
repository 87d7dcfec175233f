"""Serializers of webhooks and their deliveries."""

import re
from typing import Any

from rest_framework import serializers

from athanor.api.bodies import RequestSerializer
from athanor.webhooks.models import Delivery, Webhook, WebhookSecret

MAX_OVERLAP_SECONDS = 7 * 86_400
DEFAULT_OVERLAP_SECONDS = 86_400
TYPE = re.compile(r"^[a-z0-9_]+(\.[a-z0-9_]+)*$")


class WebhookSecretSerializer(serializers.Serializer[WebhookSecret]):
    """Metadata of a signing secret."""

    id = serializers.CharField(help_text="Identifier of the signing secret.")
    created_at = serializers.DateTimeField()
    retires_at = serializers.DateTimeField(
        allow_null=True,
        help_text=("Time until which it signs beside its successor, ISO 8601 in UTC. Null for the current secret."),
    )


class WebhookChangesSerializer(RequestSerializer):
    """Changes of a webhook."""

    url = serializers.CharField(
        max_length=500,
        required=False,
        help_text=(
            "Address that events are sent to: https and public, unless the operator of the platform allows another."
        ),
    )
    name = serializers.CharField(
        max_length=100, required=False, allow_blank=True, help_text="Name by which to recognise it."
    )
    types = serializers.ListField(
        child=serializers.RegexField(TYPE, max_length=60),
        max_length=20,
        required=False,
        help_text=(
            "Types of events, each with those below it, such as `job.status.failed` or `checkpoint`. An "
            "empty list stands for all."
        ),
    )
    enabled = serializers.BooleanField(required=False, help_text="Whether events are sent.")


class NewWebhookSerializer(RequestSerializer):
    """A webhook to create."""

    url = serializers.CharField(
        max_length=500,
        help_text=(
            "Address that events are sent to: https and public, unless the operator of the platform allows another."
        ),
    )
    name = serializers.CharField(
        max_length=100, required=False, allow_blank=True, default="", help_text="Name by which to recognise it."
    )
    types = serializers.ListField(
        child=serializers.RegexField(TYPE, max_length=60),
        max_length=20,
        required=False,
        help_text=(
            "Types of events, each with those below it, such as `job.status.failed` or `checkpoint`. "
            "Without it, or with an empty list, all."
        ),
    )
    format = serializers.ChoiceField(
        choices=Webhook.Format.values,
        default=Webhook.Format.CLOUDEVENTS,
        help_text=(
            '`cloudevents`; `slack`: a body `{"text": ...}` for incoming webhooks of Slack and of compatible servers; '
            "`openlineage`: run events of OpenLineage 2-0-2 for catalogues of data, of the events that have one. "
            "It cannot be changed later."
        ),
    )
    team = serializers.CharField(
        required=False, help_text="Name or id of the team. May be left out if you belong to one team only."
    )


class WebhookSerializer(serializers.Serializer[Webhook]):
    """An address that events of a team are sent to."""

    id = serializers.CharField()
    team = serializers.CharField(source="team.name", help_text="Name of the team.")
    name = serializers.CharField(allow_blank=True, help_text="Name by which to recognise it. May be empty.")
    url = serializers.CharField(help_text="Address that events are sent to.")
    types = serializers.ListField(
        child=serializers.CharField(),
        help_text="Types of events, each with those below it. An empty list stands for all.",
    )
    format = serializers.ChoiceField(
        choices=Webhook.Format.values, help_text="Form of the bodies: `cloudevents`, `slack` or `openlineage`."
    )
    enabled = serializers.BooleanField(help_text="Whether events are sent.")
    disabled_reason = serializers.CharField(
        allow_blank=True, help_text="Why it was disabled and by whom. Empty while it is enabled."
    )
    disabled_at = serializers.DateTimeField(
        allow_null=True, help_text="Time at which it was disabled, ISO 8601 in UTC. Null while it is enabled."
    )
    consecutive_failures = serializers.IntegerField(help_text="Number of failed tries since the last success.")
    failing_since = serializers.DateTimeField(
        allow_null=True, help_text="Time of the first of those, ISO 8601 in UTC. Null without one."
    )
    last_success_at = serializers.DateTimeField(
        allow_null=True, help_text="Time of the last successful try, ISO 8601 in UTC. Null without one."
    )
    last_failure_at = serializers.DateTimeField(
        allow_null=True, help_text="Time of the last failed try, ISO 8601 in UTC. Null without one."
    )
    secrets = WebhookSecretSerializer(
        many=True,
        source="secrets.all",
        help_text=(
            "Signing secrets: the current one and, after a rotation, the one before it. Their values are not shown."
        ),
    )
    created_by = serializers.CharField(
        source="created_by.username",
        allow_null=True,
        default=None,
        help_text="Username of the person who created it. Null if the account is gone.",
    )
    created_at = serializers.DateTimeField()


class MadeWebhookSerializer(WebhookSerializer):
    """A webhook with its new signing secret."""

    secret = serializers.CharField(help_text="The signing secret. It is shown only here.")


class TrySerializer(serializers.Serializer[Any]):
    """One try of a delivery."""

    at = serializers.DateTimeField(help_text="Time of the try, ISO 8601 in UTC.")
    status = serializers.IntegerField(allow_null=True, help_text="HTTP status of the response. Null if there was none.")
    seconds = serializers.FloatField(help_text="Duration in seconds.")
    error = serializers.CharField(allow_blank=True, help_text="Why it failed. Empty if it did not.")
    answer = serializers.CharField(allow_blank=True, help_text="First characters of the response's body.")


class DeliverySerializer(serializers.Serializer[Delivery]):
    """An event for a webhook, and its tries."""

    id = serializers.CharField()
    webhook_id = serializers.CharField(help_text="Id of the webhook.")
    event_type = serializers.CharField(help_text="Type of the event, such as `job.status.failed`.")
    state = serializers.ChoiceField(
        choices=Delivery.State.values,
        help_text="`pending` while it is tried, `delivered`, or `failed` when it was given up.",
    )
    tries = serializers.IntegerField(help_text="Number of tries since it was created or last sent again.")
    next_try_at = serializers.DateTimeField(
        allow_null=True, help_text="Time of the next try, ISO 8601 in UTC. Null when it is completed."
    )
    gives_up_at = serializers.DateTimeField(help_text="Time after which it is not tried again, ISO 8601 in UTC.")
    created_at = serializers.DateTimeField()
    finished_at = serializers.DateTimeField(
        allow_null=True,
        help_text="Time at which it was delivered or given up, ISO 8601 in UTC. Null while it is pending.",
    )
    log = TrySerializer(many=True, help_text="Newest tries, oldest first.")


class FullDeliverySerializer(DeliverySerializer):
    """A delivery with the body that is sent."""

    body = serializers.CharField(help_text="Body that is sent, as text.")


class WebhookSecretRotationSerializer(RequestSerializer):
    """How long the old secret signs as well."""

    overlap_seconds = serializers.IntegerField(
        default=DEFAULT_OVERLAP_SECONDS,
        min_value=0,
        max_value=MAX_OVERLAP_SECONDS,
        help_text="Seconds for which the old secret signs as well.",
    )
