"""/webhooks and /deliveries: addresses that a team's events are sent to, and the results."""

from datetime import timedelta
from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from athanor.accounts.roles import Permission
from athanor.accounts.selectors import Principal
from athanor.api.access import check, get_principal, team_named
from athanor.api.bodies import parse_body
from athanor.api.idempotency import IDEMPOTENT, run_idempotently
from athanor.api.pagination import PAGE_PARAMETERS, paginate, paginated_response, serialize_many
from athanor.api.v1.serializers.common import PROBLEMS, page_serializer
from athanor.api.v1.serializers.webhooks import (
    DeliverySerializer,
    FullDeliverySerializer,
    MadeWebhookSerializer,
    NewWebhookSerializer,
    WebhookChangesSerializer,
    WebhookSecretRotationSerializer,
    WebhookSerializer,
)
from athanor.webhooks import selectors, services
from athanor.webhooks.models import Delivery, Webhook

TYPES_HELP = "themselves and what lies below them: job, job.status, job.status.failed, checkpoint; none are all"


class WebhooksView(APIView):
    """Requests to `/webhooks`."""

    @extend_schema(
        operation_id="webhooks_list", responses={200: page_serializer("WebhookPage", WebhookSerializer), **PROBLEMS}
    )
    def get(self, request: Request) -> Response:
        """List webhooks.

        Returns the webhooks of the teams in which you may manage them."""
        rows = selectors.webhooks_of(get_principal(request))
        return paginated_response(serialize_many(WebhookSerializer, rows))

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
        principal = get_principal(request)
        asked = parse_body(request, NewWebhookSerializer)
        team = team_named(principal, Permission.MANAGE, asked.get("team"))

        def make() -> Response:
            webhook, secret = services.create(
                team, url=asked["url"], name=asked["name"], types=asked.get("types", []), actor=principal.user,
                format_=asked["format"],
            )  # fmt: skip
            return Response(_with_secret(webhook, secret), status=201)

        return run_idempotently(request, make)


class WebhookView(APIView):
    """Requests to `/webhooks/{webhook_id}`."""

    @extend_schema(operation_id="webhooks_show", responses={200: WebhookSerializer, **PROBLEMS})
    def get(self, request: Request, webhook_id: str) -> Response:
        """Show a webhook.

        Returns the webhook and how its deliveries have been going. For administrators of the team."""
        return Response(WebhookSerializer(_managed(get_principal(request), webhook_id)).data)

    @extend_schema(
        operation_id="webhooks_change",
        request=WebhookChangesSerializer,
        responses={200: WebhookSerializer, **PROBLEMS},
    )
    def patch(self, request: Request, webhook_id: str) -> Response:
        """Change a webhook.

        Changes the fields that are sent; the others stay. A webhook that is enabled again receives events from then
        on. For administrators of the team."""
        principal = get_principal(request)
        webhook = _managed(principal, webhook_id)
        services.change(webhook, parse_body(request, WebhookChangesSerializer), principal.user)
        return Response(WebhookSerializer(_managed(principal, webhook_id)).data)

    @extend_schema(operation_id="webhooks_delete", responses={204: None, **PROBLEMS})
    def delete(self, request: Request, webhook_id: str) -> Response:
        """Delete a webhook.

        Deletes the webhook with its deliveries. A delivery that is being sent may still arrive. For administrators
        of the team."""
        principal = get_principal(request)
        services.delete(_managed(principal, webhook_id), principal.user)
        return Response(status=204)


class WebhookTestView(APIView):
    """Requests to `/webhooks/{webhook_id}:test`."""

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
        principal = get_principal(request)
        webhook = _managed(principal, webhook_id)
        return run_idempotently(
            request, lambda: Response(DeliverySerializer(services.test(webhook, principal.user)).data, status=202)
        )


class WebhookSecretView(APIView):
    """Requests to `/webhooks/{webhook_id}:rotate_secret`."""

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
        principal = get_principal(request)
        webhook = _managed(principal, webhook_id)
        overlap = parse_body(request, WebhookSecretRotationSerializer)["overlap_seconds"]

        def make() -> Response:
            secret = services.rotate_secret(webhook, timedelta(seconds=overlap), principal.user)
            return Response(_with_secret(_managed(principal, webhook_id), secret), status=201)

        return run_idempotently(request, make)


class DeliveriesView(APIView):
    """Requests to `/webhooks/{webhook_id}/deliveries`."""

    @extend_schema(
        parameters=PAGE_PARAMETERS,
        operation_id="deliveries_list",
        responses={200: page_serializer("DeliveryPage", DeliverySerializer), **PROBLEMS},
    )
    def get(self, request: Request, webhook_id: str) -> Response:
        """List the deliveries of a webhook.

        Returns deliveries, newest first. Completed ones are deleted after 30 days. For administrators of the team."""
        webhook = _managed(get_principal(request), webhook_id)
        rows, next_cursor = paginate(request, selectors.deliveries_of(webhook))
        return paginated_response(serialize_many(DeliverySerializer, rows), next_cursor)


class DeliveryView(APIView):
    """Requests to `/deliveries/{delivery_id}`."""

    @extend_schema(operation_id="deliveries_show", responses={200: FullDeliverySerializer, **PROBLEMS})
    def get(self, request: Request, delivery_id: str) -> Response:
        """Show a delivery.

        Returns the delivery with the body that is sent. For administrators of the team."""
        return Response(FullDeliverySerializer(_delivery(get_principal(request), delivery_id)).data)


class RedeliverView(APIView):
    """Requests to `/deliveries/{delivery_id}:redeliver`."""

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
        principal = get_principal(request)
        row = _delivery(principal, delivery_id)
        return run_idempotently(
            request, lambda: Response(DeliverySerializer(services.redeliver(row, principal.user)).data, status=202)
        )


def _managed(principal: Principal, webhook_id: str) -> Webhook:
    webhook = selectors.webhook_of(principal, webhook_id)
    check(principal, Permission.MANAGE, webhook.team_id)
    return webhook


def _delivery(principal: Principal, delivery_id: str) -> Delivery:
    delivery = selectors.delivery_of(principal, delivery_id)
    check(principal, Permission.MANAGE, delivery.team_id)
    return delivery


def _with_secret(webhook: Webhook, secret: str) -> dict[str, Any]:
    return {**WebhookSerializer(webhook).data, "secret": secret}
