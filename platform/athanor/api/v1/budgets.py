"""/budgets: what parts of the organisation may spend, what they did, and what is to be expected.

Amounts are whole numbers: slot-seconds, or millionths of the currency.
"""

import csv
import io
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime, timedelta
from itertools import chain
from typing import Any

from django.http import StreamingHttpResponse
from django.utils import timezone
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, OpenApiResponse, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from athanor.accounts.roles import Permission
from athanor.accounts.selectors import Principal, team_names
from athanor.api.access import check_platform, get_principal
from athanor.api.bodies import parse_body
from athanor.api.etags import IF_MATCH, if_match_check
from athanor.api.idempotency import IDEMPOTENT, run_idempotently
from athanor.api.pagination import paginated_response
from athanor.api.parameters import time
from athanor.api.v1.serializers.budgets import (
    BudgetChangeSerializer,
    BudgetSerializer,
    BudgetStatementSerializer,
    NewBudgetSerializer,
)
from athanor.api.v1.serializers.common import PROBLEMS, page_serializer
from athanor.budgets import services, statements
from athanor.budgets.models import Budget, BudgetPeriod
from athanor.core import tenancy

MAX_LINES = 1000
AT = OpenApiParameter("at", OpenApiTypes.DATETIME, description="A time within the period. Without it, now.")
CSV = {(200, "text/csv"): OpenApiResponse(OpenApiTypes.STR, description="Rows as CSV, after a line of names.")}


class BudgetsView(APIView):
    """Requests to `/budgets`."""

    @extend_schema(
        operation_id="budgets_list",
        parameters=[
            OpenApiParameter(
                "active",
                str,
                enum=["true", "all"],
                description="`true` lists active budgets only, `all` lists all. Without it, `true`.",
            )
        ],
        responses={200: page_serializer("BudgetPage", BudgetSerializer), **PROBLEMS},
    )
    def get(self, request: Request) -> Response:
        """List budgets.

        Returns the budgets of your teams and of the groups above them; platform administrators and auditors see all."""
        active_only = request.query_params.get("active") != "all"
        rows = services.visible_to(get_principal(request), active_only=active_only)
        return paginated_response(_serialize_budgets(rows))

    @extend_schema(
        operation_id="budgets_create",
        parameters=IDEMPOTENT,
        request=NewBudgetSerializer,
        responses={201: BudgetSerializer, **PROBLEMS},
    )
    def post(self, request: Request) -> Response:
        """Create a budget.

        Creates a budget for a node of the quota tree. Usage from now on, of running jobs too, is charged to it. For
        platform administrators."""
        principal = _operator(request)
        asked = parse_body(request, NewBudgetSerializer)

        def make() -> Response:
            row = services.create(**asked, actor=principal.user)
            return _budget_response(services.find(principal, row.id), status=201)

        return run_idempotently(request, make)


class BudgetView(APIView):
    """Requests to `/budgets/{budget_id}`."""

    @extend_schema(operation_id="budgets_show", responses={200: BudgetSerializer, **PROBLEMS})
    def get(self, request: Request, budget_id: str) -> Response:
        """Show a budget.

        Returns the budget with its current period and a forecast of the period's end. The response has an `ETag`."""
        return _budget_response(services.find(get_principal(request), budget_id))

    @extend_schema(
        operation_id="budgets_change",
        parameters=[IF_MATCH],
        request=BudgetChangeSerializer,
        responses={200: BudgetSerializer, **PROBLEMS},
    )
    def patch(self, request: Request, budget_id: str) -> Response:
        """Change a budget.

        Changes the fields that are sent; the others stay. A new amount takes effect immediately, including in the
        current period. If a hard budget falls below what is reserved, the newest runs checkpoint and return to the
        queue; what is spent stays spent. For platform administrators."""
        row = services.find(get_principal(request), budget_id)
        principal = _operator(request)
        unchanged: Callable[[Budget], None] = if_match_check(request, lambda row, tag: tag == _tag(row))
        services.change(row.id, principal.user, unchanged, **parse_body(request, BudgetChangeSerializer))
        return _budget_response(services.find(principal, row.id))


