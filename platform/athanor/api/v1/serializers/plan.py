"""Serializers of a plan: what a submission would do now."""

from collections.abc import Sequence
from typing import Any

from rest_framework import serializers

from athanor.api.v1.serializers.common import FieldProblemSerializer, ReasonSerializer, build_serializer
from athanor.api.v1.serializers.jobs import BlockerSerializer
from athanor.budgets.tariff import MICRO
from athanor.core.errors import FieldProblem
from athanor.jobs import services
from athanor.jobs.reasons import explain
from athanor.jobs.services import Submission
from athanor.scheduling.job_plan import BudgetEffect as Effect
from athanor.scheduling.job_plan import Cost as PlannedCost
from athanor.scheduling.job_plan import ExpectedRun, JobPlan
from athanor.scheduling.what_if import StartEstimate
from athanor.specs import fit

Start = build_serializer(
    "StartOutlook",
    "When a job would start, and why not now.",
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
Cost = build_serializer(
    "CostAtTimeLimit",
    "What a job would cost if it ran until its time limit.",
    {
        "amount": serializers.FloatField(
            help_text="Cost if the job runs until its time limit, in `currency`, at the prices known now."
        ),
        "currency": serializers.CharField(help_text="Currency of the pool, ISO 4217."),
    },
    help_text="What the job would cost.",
)
Expected = build_serializer(
    "ExpectedRun",
    "How long a job will probably run and what it will cost, from like jobs: those of the same user that succeeded in "
    "one attempt, on the same pool with the same number of slots, model, steps and tokens per step.",
    {
        "p50_seconds": serializers.IntegerField(help_text="Seconds that half of such jobs run at most."),
        "p90_seconds": serializers.IntegerField(help_text="Seconds that nine of ten such jobs run at most, estimated."),
        "p50_cost": serializers.FloatField(help_text="Cost of running `p50_seconds`, in the currency of the pool."),
        "p90_cost": serializers.FloatField(help_text="Cost of running `p90_seconds`, in the currency of the pool."),
        "like_jobs": serializers.IntegerField(help_text="Number of like jobs."),
    },
    allow_null=True,
    help_text="Expected duration and cost. Null if no like job has succeeded yet.",
)
BudgetEffect = build_serializer(
    "BudgetEffect",
    "What the start of a job would reserve of a budget.",
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
Alternative = build_serializer(
    "Alternative",
    "A change of a spec with which the job might start sooner.",
    {
        "label": serializers.CharField(help_text="The change, in words."),
        "changes": serializers.JSONField(help_text="The change as a JSON merge patch on the spec."),
        "start": Start,
        "cost": Cost,
    },
)
PLAN: dict[str, Any] = {
    "cost": Cost,
    "expected": Expected,
    "start": Start,
    "budgets": serializers.ListField(child=BudgetEffect, help_text="Budgets that the job would be charged to."),
    "alternatives": serializers.ListField(
        child=Alternative, help_text="Changes with which the job might start sooner. Empty if it would start now."
    ),
}
Plan = build_serializer(
    "Plan",
    "What a submission would do now.",
    {
        "resolved_spec": serializers.JSONField(help_text="The spec with every default filled in."),
        "warnings": FieldProblemSerializer(
            many=True,
            help_text=(
                "What a submission would accept but is probably not intended, or what would refuse it at "
                "present only, such as a full queue."
            ),
        ),
        "estimate": build_serializer(
            "Estimate",
            "Size, memory and cost of a job, computed from its spec.",
            {
                "num_parameters": serializers.IntegerField(
                    help_text="Parameters of the model. 0 for a job that only prepares data."
                ),
                "memory_bytes_per_process": serializers.IntegerField(
                    help_text=(
                        "Estimated memory of the fullest process, in bytes: of its accelerator, or of the node in a "
                        "pool without accelerators."
                    )
                ),
                "pool_memory_bytes_per_process": serializers.IntegerField(
                    allow_null=True,
                    help_text=(
                        "What the pool has of it per process, in bytes: memory of an accelerator, shared if there are "
                        "more processes than slots, or of a node divided by its processes. Null if the memory of the "
                        "pool's accelerators is not configured."
                    ),
                ),
                "host_bytes_per_process": serializers.IntegerField(
                    help_text="Estimated host memory of the fullest process, in bytes."
                ),
                "processes": serializers.IntegerField(help_text="Number of training processes (ranks)."),
                "slots": serializers.IntegerField(help_text="Slots of the whole pool."),
                "tokens_total": serializers.IntegerField(
                    help_text="Tokens that the run trains on. 0 for a job that only prepares data."
                ),
                "cost_currency": serializers.CharField(help_text="Currency of the pool, ISO 4217."),
                "cost_at_time_limit": serializers.FloatField(
                    help_text="Cost if the job runs until its time limit, in that currency."
                ),
            },
            help_text="Size of the job, computed from the spec.",
        ),
        **PLAN,
    },
)


def serialize_plan(submission: Submission, warnings: Sequence[FieldProblem], plan: JobPlan) -> dict[str, Any]:
    """Return the plan of a submission in the form of the component Plan."""
    need = fit.estimate(submission.spec, services.pool_shape(submission.pool))
    cost = _serialize_cost(plan.cost)
    return {
        "resolved_spec": submission.spec.model_dump(mode="json"),
        "warnings": [vars(warning) for warning in warnings],
        "estimate": {
            **vars(need),
            "slots": submission.pool.slots,
            "cost_currency": submission.pool.currency,
            "cost_at_time_limit": cost["amount"],
        },
        "cost": cost,
        "expected": _serialize_expected(plan.expected),
        "start": _serialize_start(plan.start),
        "budgets": [_serialize_budget(budget) for budget in plan.budgets],
        "alternatives": [
            {
                "label": each.label,
                "changes": each.changes,
                "start": _serialize_start(each.start),
                "cost": _serialize_cost(each.cost),
            }
            for each in plan.alternatives
        ],
    }


def _serialize_cost(cost: PlannedCost) -> dict[str, Any]:
    return {"amount": cost.amount / MICRO, "currency": cost.currency}


def _serialize_expected(expected: ExpectedRun | None) -> dict[str, Any] | None:
    if expected is None:
        return None
    return {
        "p50_seconds": expected.p50_seconds,
        "p90_seconds": expected.p90_seconds,
        "p50_cost": expected.p50_amount / MICRO,
        "p90_cost": expected.p90_amount / MICRO,
        "like_jobs": expected.like_jobs,
    }


def _serialize_budget(budget: Effect) -> dict[str, Any]:
    in_slots = budget.unit == "slot-seconds"
    scale = 3600 if in_slots else MICRO
    return {
        "name": budget.name,
        "unit": "slot-hours" if in_slots else budget.unit,
        "reserves": budget.reserves / scale,
        "available": budget.available / scale,
        "hard": budget.hard,
    }


def _serialize_start(start: StartEstimate) -> dict[str, Any]:
    decision, facts = start.decision, start.facts
    return {
        "starts_now": decision.admitted,
        "reason": explain(decision.reason.value, decision.detail) if decision.reason else None,
        "unblocks": facts["unblocks"],
        "blocker": facts["blocker"],
        "position": facts["position"],
        "starts_in_seconds": 0 if decision.admitted else facts["starts_in_seconds"],
        "p50_seconds": start.forecast.p50_seconds,
        "p90_seconds": start.forecast.p90_seconds,
    }
