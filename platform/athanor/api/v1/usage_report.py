"""/usage-report: the month of each team."""

from contextlib import nullcontext

from django.http import StreamingHttpResponse
from django.utils import timezone
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from athanor.api.access import get_principal
from athanor.api.v1.budgets import CSV, csv_response
from athanor.api.v1.serializers.common import PROBLEMS
from athanor.api.v1.serializers.usage_report import HEADING, UsageReportSerializer, csv_rows, serialize_month
from athanor.budgets import goodput_statement, services
from athanor.core import tenancy
from athanor.core.errors import FieldProblem, Invalid
from athanor.telemetry import usage_report
from athanor.telemetry.usage_report import TeamMonth

PARAMETERS = [
    OpenApiParameter("month", OpenApiTypes.STR, description="The month in UTC, YYYY-MM. Without it, the current one."),
    OpenApiParameter("team", OpenApiTypes.STR, description="Only the team with this name or id."),
]


class UsageReportView(APIView):
    """Requests to `/usage-report`."""

    @extend_schema(
        operation_id="usage_report", parameters=PARAMETERS, responses={200: UsageReportSerializer, **PROBLEMS}
    )
    def get(self, request: Request) -> Response:
        """Report a month by team.

        Returns what each team used in a month, what of it was productive and what was not, by activity and cause,
        what infrastructure faults lost, and its energy and carbon. The totals are those of `GET /costs`, the parts
        those of `GET /goodput`. Covers your teams; for platform administrators and auditors, all teams."""
        month, items = _report(request)
        return Response(UsageReportSerializer({"month": month, "items": map(serialize_month, items)}).data)


class UsageReportExportView(APIView):
    """Requests to `/usage-report:export`."""

    @extend_schema(operation_id="usage_report_export", parameters=PARAMETERS, responses={**CSV, **PROBLEMS})
    def get(self, request: Request) -> StreamingHttpResponse:
        """Export the report of a month.

        Returns the items of `GET /usage-report` as CSV, with what was not productive by activity. What is not known is
        empty."""
        month, items = _report(request)
        return csv_response(f"usage-{month}.csv", HEADING, csv_rows(items))


def _report(request: Request) -> tuple[str, list[TeamMonth]]:
    principal, month = get_principal(request), request.query_params.get("month") or f"{timezone.now():%Y-%m}"
    try:
        usage_report.bounds_of_month(month)
    except ValueError:
        detail = f"month={month[:100]!r} is not a month of the form YYYY-MM"
        problem = FieldProblem("/month", "month", detail)
        raise Invalid("invalid_parameter", detail, remedy="give a month such as 2026-11", problems=(problem,)) from None
    sees_all = services.sees_all(principal)
    with tenancy.unrestricted() if sees_all else nullcontext():
        team_ids = goodput_statement.teams_named(
            request.query_params.get("team", ""), None if sees_all else principal.team_ids
        )
        return month, usage_report.report(month, team_ids)
