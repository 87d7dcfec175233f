"""The part of POST /jobs:plan that says when a job would start, what it would reserve, and what would be sooner."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

from django.utils import timezone
from drf_spectacular.utils import inline_serializer
from rest_framework import serializers

from athanor.api.v1.shapes import BlockerSerializer, ReasonSerializer
from athanor.budgets import reservations
from athanor.budgets.tariff import MICRO
from athanor.clusters.models import Pool
from athanor.core.errors import Invalid
from athanor.jobs import services
from athanor.jobs.models import Job
from athanor.jobs.reasons import explain
from athanor.jobs.services import Request
from athanor.quotas import limits, selectors
from athanor.scheduling.what_if import Outlook, Outlooks
from athanor.specs.v1 import JobSpec

MOST_OTHER_POOLS = 3

Start = inline_serializer(
    "StartOutlook",
    {
        "starts_now": serializers.BooleanField(help_text="Whether the next admission cycle would start the job."),
        "reason": ReasonSerializer(allow_null=True, help_text="Why it would wait. Null if it would start now."),
        "unblocks": serializers.CharField(
            help_text="What would let it start, as a sentence. Empty if it would start now."
        ),
        "blocker": BlockerSerializer(allow_null=True, help_text="What it would wait for. Null if it would start now."),
        "position": serializers.IntegerField(help_text="Position among the jobs that wait for the pool, from 1."),
        "starts_in_seconds": serializers.IntegerField(
            allow_null=True,
            help_text=(
                "Seconds until its reservation at the latest. 0 if it would start now, null without a reservation."
            ),
        ),
        "p50_seconds": serializers.IntegerField(
            allow_null=True,
            help_text=(
                "Estimated seconds until it starts: half of such jobs start sooner. Null if this cannot be estimated."
            ),
        ),
        "p90_seconds": serializers.IntegerField(
            allow_null=True,
            help_text=(
                "Estimated seconds until it starts: nine of ten such jobs start sooner. Null if this cannot "
                "be estimated."
            ),
        ),
    },
    help_text="When the job would start.",
)
Cost = inline_serializer(
    "CostAtTimeLimit",
    {
        "amount": serializers.FloatField(
            help_text="Cost if the job runs until its time limit, in `currency`, at the prices known now."
        ),
        "currency": serializers.CharField(help_text="Currency of the pool, ISO 4217."),
    },
    help_text="What the job would cost.",
)
BudgetEffect = inline_serializer(
    "BudgetEffect",
    {
        "name": serializers.CharField(help_text="Name of the budget."),
        "unit": serializers.CharField(help_text="`slot-hours`, or the ISO 4217 code of a currency."),
        "reserves": serializers.FloatField(help_text="What the start would reserve of the current period, in `unit`."),
        "available": serializers.FloatField(
            help_text="What is neither spent nor reserved in the current period, in `unit`."
        ),
        "hard": serializers.BooleanField(help_text="Whether the job cannot start without enough of it."),
    },
)
Alternative = inline_serializer(
    "Alternative",
    {
        "label": serializers.CharField(help_text="The change, in words."),
        "changes": serializers.JSONField(help_text="The change as a JSON merge patch on the spec."),
        "start": Start,
        "cost": Cost,
    },
)
PLAN: dict[str, Any] = {
    "cost": Cost,
    "start": Start,
    "budgets": serializers.ListField(child=BudgetEffect, help_text="Budgets that the job would be charged to."),
    "alternatives": serializers.ListField(
        child=Alternative, help_text="Changes with which the job might start sooner. Empty if it would start now."
    ),
}


class Variation(NamedTuple):
    label: str
    changes: dict[str, Any]
    spec: JobSpec
    pool: Pool


def plan_of(asked: Request) -> dict[str, Any]:
    """What PLAN describes. Jobs that start at once have no alternatives: nothing would be sooner."""
    outlooks, job = Outlooks(), services.draft(asked)
    as_asked = outlooks.of(job)
    others = [] if as_asked.decision.admitted else [*_variations(asked), *_later(asked, as_asked)]
    return {
        "cost": _cost(job),
        "start": shown(as_asked),
        "budgets": _budgets(as_asked),
        "alternatives": [_alternative(each, asked, outlooks) for each in others],
    }


def _alternative(each: Variation, asked: Request, outlooks: Outlooks) -> dict[str, Any]:
    job = services.draft(replace(asked, spec=each.spec, pool=each.pool))
    return {
        "label": each.label,
        "changes": each.changes,
        "start": shown(outlooks.of(job)),
        "cost": _cost(job),
    }


def _cost(job: Job) -> dict[str, Any]:
    cost, currency = reservations.cost_at_time_limit(job, job.not_before or timezone.now())
    return {"amount": cost / MICRO, "currency": currency}


def _budgets(outlook: Outlook) -> list[dict[str, Any]]:
    costs = {budget: amount for found in outlook.quotes.costs.values() for budget, amount in found}
    return [
        {
            "name": budget.name,
            "unit": "slot-hours" if budget.unit == "slot-seconds" else budget.unit,
            "reserves": costs[budget.id] / (3600 if budget.unit == "slot-seconds" else MICRO),
            "available": budget.available / (3600 if budget.unit == "slot-seconds" else MICRO),
            "hard": budget.hard,
        }
        for budget in outlook.quotes.budgets
        if budget.id in costs
    ]


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
        yield from _allowed(asked, Variation("half the time limit", changes, spec, asked.pool))
    others = Pool.objects.filter(cluster__enabled=True).exclude(pk=asked.pool.pk).select_related("cluster")
    found = 0
    for pool in others.order_by("cluster__name", "name"):
        for each in _varied(asked, f"pool {pool}", pool, cluster=pool.cluster.name, accelerator=pool.accelerator):
            found += 1
            yield each
        if found == MOST_OTHER_POOLS:
            return


def _later(asked: Request, outlook: Outlook) -> Iterator[Variation]:
    """When the budget that stands in its way is filled again."""
    blocker = outlook.decision.blocker
    if blocker is None or blocker.kind != "budget":
        return
    begins = reservations.period_end(blocker.id, timezone.now())
    schedule = asked.spec.schedule.model_copy(update={"not_before": begins})
    changes = {"schedule": {"not_before": begins.isoformat()}}
    label = f"a start from {begins:%Y-%m-%d %H:%M} UTC, when budget {blocker.name} is filled again"
    yield Variation(label, changes, asked.spec.model_copy(update={"schedule": schedule}), asked.pool)


def _varied(asked: Request, label: str, pool: Pool, **resources: Any) -> Iterator[Variation]:
    spec = asked.spec.model_copy(update={"resources": asked.spec.resources.model_copy(update=resources)})
    yield from _allowed(asked, Variation(label, {"resources": resources}, spec, pool))


def _allowed(asked: Request, each: Variation) -> Iterator[Variation]:
    """If it would be taken."""
    try:
        services.check_fits(each.spec, each.pool)
        limits.check(selectors.path_of_team(asked.team), each.spec, each.pool)
    except Invalid:
        return
    yield each
