"""/costs: what was used and what it cost, added up."""

from datetime import datetime, timedelta
from typing import Any

from django.http import StreamingHttpResponse
from django.utils import timezone
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from athanor.api.access import principal
from athanor.api.parameters import comma_separated, time
from athanor.api.v1.budgets import CSV, csv_response
from athanor.api.v1.shapes import PROBLEMS
from athanor.budgets import costs, services
from athanor.budgets.usage import COUNTED
from athanor.budgets.windows import has_ceiling
from athanor.core import tenancy
from athanor.core.errors import FieldProblem, Invalid
from athanor.jobs import selectors

DAYS = 30
LONGEST = timedelta(days=800)
ASKED = [
    OpenApiParameter("after", OpenApiTypes.DATETIME, description="hours from here on; 30 days ago without it"),
    OpenApiParameter("before", OpenApiTypes.DATETIME, description="up to here; now without it"),
    comma_separated("by", list(costs.GROUPS), "separated by commas, each once; team without it"),
]


class CostRowSerializer(serializers.Serializer[Any]):
    """Only the names that `by` asks for are there."""

    team = serializers.CharField(required=False)
    project = serializers.CharField(required=False)
    accelerator = serializers.CharField(required=False)
    pool = serializers.CharField(required=False)
    cluster = serializers.CharField(required=False)
    day = serializers.DateField(required=False)
    currency = serializers.CharField()
    slot_seconds = serializers.IntegerField()
    cost = serializers.IntegerField(help_text="millionths of the currency, with what faults lost")
    charged = serializers.IntegerField(help_text="without it")
    fault_slot_seconds = serializers.IntegerField(help_text="lost to the infrastructure")
    fault_cost = serializers.IntegerField()
    saved_cost = serializers.IntegerField(help_text="by waiting for a price below a ceiling; below zero: lost by it")
    milligrams = serializers.IntegerField(help_text="of carbon dioxide; only of pools whose watts are known")
    saved_milligrams = serializers.IntegerField()


class JobCostSerializer(serializers.Serializer[Any]):
    currency = serializers.CharField()
    slot_seconds = serializers.IntegerField()
    cost = serializers.IntegerField(help_text="millionths of the currency, with what faults lost")
    charged = serializers.IntegerField(help_text="without it")
    fault_slot_seconds = serializers.IntegerField()
    fault_cost = serializers.IntegerField()
    milligrams = serializers.IntegerField()
    has_ceiling = serializers.BooleanField(help_text="of price or carbon: then there is something to compare with")
    saved_cost = serializers.IntegerField(help_text="of ended attempts; below zero: lost by waiting")
    saved_milligrams = serializers.IntegerField()


class CostsSerializer(serializers.Serializer[Any]):
    after = serializers.DateTimeField()
    before = serializers.DateTimeField()
    items = CostRowSerializer(many=True)


class CostsView(APIView):
    @extend_schema(
        operation_id="costs_report",
        parameters=ASKED,
        responses={200: CostsSerializer, **PROBLEMS},
        description="Of your teams; of all for platform administrators and auditors.",
    )
    def get(self, request: Request) -> Response:
        after, before, by = _asked(request)
        return Response({"after": after, "before": before, "items": _rows(request, after, before, by)})


class JobCostView(APIView):
    @extend_schema(
        operation_id="jobs_cost",
        responses={200: JobCostSerializer, **PROBLEMS},
        description="As the meter has counted it: at most five minutes old while it runs.",
    )
    def get(self, request: Request, job_id: str) -> Response:
        job = selectors.job_of(principal(request), job_id)
        found = costs.of_job(job)
        return Response({**found, "currency": job.pool.currency, "has_ceiling": has_ceiling(job)})


class CostsExportView(APIView):
    @extend_schema(operation_id="costs_export", parameters=ASKED, responses={**CSV, **PROBLEMS})
    def get(self, request: Request) -> StreamingHttpResponse:
        after, before, by = _asked(request)
        heading = [*by, "currency", *COUNTED, "charged"]
        rows = ([row[name] for name in heading] for row in _rows(request, after, before, by))
        return csv_response(f"costs-{after:%Y-%m-%d}-{before:%Y-%m-%d}.csv", heading, rows)


def _asked(request: Request) -> tuple[datetime, datetime, list[str]]:
    before = time(request, "before") or timezone.now()
    after = time(request, "after") or before - timedelta(days=DAYS)
    if not timedelta(0) < before - after <= LONGEST:
        detail = f"after={after.isoformat()} is not before `before`, by at most {LONGEST.days} days"
        raise _invalid("after", detail)
    by = [name for name in (request.query_params.get("by") or "team").split(",") if name]
    wrong = [name for name in by if name not in costs.GROUPS]
    if wrong or len(set(by)) != len(by):
        raise _invalid("by", f"by={','.join(by)!r}: name each once, of {', '.join(costs.GROUPS)}")
    return after, before, by


def _rows(request: Request, after: datetime, before: datetime, by: list[str]) -> list[dict[str, Any]]:
    who = principal(request)
    if services.sees_all(who):
        with tenancy.unrestricted():
            return costs.report(after, before, by)
    return costs.report(after, before, by, sorted(who.team_ids))


def _invalid(name: str, detail: str) -> Invalid:
    problem = FieldProblem(f"/{name}", "range", detail)
    return Invalid("invalid_parameter", detail, remedy=f"mend {name}", problems=(problem,))
