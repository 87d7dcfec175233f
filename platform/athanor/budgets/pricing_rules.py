"""Changes of prices by administrators: base price, rules by weekday and hour, spot, watts, and series."""

from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

from django.db import transaction
from django.db.models import QuerySet

from athanor.accounts import audit
from athanor.accounts.models import User
from athanor.budgets.models import PoolPricing, PriceRule, Series
from athanor.budgets.tariff import MICRO
from athanor.clusters.models import Cluster, Pool
from athanor.core import task_triggers
from athanor.core.errors import FieldProblem, Invalid, NotFound
from athanor.quotas import services as quotas

Precondition = Callable[[Pool], None]
MAX_RULES = 50


def pool_of(pool_id: str) -> Pool:
    """Return the pool with its cluster, or raise NotFound."""
    row = Pool.objects.select_related("cluster").filter(pk=pool_id).first()
    if row is None:
        raise NotFound("pool", pool_id)
    return row


def set_pricing(pool_id: str, actor: User, precondition: Precondition, **fields: Any) -> Pool:
    """Change a pool's price, rules (all of them), spot and watts; omitted fields are unchanged.

    `precondition` checks the request's If-Match against the locked row. Raise Invalid for rules that are not valid.
    """
    _check_rules(fields.get("rules", []))
    with transaction.atomic():
        quotas.locked_root()
        pool = Pool.objects.select_for_update(no_key=True, of=("self",)).select_related("cluster").get(pk=pool_id)
        precondition(pool)
        before = facts(pool)
        if "price_per_slot_hour" in fields:
            pool.price_per_slot_hour = fields["price_per_slot_hour"]
            pool.save(update_fields=["price_per_slot_hour"])
        changes: dict[str, Any] = {name: fields[name] for name in ("spot", "watts_per_slot") if name in fields}
        PoolPricing.objects.update_or_create(pool=pool, defaults=changes)
        if "rules" in fields:
            PriceRule.objects.filter(pool=pool).delete()
            PriceRule.objects.bulk_create(
                PriceRule(
                    pool=pool,
                    position=position,
                    weekdays=sorted(set(rule["weekdays"])),
                    from_hour=rule["from_hour"],
                    to_hour=rule["to_hour"],
                    zone=rule["zone"],
                    price=int(Decimal(rule["price_per_slot_hour"]) * MICRO),
                )
                for position, rule in enumerate(fields["rules"])
            )
        after = facts(pool)
        if after != before:
            audit.record("pool.prices", actor=actor, target=("pool", pool.id), before=before, after=after)
            task_triggers.trigger_after_commit(task_triggers.METER)
            task_triggers.trigger_after_commit(task_triggers.ADMIT)
    return pool


def facts(pool: Pool) -> dict[str, Any]:
    """Return the pricing facts of a pool, for the audit trail and the ETag."""
    pricing = PoolPricing.objects.filter(pool=pool).first() or PoolPricing(pool=pool)
    rules = PriceRule.objects.filter(pool=pool).order_by("position")
    return {
        "price": int(pool.price_per_slot_hour * MICRO),
        "spot": pricing.spot,
        "watts_per_slot": pricing.watts_per_slot,
        "rules": list(rules.values("weekdays", "from_hour", "to_hour", "zone", "price")),
    }


def connect(actor: User, **fields: Any) -> Series:
    """Create or change the price series of a pool or the carbon series of a cluster.

    Its points and omitted fields are unchanged.
    """
    kind, pool_id, cluster_id = fields["kind"], fields.pop("pool_id", ""), fields.pop("cluster_id", "")
    if kind == Series.Kind.PRICE:
        of: dict[str, Any] = {"pool": pool_of(pool_id), "cluster": None}
    else:
        cluster = Cluster.objects.filter(pk=cluster_id).first()
        if cluster is None:
            raise NotFound("cluster", cluster_id)
        of = {"pool": None, "cluster": cluster}
    source = (
        {"fetch_at": None, "asked_at": None, "problem": ""}
        if fields.keys() & {"url", "mapping", "fetch_seconds"}
        else {}
    )
    with transaction.atomic():
        row, _ = Series.objects.update_or_create(
            **{name: value for name, value in of.items() if value}, defaults={**fields, **source}
        )
        audit.record("series.connect", actor=actor, target=("series", row.id), after=_audited_fields(row))
        task_triggers.trigger_after_commit(task_triggers.METER)
    return row


def series_of(series_id: str) -> Series:
    """Return a series, or raise NotFound."""
    row = Series.objects.select_related("pool__cluster", "cluster").filter(pk=series_id).first()
    if row is None:
        raise NotFound("series", series_id)
    return row


def remove(series_id: str, actor: User) -> None:
    """Delete a series with its points."""
    row = series_of(series_id)
    with transaction.atomic():
        before = _audited_fields(row)
        row.delete()
        audit.record("series.remove", actor=actor, target=("series", series_id), before=before)


def _audited_fields(row: Series) -> dict[str, Any]:
    """Return the audited fields; of the URL only its origin, because many providers put their key in the rest."""
    return {"kind": row.kind, "pool": row.pool_id, "cluster": row.cluster_id, **audit.address(row.url)}


def _check_rules(rules: list[dict[str, Any]]) -> None:
    problems = []
    if len(rules) > MAX_RULES:
        problems.append(FieldProblem("/rules", "too_many", f"{len(rules)} rules; {MAX_RULES} at most"))
    for index, rule in enumerate(rules):
        try:
            ZoneInfo(rule["zone"])
        except (KeyError, ValueError, OSError):
            detail = f"zone={rule['zone']!r} is no time zone, such as UTC or Europe/Berlin"
            problems.append(FieldProblem(f"/rules/{index}/zone", "zone", detail))
    if problems:
        raise Invalid("invalid_prices", problems[0].detail, remedy="fix the rules", problems=tuple(problems))


def all_series() -> QuerySet[Series]:
    """Return the series of prices and of carbon intensity, oldest first."""
    return Series.objects.order_by("id")


def series_ids() -> dict[str, str]:
    """Return the id of each series by the id of its pool, or of its cluster for carbon intensity."""
    return {str(row.pool_id or row.cluster_id): row.id for row in Series.objects.all()}


def pricing_of(pools: Sequence[Pool]) -> dict[str, PoolPricing]:
    """Return the pricing facts of each pool by its id. A pool without stored ones gets the defaults."""
    stored = PoolPricing.objects.in_bulk([pool.id for pool in pools])
    return {pool.id: stored.get(pool.id) or PoolPricing(pool=pool) for pool in pools}


def rules_of(pools: Sequence[Pool]) -> dict[str, list[PriceRule]]:
    """Return the price rules of each pool in order, by its id."""
    rules: dict[str, list[PriceRule]] = {pool.id: [] for pool in pools}
    for rule in PriceRule.objects.filter(pool__in=pools).order_by("pool", "position"):
        rules[rule.pool_id].append(rule)
    return rules