class BudgetStatementView(APIView):
    """Requests to `/budgets/{budget_id}/statement`."""

    @extend_schema(
        operation_id="budgets_statement",
        parameters=[AT, OpenApiParameter("team", str, description="Only lines of the team with this id.")],
        responses={200: BudgetStatementSerializer, **PROBLEMS},
    )
    def get(self, request: Request, budget_id: str) -> Response:
        """Show the statement of a budget period.

        Returns what jobs of your teams spent and reserved in the period; jobs of other teams are one sum. Platform
        administrators and auditors see all jobs."""
        principal = get_principal(request)
        budget = services.find(principal, budget_id)
        period = statements.period_or_refuse(budget, time(request, "at") or timezone.now())
        with _sight(principal):
            lines = statements.lines(period, request.query_params.get("team", ""))[:MAX_LINES]
            names = team_names({line.team_id for line in lines})
        shown = [
            {
                "team": {"id": line.team_id, "name": names.get(line.team_id, line.team_id)},
                "job_id": line.job_id,
                "spent": line.spent,
                "reserved": line.reserved,
                "refunded": line.refunded,
            }
            for line in lines
        ]
        burnt = [{"time": moment, "spent": spent} for moment, spent in statements.burn_down(period)]
        others = {
            "spent": period.spent - sum(line.spent for line in lines),
            "reserved": period.reserved - sum(line.reserved for line in lines),
        }
        data = {"period": period, "lines": shown, "others": others, "burn_down": burnt}
        return Response(BudgetStatementSerializer(data).data)


class BudgetExportView(APIView):
    """Requests to `/budgets/{budget_id}/statement:export`."""

    @extend_schema(
        operation_id="budgets_export",
        parameters=[AT],
        responses={**CSV, **PROBLEMS},
    )
    def get(self, request: Request, budget_id: str) -> StreamingHttpResponse:
        """Export the ledger of a budget period.

        Returns the ledger of the period as CSV: the lines of your teams and those of the amount itself. Platform
        administrators and auditors get every line."""
        principal = get_principal(request)
        budget = services.find(principal, budget_id)
        period = statements.period_or_refuse(budget, time(request, "at") or timezone.now())

        def rows() -> Iterator[list[Any]]:
            with _sight(principal):
                yield from statements.rows_of(statements.transfers(period))

        return csv_response(f"{budget.id}-{period.start:%Y-%m-%d}.csv", statements.COLUMNS, rows())


def csv_response(name: str, heading: Iterable[str], rows: Iterable[list[Any]]) -> StreamingHttpResponse:
    """Return a CSV download whose lines are sent as they are read."""

    def lines() -> Iterator[str]:
        for values in chain([list(heading)], rows):
            out = io.StringIO()
            csv.writer(out, lineterminator="\n").writerow([_harmless(value) for value in values])
            yield out.getvalue()

    response = StreamingHttpResponse(lines(), content_type="text/csv; charset=utf-8")
    response["Content-Disposition"] = f'attachment; filename="{name}"'
    return response


def _harmless(value: Any) -> Any:
    """Quote a text that a spreadsheet would take for a formula."""
    return f"'{value}" if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r") else value


def _sight(principal: Principal) -> AbstractContextManager[None]:
    return tenancy.unrestricted() if services.sees_all(principal) else nullcontext()


def _operator(request: Request) -> Principal:
    principal = get_principal(request)
    check_platform(principal, Permission.MANAGE_BUDGETS)
    return principal


def _tag(row: Budget) -> str:
    return f'W/"{row.id}-{row.version}"'


def _budget_response(row: Budget, status: int = 200) -> Response:
    """Return a budget with an ETag of its settings. Its usage changes all the time, so there is no 304."""
    return Response(_serialize_budgets([row])[0], status=status, headers={"ETag": _tag(row)})


def _serialize_budgets(rows: Iterable[Budget]) -> list[Any]:
    now, found = timezone.now(), list(rows)
    paths = services.node_paths() if found else {}
    periods = statements.current_periods(found, now)
    return [BudgetSerializer(_facts(row, paths[row.node_id], periods.get(row.id), now)).data for row in found]


def _facts(row: Budget, path: str, period: BudgetPeriod | None, now: datetime) -> dict[str, Any]:
    forecast = None
    if period is not None:
        made = statements.forecast_of(row, period, now)
        ends = made.exhausted_in_seconds
        forecast = {
            "p50": made.p50,
            "p90": made.p90,
            "at_present_rate": made.at_present_rate,
            "exhausted_at": None if ends is None else now + timedelta(seconds=ends),
        }
    names = ("id", "node", "name", "unit", "currency", "accelerator", "period", "amount", "soft_percent", "hard")
    facts = {name: getattr(row, name) for name in (*names, "active", "created_at")}
    return {**facts, "path": path, "current": period, "forecast": forecast}
