"""/costs: sums of usage, cost and carbon."""

from contextlib import nullcontext
from datetime import datetime, timedelta
from itertools import chain

from django.http import StreamingHttpResponse
from django.utils import timezone
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from athanor.api.access import get_principal
from athanor.api.parameters import comma_separated, separated, time
from athanor.api.v1.budgets import CSV, csv_response
from athanor.api.v1.serializers.common import PROBLEMS
from athanor.api.v1.serializers.costs import CostsSerializer, JobCostSerializer
from athanor.api.v1.serializers.goodput import (
    GoodputSerializer,
    GoodputStatementSerializer,
    serialize_ledger,
    serialize_statement,
)
from athanor.budgets import costs, goodput, goodput_statement, services
from athanor.budgets.schedule_windows import has_ceiling
from athanor.budgets.usage import COUNTED
from athanor.core import tenancy
from athanor.core.errors import FieldProblem, Invalid
from athanor.jobs import selectors

DAYS = 30
SHOWN, EXPORTED = 500, 20_000  # groups with a person or job; the others are summed
MAX_PERIOD = timedelta(days=800)
RANGE = [
    OpenApiParameter(
        "after", OpenApiTypes.DATETIME, description="Begin of the range. Without it, 30 days before its end."
    ),
    OpenApiParameter(
        "before",
        OpenApiTypes.DATETIME,
        description="End of the range, at most 800 days after its begin. Without it, now.",
    ),
]
ASKED = [
    *RANGE,
    comma_separated("by", list(costs.GROUPS), "What to sum by, separated by commas. Without it, `team`."),
]


class CostsView(APIView):
    """Requests to `/costs`."""

    @extend_schema(
        operation_id="costs_report",
        parameters=ASKED,
        responses={200: CostsSerializer, **PROBLEMS},
    )
    def get(self, request: Request) -> Response:
        """Sum up costs.

        Returns usage, cost and carbon of a time range, summed by the names in `by` and by currency. Covers your
        teams; for platform administrators and auditors, all teams, without the jobs and people of teams that are not
        theirs. With `person` or `job`, `items` has the 500 most expensive groups, and `rest` the sums of the others."""
        after, before, by = _asked(request)
        found = _report(request, after, before, by, SHOWN)
        return Response({"after": after, "before": before, "items": found.items, "rest": found.rest})


class JobCostView(APIView):
    """Requests to `/jobs/{job_id}/cost`."""

    @extend_schema(
        operation_id="jobs_cost",
        responses={200: JobCostSerializer, **PROBLEMS},
    )
    def get(self, request: Request, job_id: str) -> Response:
        """Show the cost of a job.

        Returns what the job's attempts used and cost, as last metered: at most five minutes ago while it runs."""
        job = selectors.job_of(get_principal(request), job_id)
        found = costs.of_job(job)
        return Response({**found, "currency": job.pool.currency, "has_ceiling": has_ceiling(job)})


class GoodputView(APIView):
    """Requests to `/jobs/{job_id}/goodput`."""

    @extend_schema(operation_id="jobs_goodput", responses={200: GoodputSerializer, **PROBLEMS})
    def get(self, request: Request, job_id: str) -> Response:
        """Show what a job's slots were held for.

        Splits the time of each attempt from its launch to its end, multiplied by its slots, by the job's events:
        training, start-up by phase, evaluations, waits for checkpoints, hangs, lost work, and the rest; each with its
        cost. The categories sum to the time of the attempts. `interruptions` has what caused the losses."""
        job = selectors.job_of(get_principal(request), job_id)
        return Response(GoodputSerializer(serialize_ledger(goodput.ledger_of(job), job)).data)


class TeamGoodputView(APIView):
    """Requests to `/goodput`."""

    @extend_schema(
        operation_id="goodput_statement",
        parameters=[
            *RANGE,
            OpenApiParameter("team", str, description="Only jobs of the team with this name or id."),
            OpenApiParameter("project", str, description="Only jobs of the project with this name."),
        ],
        responses={200: GoodputStatementSerializer, **PROBLEMS},
    )
    def get(self, request: Request) -> Response:
        """Show what the slots of teams were held for.

        Splits usage and cost of a time range, the totals of `GET /costs`, by what the slots were held for, and sums the
        interruptions by reason. Covers your teams; for platform administrators and auditors, all teams, without the
        jobs of teams that are not theirs. Divided last at most an hour ago while a job runs, and a minute after its
        end; what is not divided yet is in `uncounted`."""
        after, before = _range(request)
        principal = get_principal(request)
        sees_all = services.sees_all(principal)
        with tenancy.unrestricted() if sees_all else nullcontext():
            team_ids = goodput_statement.teams_named(
                request.query_params.get("team", ""), None if sees_all else principal.team_ids
            )
            found = goodput_statement.statements(
                after, before, team_ids=team_ids, own=principal.team_ids,
                project=request.query_params.get("project", ""),
            )  # fmt: skip
        items = [serialize_statement(each) for each in found]
        return Response(GoodputStatementSerializer({"after": after, "before": before, "items": items}).data)


class CostsExportView(APIView):
    """Requests to `/costs:export`."""

    @extend_schema(operation_id="costs_export", parameters=ASKED, responses={**CSV, **PROBLEMS})
    def get(self, request: Request) -> StreamingHttpResponse:
        """Export costs.

        Returns the rows of `GET /costs` as CSV, with up to 20,000 groups. The sums of the others follow, a line for
        each currency with `rest` in its first column."""
        after, before, by = _asked(request)
        found = _report(request, after, before, by, EXPORTED)
        names = [*by, *(["job_name"] if "job" in by else [])]
        heading = [*names, "currency", *COUNTED, "charged"]
        rest = ({**row, by[0]: "rest"} for row in found.rest)
        rows = ([row.get(name) for name in heading] for row in chain(found.items, rest))
        return csv_response(f"costs-{after:%Y-%m-%d}-{before:%Y-%m-%d}.csv", heading, rows)


def _range(request: Request) -> tuple[datetime, datetime]:
    before = time(request, "before") or timezone.now()
    after = time(request, "after") or before - timedelta(days=DAYS)
    if not timedelta(0) < before - after <= MAX_PERIOD:
        detail = f"after={after.isoformat()} is not before `before`, by at most {MAX_PERIOD.days} days"
        raise _invalid("after", detail, f"give a time before `before`, at most {MAX_PERIOD.days} days earlier")
    return after, before


def _asked(request: Request) -> tuple[datetime, datetime, list[str]]:
    after, before = _range(request)
    by = separated(request.query_params.get("by") or "team")
    wrong = [name for name in by if name not in costs.GROUPS]
    if wrong or len(set(by)) != len(by):
        known = ", ".join(costs.GROUPS)
        raise _invalid("by", f"by={','.join(by)!r}: name each once, of {known}", f"choose from {known}")
    return after, before, by


def _report(request: Request, after: datetime, before: datetime, by: list[str], limit: int) -> costs.Report:
    principal = get_principal(request)
    sees_all = services.sees_all(principal)
    with tenancy.unrestricted() if sees_all else nullcontext():
        return costs.report(after, before, by, own=principal.team_ids, all_teams=sees_all, limit=limit)


def _invalid(name: str, detail: str, remedy: str) -> Invalid:
    problem = FieldProblem(f"/{name}", "range", detail)
    return Invalid("invalid_parameter", detail, remedy=remedy, problems=(problem,))
