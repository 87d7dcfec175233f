"""/webhooks and /deliveries: addresses that are told of a team's events, and how that went."""

import re
from datetime import timedelta
from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from athanor.accounts.roles import Permission
from athanor.accounts.selectors import Principal
from athanor.api.access import check, principal, team_named
from athanor.api.bodies import RequestSerializer, read
from athanor.api.idempotency import IDEMPOTENT, once
from athanor.api.pagination import PAGED, listed, page, serialize_many
from athanor.api.v1.shapes import PROBLEMS, page_of
from athanor.webhooks import selectors, services
from athanor.webhooks.models import Delivery, Webhook, WebhookSecret

LONGEST_OVERLAP_SECONDS = 7 * 86_400
DEFAULT_OVERLAP_SECONDS = 86_400
TYPE = re.compile(r"^[a-z0-9_]+(\.[a-z0-9_]+)*$")
TYPES_HELP = "themselves and what lies below them: job, job.status, job.status.failed, checkpoint; none are all"


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
        max_value=LONGEST_OVERLAP_SECONDS,
        help_text="Seconds for which the old secret signs as well.",
    )


class WebhooksView(APIView):
    @extend_schema(operation_id="webhooks_list", responses={200: page_of("WebhookPage", WebhookSerializer), **PROBLEMS})
    def get(self, request: Request) -> Response:
        """List webhooks.

        Returns the webhooks of the teams in which you may manage them."""
        rows = selectors.webhooks_of(principal(request))
        return Response(listed(serialize_many(WebhookSerializer, rows)))

    @extend_schema(
        operation_id="webhooks_create",
        parameters=IDEMPOTENT,
        request=NewWebhookSerializer,
        responses={201: MadeWebhookSerializer, **PROBLEMS},
    )
    def post(self, request: Request) -> Response:
        """Create a webhook.

        Sends events from now on to an address, as CloudEvents 1.0 envelopes. Each is signed in `Athanor-Signature:
        t=TIME,v1=HEX` by HMAC-SHA256 over `TIME.BODY`. Delivery is at least once: a response other than 2xx is
        retried for 72 hours. The signing secret is in the response and is not shown again. For administrators of the
        team."""
        who = principal(request)
        asked = read(NewWebhookSerializer, request)
        team = team_named(who, Permission.MANAGE, asked.get("team"))

        def make() -> Response:
            webhook, secret = services.create(
                team, url=asked["url"], name=asked["name"], types=asked.get("types", []), actor=who.user
            )
            return Response(_with_secret(webhook, secret), status=201)

        return once(request, make)


class WebhookView(APIView):
    @extend_schema(operation_id="webhooks_show", responses={200: WebhookSerializer, **PROBLEMS})
    def get(self, request: Request, webhook_id: str) -> Response:
        """Show a webhook.

        Returns the webhook and how its deliveries have been going. For administrators of the team."""
        return Response(WebhookSerializer(_managed(principal(request), webhook_id)).data)

    @extend_schema(
        operation_id="webhooks_change",
        request=WebhookChangesSerializer,
        responses={200: WebhookSerializer, **PROBLEMS},
    )
    def patch(self, request: Request, webhook_id: str) -> Response:
        """Change a webhook.

        Changes the fields that are sent; the others stay. A webhook that is enabled again receives events from then
        on. For administrators of the team."""
        who = principal(request)
        webhook = _managed(who, webhook_id)
        services.change(webhook, read(WebhookChangesSerializer, request), who.user)
        return Response(WebhookSerializer(_managed(who, webhook_id)).data)

    @extend_schema(operation_id="webhooks_delete", responses={204: None, **PROBLEMS})
    def delete(self, request: Request, webhook_id: str) -> Response:
        """Delete a webhook.

        Deletes the webhook with its deliveries. A delivery that is being sent may still arrive. For administrators
        of the team."""
        who = principal(request)
        services.delete(_managed(who, webhook_id), who.user)
        return Response(status=204)


class WebhookTestView(APIView):
    @extend_schema(
        operation_id="webhooks_test",
        parameters=IDEMPOTENT,
        request=None,
        responses={202: DeliverySerializer, **PROBLEMS},
    )
    def post(self, request: Request, webhook_id: str) -> Response:
        """Send a test event.

        Sends an event of type `webhook.test` once; the delivery shows the result. A team may send six a minute. For
        administrators of the team."""
        who = principal(request)
        webhook = _managed(who, webhook_id)
        return once(request, lambda: Response(DeliverySerializer(services.test(webhook, who.user)).data, status=202))


class WebhookSecretView(APIView):
    @extend_schema(
        operation_id="webhooks_rotate_secret",
        parameters=IDEMPOTENT,
        request=WebhookSecretRotationSerializer,
        responses={201: MadeWebhookSerializer, **PROBLEMS},
    )
    def post(self, request: Request, webhook_id: str) -> Response:
        """Rotate the signing secret of a webhook.

        Creates a new secret, which is in the response and is not shown again. For `overlap_seconds` deliveries are
        signed with the old one as well. For administrators of the team."""
        who = principal(request)
        webhook = _managed(who, webhook_id)
        overlap = read(WebhookSecretRotationSerializer, request)["overlap_seconds"]

        def make() -> Response:
            secret = services.rotate_secret(webhook, timedelta(seconds=overlap), who.user)
            return Response(_with_secret(_managed(who, webhook_id), secret), status=201)

        return once(request, make)


class DeliveriesView(APIView):
    @extend_schema(
        parameters=PAGED,
        operation_id="deliveries_list",
        responses={200: page_of("DeliveryPage", DeliverySerializer), **PROBLEMS},
    )
    def get(self, request: Request, webhook_id: str) -> Response:
        """List the deliveries of a webhook.

        Returns deliveries, newest first. Completed ones are deleted after 30 days. For administrators of the team."""
        webhook = _managed(principal(request), webhook_id)
        rows, next_cursor = page(request, Delivery.objects.filter(webhook=webhook).defer("body"))
        return Response(listed(serialize_many(DeliverySerializer, rows), next_cursor))


class DeliveryView(APIView):
    @extend_schema(operation_id="deliveries_show", responses={200: FullDeliverySerializer, **PROBLEMS})
    def get(self, request: Request, delivery_id: str) -> Response:
        """Show a delivery.

        Returns the delivery with the body that is sent. For administrators of the team."""
        return Response(FullDeliverySerializer(_delivery(principal(request), delivery_id)).data)


class RedeliverView(APIView):
    @extend_schema(
        operation_id="deliveries_redeliver",
        parameters=IDEMPOTENT,
        request=None,
        responses={202: DeliverySerializer, **PROBLEMS},
    )
    def post(self, request: Request, delivery_id: str) -> Response:
        """Send a delivery again.

        Queues the same body once more, whether it was delivered or not. Receivers recognise it by the event's id.
        For administrators of the team."""
        who = principal(request)
        row = _delivery(who, delivery_id)
        return once(request, lambda: Response(DeliverySerializer(services.redeliver(row, who.user)).data, status=202))


def _managed(who: Principal, webhook_id: str) -> Webhook:
    webhook = selectors.webhook_of(who, webhook_id)
    check(who, Permission.MANAGE, webhook.team_id)
    return webhook


def _delivery(who: Principal, delivery_id: str) -> Delivery:
    delivery = selectors.delivery_of(who, delivery_id)
    check(who, Permission.MANAGE, delivery.team_id)
    return delivery


def _with_secret(webhook: Webhook, secret: str) -> dict[str, Any]:
    return {**WebhookSerializer(webhook).data, "secret": secret}
