"""Queries of webhooks and their deliveries, limited to what the principal may see."""

from django.db.models import QuerySet

from athanor.accounts.roles import Permission
from athanor.accounts.selectors import Principal
from athanor.core.errors import NotFound
from athanor.webhooks.models import Delivery, Webhook


def webhooks_of(principal: Principal) -> QuerySet[Webhook]:
    """Return the webhooks of teams that the principal belongs to and manages: an address may itself be a secret."""
    teams = principal.team_ids & principal.teams_with(Permission.MANAGE)
    return _with_all(Webhook.objects.filter(team_id__in=teams)).order_by("team__name", "pk")


def webhook_of(principal: Principal, webhook_id: str) -> Webhook:
    """Return a webhook of one of the principal's teams, or raise NotFound.

    It does not check whether the principal may manage the webhook.
    """
    row = _with_all(Webhook.objects.filter(team_id__in=principal.team_ids)).filter(pk=webhook_id).first()
    if row is None:
        raise NotFound("webhook", webhook_id)
    return row


def delivery_of(principal: Principal, delivery_id: str) -> Delivery:
    """Return a delivery of one of the principal's teams, or raise NotFound."""
    rows = Delivery.objects.filter(team_id__in=principal.team_ids).select_related("webhook")
    row = rows.filter(pk=delivery_id).first()
    if row is None:
        raise NotFound("delivery", delivery_id)
    return row


def _with_all(rows: QuerySet[Webhook]) -> QuerySet[Webhook]:
    return rows.select_related("team", "created_by").prefetch_related("secrets")


def deliveries_of(webhook: Webhook) -> QuerySet[Delivery]:
    """Return the deliveries of a webhook without their bodies."""
    return Delivery.objects.filter(webhook=webhook, team_id=webhook.team_id).defer("body")
