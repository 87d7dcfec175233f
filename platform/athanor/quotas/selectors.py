"""Reads of the tree. The tree is no team's: whom is shown what of it, api/v1/quotas.py says."""

from django.db.models import QuerySet

from athanor.quotas.models import QuotaNode


def tree() -> list[QuotaNode]:
    """Every node with its grants, parents before children."""
    rows = QuotaNode.objects.select_related("team").prefetch_related("grants")
    below: dict[str | None, list[QuotaNode]] = {}
    for row in rows.order_by("name", "id"):
        below.setdefault(row.parent_id, []).append(row)
    found = below.get(None, [])
    for row in found:  # grows while it is walked
        found.extend(below.get(row.id, ()))
    return found


def leaves() -> QuerySet[QuotaNode]:
    return QuotaNode.objects.filter(team__isnull=False)
