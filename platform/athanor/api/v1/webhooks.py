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
    id = serializers.CharField()
    created_at = serializers.DateTimeField()
    retires_at = serializers.DateTimeField(allow_null=True, help_text="until when it signs beside its successor")


class WebhookChangesSerializer(RequestSerializer):
    url = serializers.CharField(max_length=500, required=False)
    name = serializers.CharField(max_length=100, required=False, allow_blank=True)
    types = serializers.ListField(
        child=serializers.RegexField(TYPE, max_length=60), max_length=20, required=False, help_text=TYPES_HELP
    )
    enabled = serializers.BooleanField(required=False)


class NewWebhookSerializer(RequestSerializer):
    url = serializers.CharField(max_length=500, help_text="https, and public, unless an administrator allows another")
    name = serializers.CharField(max_length=100, required=False, allow_blank=True, default="")
    types = serializers.ListField(
        child=serializers.RegexField(TYPE, max_length=60), max_length=20, required=False, help_text=TYPES_HELP
    )
    team = serializers.CharField(required=False)


class WebhookSerializer(serializers.Serializer[Webhook]):
    id = serializers.CharField()
    team = serializers.CharField(source="team.name")
    name = serializers.CharField(allow_blank=True)
    url = serializers.CharField()
    types = serializers.ListField(child=serializers.CharField())
    enabled = serializers.BooleanField()
    disabled_reason = serializers.CharField(allow_blank=True, help_text="why it was switched off, and by whom")
    disabled_at = serializers.DateTimeField(allow_null=True)
    consecutive_failures = serializers.IntegerField()
    failing_since = serializers.DateTimeField(allow_null=True)
    last_success_at = serializers.DateTimeField(allow_null=True)
    last_failure_at = serializers.DateTimeField(allow_null=True)
    secrets = WebhookSecretSerializer(many=True, source="secrets.all")
    created_by = serializers.CharField(source="created_by.username", allow_null=True, default=None)
    created_at = serializers.DateTimeField()


class MadeWebhookSerializer(WebhookSerializer):
    secret = serializers.CharField(help_text="shown this once")


class TrySerializer(serializers.Serializer[Any]):
    at = serializers.DateTimeField()
    status = serializers.IntegerField(allow_null=True, help_text="of the answer; null when there was none")
    seconds = serializers.FloatField()
    error = serializers.CharField(allow_blank=True)
    answer = serializers.CharField(allow_blank=True, help_text="its first characters")


class DeliverySerializer(serializers.Serializer[Delivery]):
    id = serializers.CharField()
    webhook_id = serializers.CharField()
    event_type = serializers.CharField()
    state = serializers.ChoiceField(choices=Delivery.State.values)
    tries = serializers.IntegerField(help_text="since it was made, or last asked for again")
    next_try_at = serializers.DateTimeField(allow_null=True)
    gives_up_at = serializers.DateTimeField()
    created_at = serializers.DateTimeField()
    finished_at = serializers.DateTimeField(allow_null=True)
    log = TrySerializer(many=True, help_text="the newest tries, oldest first")


class FullDeliverySerializer(DeliverySerializer):
    body = serializers.CharField(help_text="as it is sent")


class WebhookSecretRotationSerializer(RequestSerializer):
    overlap_seconds = serializers.IntegerField(
        default=DEFAULT_OVERLAP_SECONDS,
        min_value=0,
        max_value=LONGEST_OVERLAP_SECONDS,
        help_text="for which the old one signs too",
    )


class WebhooksView(APIView):
    @extend_schema(operation_id="webhooks_list", responses={200: page_of("WebhookPage", WebhookSerializer), **PROBLEMS})
    def get(self, request: Request) -> Response:
        rows = selectors.webhooks_of(principal(request))
        return Response(listed(serialize_many(WebhookSerializer, rows)))

    @extend_schema(
        operation_id="webhooks_create",
        parameters=IDEMPOTENT,
        request=NewWebhookSerializer,
        responses={201: MadeWebhookSerializer, **PROBLEMS},
        description="Told of what happens from now on: a CloudEvents 1.0 envelope, signed in `Athanor-Signature: "
        't=TIME,v1=HEX` by HMAC-SHA256 over "TIME.BODY". An answer other than 2xx is tried again for 72 hours.',
    )
    def post(self, request: Request) -> Response:
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
        return Response(WebhookSerializer(_managed(principal(request), webhook_id)).data)

    @extend_schema(
        operation_id="webhooks_change",
        request=WebhookChangesSerializer,
        responses={200: WebhookSerializer, **PROBLEMS},
        description="Switched on again, it is told of what happens from then on.",
    )
    def patch(self, request: Request, webhook_id: str) -> Response:
        who = principal(request)
        webhook = _managed(who, webhook_id)
        services.change(webhook, read(WebhookChangesSerializer, request), who.user)
        return Response(WebhookSerializer(_managed(who, webhook_id)).data)

    @extend_schema(operation_id="webhooks_delete", responses={204: None, **PROBLEMS})
    def delete(self, request: Request, webhook_id: str) -> Response:
        who = principal(request)
        services.delete(_managed(who, webhook_id), who.user)
        return Response(status=204)


class WebhookTestView(APIView):
    @extend_schema(
        operation_id="webhooks_test",
        parameters=IDEMPOTENT,
        request=None,
        responses={202: DeliverySerializer, **PROBLEMS},
        description="Sends an event of type `webhook.test`, once; how it went is read from the delivery. A team has "
        "six a minute.",
    )
    def post(self, request: Request, webhook_id: str) -> Response:
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
        description="Newest first; those that are over are kept for 30 days.",
    )
    def get(self, request: Request, webhook_id: str) -> Response:
        webhook = _managed(principal(request), webhook_id)
        rows, next_cursor = page(request, Delivery.objects.filter(webhook=webhook).defer("body"))
        return Response(listed(serialize_many(DeliverySerializer, rows), next_cursor))


class DeliveryView(APIView):
    @extend_schema(operation_id="deliveries_show", responses={200: FullDeliverySerializer, **PROBLEMS})
    def get(self, request: Request, delivery_id: str) -> Response:
        return Response(FullDeliverySerializer(_delivery(principal(request), delivery_id)).data)


class RedeliverView(APIView):
    @extend_schema(
        operation_id="deliveries_redeliver",
        parameters=IDEMPOTENT,
        request=None,
        responses={202: DeliverySerializer, **PROBLEMS},
    )
    def post(self, request: Request, delivery_id: str) -> Response:
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
