"""The part of POST /jobs:plan that says when a job would start, what it would reserve, and what would be sooner."""

from collections.abc import Iterator
from typing import Any, NamedTuple

from drf_spectacular.utils import inline_serializer
from rest_framework import serializers

from athanor.clusters.models import Pool
from athanor.core.errors import Invalid
from athanor.jobs import services
from athanor.jobs.reasons import explain
from athanor.jobs.services import Request
from athanor.scheduling.what_if import Asked, Outlook, Outlooks
from athanor.specs.v1 import PRIORITY_VALUES, JobSpec

MOST_OTHER_POOLS = 3

Start = inline_serializer(
    "StartOutlook",
    {
        "starts_now": serializers.BooleanField(),
        "reason": serializers.JSONField(allow_null=True, help_text="code, message, remedy, blame; null when it starts"),
        "unblocks": serializers.CharField(),
        "blocker": serializers.JSONField(allow_null=True),
        "position": serializers.IntegerField(help_text="from 1, among those that wait for its pool"),
        "starts_in_seconds": serializers.IntegerField(allow_null=True, help_text="at the latest, if it can be said"),
        "p50_seconds": serializers.IntegerField(allow_null=True),
        "p90_seconds": serializers.IntegerField(allow_null=True),
    },
)
Alternative = inline_serializer(
    "Alternative",
    {
        "label": serializers.CharField(),
        "changes": serializers.JSONField(help_text="JSON merge patch on the spec"),
        "start": Start,
        "cost_at_time_limit": serializers.FloatField(),
        "cost_currency": serializers.CharField(),
    },
)


class Variation(NamedTuple):
    label: str
    changes: dict[str, Any]
    spec: JobSpec
    pool: Pool


def start_and_alternatives(asked: Request) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    outlooks = Outlooks()
    as_asked = outlooks.of(_asked(asked, asked.spec, asked.pool))
    others = [] if as_asked.decision.admitted else list(_variations(asked))
    return shown(as_asked), [
        {
            "label": each.label,
            "changes": each.changes,
            "start": shown(outlooks.of(_asked(asked, each.spec, each.pool))),
            "cost_at_time_limit": cost_at_time_limit(each.spec, each.pool),
            "cost_currency": each.pool.currency,
        }
        for each in others
    ]


def cost_at_time_limit(spec: JobSpec, pool: Pool) -> float:
    return float(pool.price_per_slot_hour) * spec.resources.slots * spec.time_limit_seconds / 3600


def shown(outlook: Outlook) -> dict[str, Any]:
    decision, told = outlook.decision, outlook.told
    return {
        "starts_now": decision.admitted,
        "reason": explain(decision.reason.value, decision.detail) if decision.reason else None,
        "unblocks": told["unblocks"],
        "blocker": told["blocker"],
        "position": told["position"],
        "starts_in_seconds": 0 if decision.admitted else told["starts_in_seconds"],
        "p50_seconds": outlook.forecast.p50_seconds,
        "p90_seconds": outlook.forecast.p90_seconds,
    }


def _asked(request: Request, spec: JobSpec, pool: Pool) -> Asked:
    resources = spec.resources
    return Asked(
        team=request.team,
        pool=pool,
        slots=resources.slots,
        nodes=resources.nodes + resources.spare_nodes,
        priority=PRIORITY_VALUES[spec.priority],
        time_limit_seconds=spec.time_limit_seconds,
    )


def _variations(asked: Request) -> Iterator[Variation]:
    """Half the nodes, half the processes, half the time, and other pools, as far as the job fits there."""
    resources = asked.spec.resources
    if resources.nodes > 1:
        yield from _varied(asked, f"{resources.nodes // 2} nodes instead of {resources.nodes}", asked.pool,
                           nodes=resources.nodes // 2)  # fmt: skip
    if resources.processes_per_node > 1:
        half = resources.processes_per_node // 2
        label = f"{half} processes per node instead of {resources.processes_per_node}"
        yield from _varied(asked, label, asked.pool, processes_per_node=half)
    shorter = asked.spec.time_limit_seconds // 2
    if shorter >= 60:
        changes = {"time_limit_seconds": shorter}
        spec = asked.spec.model_copy(update=changes)
        yield Variation("half the time limit, to be filled in between others", changes, spec, asked.pool)
    others = Pool.objects.filter(cluster__enabled=True).exclude(pk=asked.pool.pk).select_related("cluster")
    found = 0
    for pool in others.order_by("cluster__name", "name"):
        for each in _varied(asked, f"pool {pool}", pool, cluster=pool.cluster.name, accelerator=pool.accelerator):
            found += 1
            yield each
        if found == MOST_OTHER_POOLS:
            return


def _varied(asked: Request, label: str, pool: Pool, **resources: Any) -> Iterator[Variation]:
    spec = asked.spec.model_copy(update={"resources": asked.spec.resources.model_copy(update=resources)})
    try:
        services.check_fits(spec, pool)
    except Invalid:
        return
    yield Variation(label, {"resources": resources}, spec, pool)
